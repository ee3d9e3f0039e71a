// A program that takes memory from a driver of its own, which has as much as it likes, and charges it: by
// proto/wire alone, as a shim in front of the driver does. It reads commands from stdin and answers each with
// one line, "ok ..." or "error CODE text", in which \n stands for a line break.

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <iterator>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "proto/wire/channel.h"
#include "proto/wire/connect.h"
#include "proto/wire/pages.h"
#include "proto/wire/session_messages.h"

namespace lgpu {
namespace {

using Words = std::vector<std::string>;
using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kPatience{60};
constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

std::string Error(std::int32_t code, const std::string& text) {
  std::string line = "error " + std::to_string(code) + " ";
  for (const char c : text) c == '\n' ? line += "\\n" : line += c;
  return line;
}

/// The first card of a lease, one thread.
class Program {
 public:
  explicit Program(std::string directory) : directory_(std::move(directory)) {}

  std::string Do(const Words& words) {
    const std::string& verb = words[0];
    if (verb == "attach") return Attach(words.at(1));
    if (verb == "charge") {
      return Charge(std::stoull(words.at(1)), words.size() > 2 ? std::stoull(words[2]) : 0);
    }
    if (verb == "free") return Free(std::stoull(words.at(1)));
    if (verb == "random") return Random(std::stoull(words.at(1)), std::stoull(words.at(2)));
    if (verb == "churn") return Churn(std::stoull(words.at(1)), std::stoull(words.at(2)));
    if (verb == "used") return "ok " + std::to_string(used_);
    if (verb == "words") return "ok " + std::to_string(Card().free) + " " + std::to_string(Card().keep);
    if (verb == "lie") return Lie(std::stoull(words.at(1)));
    if (verb == "disconnect") return Disconnect();
    if (verb == "exec") return Exec();
    return "error no such command";
  }

 private:
  CardCharges& Card() { return page_->charges.cards[0]; }

  bool Send(wire::Frame frame) {
    wire::Encode(frame, encoded_);
    return channel_.Send(encoded_, {}, Clock::now() + kPatience).ok();
  }
  /// The next frame; none: the connection is over.
  std::optional<wire::Frame> Receive(wire::Channel::Descriptors& beside) {
    std::string_view bytes;
    if (!channel_.Receive(bytes, beside, Clock::now() + kPatience).ok()) return std::nullopt;
    return wire::Decode<wire::Frame>(bytes);
  }
  std::optional<wire::Frame> Receive() {
    wire::Channel::Descriptors beside;
    return Receive(beside);
  }

