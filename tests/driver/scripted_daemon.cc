#include "tests/driver/scripted_daemon.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace lgpu::testing {
namespace {

constexpr char kToken[] = "token";

}  // namespace

ScriptedDaemon::ScriptedDaemon(std::string directory, std::uint64_t bytes, std::string uuid)
    : limit(bytes), directory_(std::move(directory)), uuid_(std::move(uuid)) {
  Start();
}

void ScriptedDaemon::Start() {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = directory_ + "/session.sock";
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  ::unlink(path.c_str());
  listener_ = UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  LGPU_CHECK(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  LGPU_CHECK(::listen(listener_.get(), 8) == 0);
  thread_ = std::thread([this] { Serve(); });
}

void ScriptedDaemon::Kill() {
  if (!thread_.joinable()) return;
  ::shutdown(listener_.get(), SHUT_RDWR);
  if (const int connection = connection_.load(); connection >= 0) ::shutdown(connection, SHUT_RDWR);
  thread_.join();
  listener_.Reset();
  late_.clear();
}

void ScriptedDaemon::Serve() {
  while (true) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket) return;
    connection_.store(socket.get());
    Talk(wire::Channel(std::move(socket)));
    connection_.store(-1);
  }
}

void ScriptedDaemon::Talk(wire::Channel channel) {
  while (true) {
    std::string_view bytes;
    wire::Channel::Descriptors beside;
    if (!channel.Receive(bytes, beside, std::nullopt).ok()) return;
    wire::Frame frame;
    if (!wire::Decoder(bytes).Read(frame) || !Answer(channel, frame)) return;
  }
}

void ScriptedDaemon::Send(wire::Channel& channel, const wire::Frame& frame) {
  (void)channel.Send(wire::Encode(frame), {}, std::nullopt);
}

bool ScriptedDaemon::Answer(wire::Channel& channel, const wire::Frame& frame) {
  if (const auto* const hello = frame.Get<wire::Hello>()) {
    if (hello->resume && !knows_session) {
      Send(channel, {.body = wire::Goodbye{.code = 9, .message = "no such session"}});
      return false;
    }
    Welcome(channel, *hello);
  } else if (const auto* const attach = frame.Get<wire::Attach>()) {
    wire::LogicalDevice device;
    device.id = 7;
    device.card_uuid = uuid_;
    device.memory_limit_bytes = limit;
    wire::Attached attached;
    attached.request_id = attach->request_id;
    attached.code = attach_code;
    if (attach_code == 0) attached.lease.emplace().devices.push_back(device);
    Send(channel, {.body = std::move(attached)});
  } else if (const auto* const charge = frame.Get<wire::Charge>()) {
    ++charges;
    imports = client_->imports.load();
    timeout_ms = charge->timeout_ms;
    if (answer_after > 0) {
      --answer_after;
      late_.push_back(*charge);
      return true;
    }
    const bool ends = !late_.empty() && ends_with_late;
    if (ends) ::shutdown(channel.fd(), SHUT_RD);  // the client's further frames fail
    for (const wire::Charge& late : std::exchange(late_, {})) Decide(channel, late);
    if (ends) return false;
    if (const int later = says_still_waiting; later > 0) {
      Send(channel, {.body = wire::StillWaiting{.request_id = charge->request_id, .more_ms = 60'000}});
      std::this_thread::sleep_for(std::chrono::milliseconds(later));
    }
    Decide(channel, *charge);
  } else if (const auto* const uncharge = frame.Get<wire::Uncharge>()) {
    charged -= uncharge->bytes;
    ++uncharges;
    stats_->devices[0].held = charged.load();
  } else if (const auto* const returned = frame.Get<wire::ReturnRequest>()) {
    wire::ReturnReply reply;
    reply.request_id = returned->request_id;
    reply.code = 3;
    Send(channel, {.body = std::move(reply)});
  } else if (const auto* const attest = frame.Get<wire::ChargeAttest>()) {
    charged = 0;
    for (const wire::ChargeAttest::Total& total : attest->totals) charged += total.bytes;
    attested = charged.load();
    stats_->devices[0].held = charged.load();
  } else if (frame.Get<wire::Attest>() != nullptr) {
    if (attests) Send(channel, {.body = wire::Attested{}});
  }
  return true;
}

void ScriptedDaemon::Welcome(wire::Channel& channel, const wire::Hello& hello) {
  auto stats = SharedPages::CreateStatsPage(MapWithLibc);
  auto client = SharedPages::CreateClientPage(MapWithLibc);
  LGPU_CHECK(stats.ok() && client.ok());
  stats_ = *std::move(stats);
  client_ = *std::move(client);
  auto words = SharedPages::MapCharges(MapWithLibc, client_);
  LGPU_CHECK(words.ok());
  words_ = *std::move(words);
  stats_->devices[0].id = 7;
  stats_->devices[0].limit = limit.load();
  stats_->devices[0].held = charged.load();
  stats_->devices[0].card_free = limit.load();
  wire::Welcome welcome;
  welcome.protocol_version = wire::Protocol::kProtocolVersion;
  welcome.session_id = 3;
  welcome.session_token = {kToken};
  welcome.stats_page_bytes = sizeof(StatsPage);
  welcome.client_page_bytes = sizeof(ClientPage);
  welcome.resumed = hello.resume.has_value();
  const wire::Frame frame{.body = std::move(welcome)};
  const int fds[] = {stats_.fd(), client_.fd()};
  (void)channel.Send(wire::Encode(frame), fds, std::nullopt);
}

void ScriptedDaemon::Decide(wire::Channel& channel, const wire::Charge& charge) {
  if (const auto* const other = meanwhile.exchange(nullptr)) (*other)();
  const bool fits = charge.bytes <= limit - charged;
  if (fits) {
    charged += charge.bytes;
    const std::uint64_t lent = lends.exchange(0);
    charged += lent;
    words_->cards[0].keep = lent;
    words_->cards[0].free += lent;
  }
  stats_->devices[0].held = charged.load();
  if (half_writes_stats && stats_->epoch % 2 == 0) ++stats_->epoch;
  wire::Charged charged_frame;
  charged_frame.request_id = charge.request_id;
  charged_frame.code = fits ? 0 : 8;
  if (!fits && refusal_reason != 0) {
    wire::Refusal& refusal = charged_frame.refusal.emplace();
    refusal.reason = static_cast<wire::Refusal::Reason>(refusal_reason.load());
    if (charge.timeout_ms > 0) refusal.waited_ms = charge.timeout_ms;
  }
  Send(channel, {.body = std::move(charged_frame)});
}

}  // namespace lgpu::testing
