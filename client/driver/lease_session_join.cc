// A LeaseSession connects to its daemon: the first time, and after the daemon was started again.

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "client/driver/lease_session.h"
#include "client/link/attempts.h"
#include "proto/wire/connect.h"

namespace lgpu::shim {
namespace {

// How long an attestation may take: the program's other threads cannot charge meanwhile, also not what the
// allowance has.
constexpr std::chrono::milliseconds kAttestPatience{1000};

}  // namespace

bool LeaseSession::EnsureJoined(Lock& lock, Clock::time_point deadline) {
  link::Attempts attempts;
  while (state_ != State::kJoined) {
    if (state_ == State::kOver) return false;
    if (state_ == State::kJoining || requests_.is_reading()) {
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
    const Clock::time_point now = Clock::now();
    const Clock::time_point next = attempts.Fail(now);
    if (before == State::kFresh || next >= deadline) return false;
    lock.unlock();
    std::this_thread::sleep_for(next - now);
    lock.lock();
  }
  return true;
}

LeaseSession::Joining LeaseSession::JoiningOf(const link::Reply& reply) {
  return reply.ok() ? Joining::kDone : reply.MayBeAskedAgain() ? Joining::kAgain : Joining::kNever;
}

LeaseSession::Joining LeaseSession::Connect(Clock::time_point deadline) {
  const auto patience = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
  if (patience.count() <= 0) return Joining::kAgain;
  PlainResult<UniqueFd> socket = ConnectUnix(options_.directory + "/session.sock", SOCK_SEQPACKET, patience);
  if (!socket.ok()) return Joining::kAgain;
  wire::FrameChannel channel(*std::move(socket));
  link::Handshake handshake(channel, nullptr);
  const bool resumes = is_attached_.load();
  const link::Reply greeted = handshake.Greet(link::HelloOf(options_.client, wire::Protocol::kChargeVersion),
                                              resumes, member_, deadline);
  if (!greeted.ok()) return JoiningOf(greeted);
  const bool sees_tick = options_.watch_tick != nullptr && tick_page_.Map(handshake.stats_fd());
  if (resumes) {
    // Nothing may change the words of the old page until the daemon knows them. A daemon that does not answer
    // in time is asked again when other threads have had their turn; the new page has the totals by then.
    deadline = std::min(deadline, Clock::now() + kAttestPatience);
    const std::lock_guard lock(charges_locks_);
    const std::vector<Totals> totals = ReadTotals();
    if (!handshake.TakePages(MapWithLibc, resumes, member_).ok()) return Joining::kAgain;
    if (!channel.Send(WriteTotals(totals), {}, deadline).ok()) return Joining::kAgain;
    const link::Reply attested = handshake.Attest({}, {}, deadline);
    if (!attested.ok()) return JoiningOf(attested);
    generation_.fetch_add(1);
  } else {
    if (!handshake.TakePages(MapWithLibc, resumes, member_).ok()) return Joining::kNever;
    process_ = ::getpid();
    if (const Joining attached = Attach(handshake, deadline); attached != Joining::kDone) return attached;
  }
  (void)HasItsSocket();  // else its number is another file's
  struct stat about {};
  if (::fstat(channel.fd(), &about) != 0) return Joining::kAgain;
  channel_ = std::move(channel);
  socket_device_.store(about.st_dev);
  socket_inode_.store(about.st_ino);
  socket_.store(channel_.fd());
  // A new page knows of no use: the program counts as used now.
  ClientPage& page = *member_.page;
  if (sees_tick && !options_.makes_no_use) page.last_use.store(tick_page_.tick()->load());
  if (!resumes) {
    const std::lock_guard lock(charges_locks_);
    page.imports.store(imports_.load());
    page.kernel_heap.store(kernel_heap_.load());
    is_attached_.store(true, std::memory_order_release);
  }
  if (sees_tick) options_.watch_tick(tick_page_.tick());
  return Joining::kDone;
}

LeaseSession::Joining LeaseSession::Attach(link::Handshake& handshake, Clock::time_point deadline) {
  wire::Lease lease;
  const link::Reply attached = handshake.Attach(requests_.NewId(), options_.lease, lease, deadline);
  if (!attached.ok()) return JoiningOf(attached);
  for (const wire::LogicalDevice& device : lease.devices) {
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
    const CardCharges& words = member_.page->charges.cards[card];
    totals[card].exported = words.exported.load();
    for (std::size_t kind = 0; kind < kKinds; ++kind) totals[card].by_kind[kind] = words.by_kind[kind].load();
  }
  return totals;
}

wire::Frame LeaseSession::WriteTotals(const std::vector<Totals>& totals) {
  wire::ChargeAttest charges;
  member_.page->imports.store(imports_.load());
  member_.page->kernel_heap.store(kernel_heap_.load());
  for (std::size_t card = 0; card < totals.size(); ++card) {
    CardCharges& words = member_.page->charges.cards[card];
    words.exported.store(totals[card].exported);
    for (std::size_t kind = 0; kind < kKinds; ++kind) {
      const std::uint64_t bytes = totals[card].by_kind[kind];
      words.by_kind[kind].store(bytes);
      if (bytes == 0) continue;
      charges.totals.push_back(
          {.card_uuid = cards_[card].uuid, .kind = static_cast<ChargeKind>(kind + 1), .bytes = bytes});
    }
  }
  return {.body = std::move(charges)};
}

}  // namespace lgpu::shim