  std::string Connect() {
    PlainResult<UniqueFd> socket = ConnectUnix(directory_ + "/session.sock", SOCK_SEQPACKET);
    if (!socket.ok()) return std::string(socket.status().message);
    channel_ = wire::Channel(*std::move(socket));
    wire::Hello hello;
    hello.protocol_version = wire::Protocol::kProtocolVersion;
    hello.oldest_version = wire::Protocol::kChargeVersion;
    hello.client = "charge_client";
    hello.pid = ::getpid();
    if (session_ != 0) hello.resume = wire::Resume{.session_id = session_, .session_token = {token_}};
    wire::Channel::Descriptors beside;
    if (!Send({.body = std::move(hello)})) return "no Hello";
    const std::optional<wire::Frame> answer = Receive(beside);
    if (!answer) return "no Welcome";
    if (const auto* const goodbye = answer->Get<wire::Goodbye>()) return goodbye->message;
    const auto& welcome = *answer->Get<wire::Welcome>();
    const bool again = std::exchange(session_, welcome.session_id) != 0;
    token_ = welcome.session_token.bytes;
    if (again) return TakeUp(std::move(beside.fds[1]));
    PlainResult<SharedPage<ClientPage>> page =
        SharedPages::OpenClientPage(MapWithLibc, std::move(beside.fds[1]));
    if (!page.ok()) return std::string(page.status().message);
    page_ = *std::move(page);
    return "";
  }
  /// Resumes the session of an earlier connection with the charges in use.
  std::string TakeUp(UniqueFd page) {
    if (!SharedPages::ReplaceClientPage(MapWithLibc, page_, std::move(page)).ok()) return "no page";
    Send({.body = wire::ChargeAttest{
              .totals = {{.card_uuid = card_, .kind = wire::ChargeKind::kPlain, .bytes = used_}}}});
    Send({.body = wire::Attest{}});
    const std::optional<wire::Frame> answer = Receive();
    return answer && answer->Get<wire::Attested>() != nullptr ? "" : "no Attested";
  }
  /// After the daemon is gone, with the next one.
  bool Reconnect() {
    const Clock::time_point deadline = Clock::now() + kPatience;
    while (Clock::now() < deadline) {
      if (Connect().empty()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }

  std::string Attach(const std::string& lease) {
    if (const std::string error = Connect(); !error.empty()) return Error(14, error);
    Send({.body = wire::Attach{.request_id = ++request_, .lease = lease}});
    const std::optional<wire::Frame> answer = Receive();
    if (!answer) return Error(14, "no Attached");
    const auto& attached = *answer->Get<wire::Attached>();
    if (attached.code != 0) return Error(attached.code, attached.message);
    card_ = attached.lease->devices.at(0).card_uuid;
    return "ok " + std::to_string(session_);
  }

  std::string Charge(std::uint64_t bytes, std::uint64_t timeout_ms) {
    std::uint64_t free = Card().free.load();
    while (free >= bytes && !Card().free.compare_exchange_weak(free, free - bytes)) {
    }
    if (free < bytes) {
      const wire::Frame frame{.body = wire::Charge{.request_id = ++request_,
                                                   .card_uuid = card_,
                                                   .bytes = bytes,
                                                   .timeout_ms = timeout_ms,
                                                   .kind = wire::ChargeKind::kPlain,
                                                   .what = "cuMemAlloc_v2"}};
      std::optional<wire::Frame> answer;
      while (!answer) {
        if (Send(frame)) answer = Receive();
        const bool is_answer = answer && answer->Get<wire::Charged>() != nullptr;
        if (!is_answer) {
          answer.reset();
          if (!Reconnect()) return Error(14, "lgpud does not come back");
        }
      }
      const auto& charged = *answer->Get<wire::Charged>();
      if (charged.code != 0) return Error(charged.code, charged.message);
    }
    used_ += bytes;
    Card().by_kind[0].fetch_add(bytes);
    return "ok";
  }

  std::string Free(std::uint64_t bytes) {
    used_ -= bytes;
    Card().by_kind[0].fetch_sub(bytes);
    std::uint64_t free = Card().free.fetch_add(bytes) + bytes;
    std::uint64_t excess = 0;
    do {
      const std::uint64_t keep = Card().keep.load();
      excess = free > keep ? free - keep : 0;
    } while (excess != 0 && !Card().free.compare_exchange_weak(free, free - excess));
    if (excess == 0) return "ok";
    const wire::Frame frame{
        .body = wire::Uncharge{.card_uuid = card_, .bytes = excess, .kind = wire::ChargeKind::kPlain}};
    // After a reconnection the daemon knows it by the totals.
    if (!Send(frame) && !Reconnect()) return Error(14, "lgpud does not come back");
    return "ok";
  }

  std::string Churn(std::uint64_t times, std::uint64_t bytes) {
    std::uint64_t refused = 0;
    for (std::uint64_t i = 0; i < times; ++i) {
      if (Charge(bytes, 100) == "ok") {
        Free(bytes);
      } else {
        ++refused;
      }
    }
    return "ok " + std::to_string(refused);
  }

  /// Charges and frees at random; how much is in use at the end.
  std::string Random(std::uint64_t steps, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    for (std::uint64_t i = 0; i < steps; ++i) {
      const std::uint64_t bytes = 1 + random() % ((random() % 4 == 0 ? 40 : 4) * kMiB);
      if (random() % 2 == 0) {
        const std::string answer = Charge(bytes, random() % 50);
        if (answer == "ok") {
          live_.push_back(bytes);
        } else if (!answer.starts_with("error 8 ")) {
          return answer;
        }
      } else if (!live_.empty()) {
        std::swap(live_.back(), live_[random() % live_.size()]);
        const std::string answer = Free(live_.back());
        if (answer != "ok") return answer;
        live_.pop_back();
      }
    }
    return "ok " + std::to_string(used_);
  }

  std::string Lie(std::uint64_t word) {
    for (CardCharges& card : page_->charges.cards) {
      card.free = word;
      card.keep = word;
      for (auto& kind : card.by_kind) kind = word;
    }
    return "ok";
  }

  std::string Disconnect() {
    channel_ = wire::Channel();
    return "ok";
  }

  std::string Exec() {
    ::execl("/proc/self/exe", "charge_client", directory_.c_str(), "again", static_cast<char*>(nullptr));
    return "error exec";
  }

  const std::string directory_;
  wire::Channel channel_;
  std::string encoded_;
  SharedPage<ClientPage> page_;
  std::uint64_t session_ = 0;
  std::string token_;
  std::string card_;
  std::uint64_t request_ = 0;
  std::uint64_t used_ = 0;
  std::vector<std::uint64_t> live_;  // of Random
};

}  // namespace
}  // namespace lgpu

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  if (argc > 2) std::cout << "ok" << std::endl;  // the answer to exec
  lgpu::Program program(argv[1]);
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream text(line);
    const std::vector<std::string> words{std::istream_iterator<std::string>(text), {}};
    std::cout << program.Do(words) << std::endl;
  }
  return 0;
}
