// A LeaseSession connects to its daemon: the first time, and after the daemon was started again.

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "client/driver/lease_session.h"
#include "proto/wire/connect.h"

namespace lgpu::shim {
namespace {

constexpr std::chrono::milliseconds kFirstPause{5};
constexpr std::chrono::milliseconds kLongestPause{200};
// How long an attestation may take: the program's other threads cannot charge meanwhile, also not what the
// allowance has.
constexpr std::chrono::milliseconds kAttestPatience{1000};

std::string OwnCommand() {
  char text[256];
  const int file = ::open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  const ssize_t bytes = ::read(file, text, sizeof(text));
  ::close(file);
  std::string command(text, static_cast<std::size_t>(std::max<ssize_t>(bytes, 0)));
  while (!command.empty() && command.back() == '\0') command.pop_back();
  for (char& c : command) {
    if (c == '\0') c = ' ';
    if (static_cast<unsigned char>(c) >= 0x80 || static_cast<unsigned char>(c) < 0x20) c = '?';
  }
  return command;
}

}  // namespace

bool LeaseSession::EnsureJoined(Lock& lock, Clock::time_point deadline) {
  auto pause = kFirstPause;
  while (state_ != State::kJoined) {
    if (state_ == State::kOver) return false;
    if (state_ == State::kJoining || is_reading_) {
      if (changed_.wait_until(lock, deadline) == std::cv_status::timeout) return false;
      continue;
    }
    const State before = std::exchange(state_, State::kJoining);
    lock.unlock();
    const Joining joined = Connect(deadline);
    lock.lock();
    state_ = joined == Joining::kDone ? State::kJoined : joined == Joining::kNever ? State::kOver : before;
    changed_.notify_all();
    if (joined != Joining::kAgain) continue;
    // A program that never joined fails at once; one whose daemon is being restarted waits for it.
    if (before == State::kFresh || Clock::now() + pause >= deadline) return false;
    lock.unlock();
    std::this_thread::sleep_for(pause);
    lock.lock();
    pause = std::min(2 * pause, kLongestPause);
  }
  return true;
}

bool LeaseSession::MayBeAskedAgain(int code) {
  switch (static_cast<PlainCode>(code)) {
    case PlainCode::kUnavailable:
    case PlainCode::kDeadlineExceeded:
    case PlainCode::kResourceExhausted:
    case PlainCode::kAborted:
      return true;
    default:
      return false;
  }
}

wire::Hello LeaseSession::Greeting() const {
  wire::Hello hello;
  hello.protocol_version = wire::Protocol::kProtocolVersion;
  hello.oldest_version = wire::Protocol::kChargeVersion;
  hello.client = options_.client;
  hello.pid = ::getpid();
  hello.command = OwnCommand();
  return hello;
}

LeaseSession::Joining LeaseSession::Ask(wire::Channel& channel, const wire::Frame& frame, wire::Frame& answer,
                                        wire::Channel::Descriptors& beside, Clock::time_point deadline) {
  // A daemon that hung up may have said why.
  (void)channel.Send(wire::Encode(frame), {}, deadline);
  std::string_view bytes;
  if (!channel.Receive(bytes, beside, deadline).ok()) return Joining::kAgain;
  answer = {};
  if (!wire::Decoder(bytes).Read(answer)) return Joining::kNever;
  const auto* const goodbye = answer.Get<wire::Goodbye>();
  if (goodbye == nullptr) return Joining::kDone;
  return MayBeAskedAgain(goodbye->code) ? Joining::kAgain : Joining::kNever;
}

LeaseSession::Joining LeaseSession::Connect(Clock::time_point deadline) {
  const auto patience = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
  if (patience.count() <= 0) return Joining::kAgain;
  PlainResult<UniqueFd> socket = ConnectUnix(options_.directory + "/session.sock", SOCK_SEQPACKET, patience);
  if (!socket.ok()) return Joining::kAgain;
  wire::Channel channel(*std::move(socket));
  const bool resumes = is_attached_.load();
  wire::Frame frame{.body = Greeting()};
  if (resumes) {
    std::get<wire::Hello>(frame.body).resume = {.session_id = session_id_, .session_token = {token_}};
  }
  wire::Frame answer;
  wire::Channel::Descriptors beside;
  if (const Joining greeted = Ask(channel, frame, answer, beside, deadline); greeted != Joining::kDone) {
    return greeted;
  }
  const auto* const welcome = answer.Get<wire::Welcome>();
  if (welcome == nullptr || welcome->protocol_version < wire::Protocol::kChargeVersion ||
      welcome->resumed != resumes) {
    return Joining::kNever;
  }
  if (beside.fds.size() != 2) return Joining::kAgain;  // no descriptors are left in this process now
  const bool sees_tick = options_.watch_tick != nullptr && tick_page_.Map(beside.fds[0].get());
  if (resumes) {
    // Nothing may change the words of the old page until the daemon knows them. A daemon that does not answer
    // in time is asked again when other threads have had their turn; the new page has the totals by then.
    deadline = std::min(deadline, Clock::now() + kAttestPatience);
    const std::lock_guard lock(charges_locks_);
    const std::vector<Totals> totals = ReadTotals();
    if (!SharedPages::ReplaceStatsPage(MapWithLibc, stats_, std::move(beside.fds[0])).ok() ||
        !SharedPages::ReplaceClientPage(MapWithLibc, page_, std::move(beside.fds[1])).ok()) {
      return Joining::kAgain;
    }
    const Joining attested = Attest(channel, totals, deadline);
    if (attested != Joining::kDone) return attested;
    generation_.fetch_add(1);
  } else {
    PlainResult<SharedPage<const StatsPage>> stats =
        SharedPages::OpenStatsPage(MapWithLibc, std::move(beside.fds[0]));
    PlainResult<SharedPage<ClientPage>> page =
        SharedPages::OpenClientPage(MapWithLibc, std::move(beside.fds[1]));
    if (!stats.ok() || !page.ok()) return Joining::kNever;
    session_id_ = welcome->session_id;
    token_ = welcome->session_token.bytes;
    stats_ = *std::move(stats);
    page_ = *std::move(page);
    process_ = ::getpid();
    if (const Joining attached = Attach(channel, deadline); attached != Joining::kDone) return attached;
  }
  // The pages stay mapped; the descriptors would be in the way of a program that closes all that it finds.
  stats_.CloseFd();
  page_.CloseFd();
  (void)HasItsSocket();  // else its number is another file's
  struct stat about {};
  if (::fstat(channel.fd(), &about) != 0) return Joining::kAgain;
  channel_ = std::move(channel);
  socket_device_.store(about.st_dev);
  socket_inode_.store(about.st_ino);
  socket_.store(channel_.fd());
  // A new page knows of no use: the program counts as used now.
  if (sees_tick) page_->last_use.store(tick_page_.tick()->load());
  if (options_.makes_no_use) page_->last_use.store(ClientPage::kNoUse);
  if (!resumes) {
    const std::lock_guard lock(charges_locks_);
    page_->imports.store(imports_.load());
    page_->kernel_heap.store(kernel_heap_.load());
    is_attached_.store(true, std::memory_order_release);
  }
  if (sees_tick) options_.watch_tick(tick_page_.tick());
  return Joining::kDone;
}

LeaseSession::Joining LeaseSession::Attach(wire::Channel& channel, Clock::time_point deadline) {
  wire::Frame answer;
  wire::Channel::Descriptors beside;
  const wire::Frame frame{.body = wire::Attach{.request_id = next_request_++, .lease = options_.lease}};
  if (const Joining asked = Ask(channel, frame, answer, beside, deadline); asked != Joining::kDone) {
    return asked;
  }
  const auto* const attached = answer.Get<wire::Attached>();
  if (attached == nullptr) return Joining::kNever;
  if (!attached->lease) return MayBeAskedAgain(attached->code) ? Joining::kAgain : Joining::kNever;
  for (const wire::LogicalDevice& device : attached->lease->devices) {
    auto card = std::find_if(cards_.begin(), cards_.end(),
                             [&](const Card& known) { return known.uuid == device.card_uuid; });
    if (card == cards_.end()) card = cards_.insert(cards_.end(), {.uuid = device.card_uuid, .devices = {}});
    card->devices.push_back(device.id);
  }
  return cards_.size() <= static_cast<std::size_t>(kMaxCards) ? Joining::kDone : Joining::kNever;
}

std::vector<LeaseSession::Totals> LeaseSession::ReadTotals() const {
  std::vector<Totals> totals(cards_.size());
  for (std::size_t card = 0; card < totals.size(); ++card) {
    const CardCharges& words = page_->charges.cards[card];
    totals[card].exported = words.exported.load();
    for (std::size_t kind = 0; kind < kKinds; ++kind) totals[card].by_kind[kind] = words.by_kind[kind].load();
  }
  return totals;
}

LeaseSession::Joining LeaseSession::Attest(wire::Channel& channel, const std::vector<Totals>& totals,
                                           Clock::time_point deadline) {
  wire::ChargeAttest charges;
  page_->imports.store(imports_.load());
  page_->kernel_heap.store(kernel_heap_.load());
  for (std::size_t card = 0; card < totals.size(); ++card) {
    CardCharges& words = page_->charges.cards[card];
    words.exported.store(totals[card].exported);
    for (std::size_t kind = 0; kind < kKinds; ++kind) {
      const std::uint64_t bytes = totals[card].by_kind[kind];
      words.by_kind[kind].store(bytes);
      if (bytes == 0) continue;
      charges.totals.push_back(
          {.card_uuid = cards_[card].uuid, .kind = static_cast<ChargeKind>(kind + 1), .bytes = bytes});
    }
  }
  if (!channel.Send(wire::Encode(wire::Frame{.body = std::move(charges)}), {}, deadline).ok()) {
    return Joining::kAgain;
  }
  wire::Frame answer;
  wire::Channel::Descriptors beside;
  if (const Joining asked = Ask(channel, {.body = wire::Attest{}}, answer, beside, deadline);
      asked != Joining::kDone) {
    return asked;
  }
  return answer.Get<wire::Attested>() != nullptr ? Joining::kDone : Joining::kNever;
}

}  // namespace lgpu::shim
