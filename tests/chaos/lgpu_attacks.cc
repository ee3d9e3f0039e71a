// One user attacks an lgpud in each way that its sockets allow, while another user goes on making programs:
// connect, create a lease, grow, end. Prints how long the honest user waited beside an attack and without
// one, in one run. Then one user's programs want all turns of a GPU beside the honest user's one. Fails if an
// honest step fails. Root only: it needs a second user.
//
//   lgpu_attacks [--seconds N]     so long for each attack; default 2

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "lgpu/status.h"
#include "proto/wire/connect.h"
#include "tests/chaos/turn_attack.h"
#include "tests/e2e/harness.h"
#include "tests/support/open_files_limit.h"
#include "tests/support/raw_http2.h"

namespace lgpu::testing {
namespace {

using Clock = std::chrono::steady_clock;
constexpr uid_t kAttacker = 61301;

/// The input of an attacking thread. The thread may keep its connections until the attack is over.
struct Attack {
  std::string dir;
  const std::atomic<bool>& over;
};

std::unique_ptr<RawHttp2> Call(const Attack& attack, std::uint32_t window) {
  PlainResult<UniqueFd> socket = ConnectUnix(attack.dir + "/control.sock", SOCK_STREAM);
  if (!socket.ok()) return nullptr;
  ::fcntl(socket->get(), F_SETFL, O_NONBLOCK);
  return std::make_unique<RawHttp2>(*std::move(socket), window);
}

/// Keeps 400 connections with four calls each, and makes all of them anew every second.
void ManyCalls(const Attack& attack, const char* method, std::string_view message, bool ends) {
  while (!attack.over) {
    std::vector<std::unique_ptr<RawHttp2>> open;
    for (int i = 0; i < 400 && !attack.over; ++i) {
      open.push_back(Call(attack, /*window=*/0));
      for (int call = 0; call < 4 && open.back() != nullptr; ++call) {
        open.back()->StartCall(method);
        open.back()->SendData(message, ends);
      }
    }
    for (int i = 0; i < 20 && !attack.over; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

void AnswersNotRead(const Attack& attack) {
  ManyCalls(attack, "GetStats", RawHttp2::MessageHeader(0), /*ends=*/true);
}
void StreamsNotRead(const Attack& attack) {
  ManyCalls(attack, "WatchEvents", RawHttp2::MessageHeader(0), /*ends=*/true);
}
void UnfinishedRequests(const Attack& attack) {
  ManyCalls(attack, "CreateLease", RawHttp2::MessageHeader(4 << 20) + std::string(60'000, 'x'),
            /*ends=*/false);
}
void LeasesThatWait(const Attack& attack) {
  v1::WaitForLeaseRequest request;
  *request.mutable_create() = OneDevice(1024 * kMiB, /*preallocate=*/true, /*lasting=*/true);
  const std::string bytes = request.SerializeAsString();
  ManyCalls(attack, "WaitForLease", RawHttp2::MessageHeader(static_cast<std::uint32_t>(bytes.size())) + bytes,
            /*ends=*/true);
}

void ConnectionsWithoutAWord(const Attack& attack) {
  std::vector<UniqueFd> open;
  while (!attack.over) {
    if (PlainResult<UniqueFd> socket = ConnectUnix(attack.dir + "/session.sock", SOCK_SEQPACKET);
        socket.ok()) {
      open.push_back(*std::move(socket));
    }
    if (open.size() >= 6000) open.erase(open.begin(), open.begin() + 3000);
  }
}

absl::StatusOr<v1::Lease> LeaseOf(const std::string& dir, const RawSession& session) {
  absl::StatusOr<std::unique_ptr<Control>> control = Control::Open(dir);
  if (!control.ok()) return control.status();
  (*control)->SetSessionToken(session.token);
  return (*control)->CreateLease(OneDevice(1024 * kMiB));
}

absl::Status Close(RawSession& session) {
  v1::Frame close;
  close.mutable_close()->set_request_id(77);
  return session.Ask(close).status();
}

/// An idle program that holds half of the card.
absl::StatusOr<RawSession> HoldHalf(const std::string& dir) {
  LGPU_ASSIGN_OR_RETURN(RawSession session, RawSession::Open(dir));
  LGPU_ASSIGN_OR_RETURN(const v1::Lease lease, LeaseOf(dir, session));
  LGPU_RETURN_IF_ERROR(session.Grow(1, lease.devices(0).id(), 512 * kMiB).status());
  return session;
}

/// A program that holds nothing asks for the whole card for a day, and a second one for as much as it may.
void TheWholeCard(const Attack& attack) {
  absl::StatusOr<RawSession> session = RawSession::Open(attack.dir);
  if (!session.ok()) return;
  const absl::StatusOr<v1::Lease> lease = LeaseOf(attack.dir, *session);
  if (!lease.ok()) return;
  for (std::uint64_t id = 1; id <= 32; ++id) {
    v1::Frame frame;
    frame.mutable_grow()->set_request_id(id);
    frame.mutable_grow()->set_device_id(lease->devices(0).id());
    frame.mutable_grow()->set_at_least_bytes(1024 * kMiB);
    frame.mutable_grow()->set_wanted_bytes(1024 * kMiB);
    frame.mutable_grow()->set_timeout_ms(24 * 3600 * 1000);
    if (!session->channel.Send(frame, {}, session->Patience()).ok()) return;
  }
  while (!attack.over) std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

/// Sessions, leases and grants as fast as they come.
void Churn(const Attack& attack) {
  while (!attack.over) {
    absl::StatusOr<RawSession> session = RawSession::Open(attack.dir);
    if (!session.ok()) continue;
    const absl::StatusOr<v1::Lease> lease = LeaseOf(attack.dir, *session);
    for (std::uint64_t id = 1; lease.ok() && id <= 20 && !attack.over; ++id) {
      session->Grow(id, lease->devices(0).id(), 2 * kMiB).status().IgnoreError();
    }
    Close(*session).IgnoreError();
  }
}

/// A session charges a byte, and its connection is closed. The mapping of its page, which keeps it; none:
/// lgpud gave it no session.
absl::StatusOr<void*> LeaveASession(const std::string& dir, const v1::Lease& lease) {
  RawSession session;
  LGPU_ASSIGN_OR_RETURN(session.channel, GeneratedChannel::Connect(dir + "/session.sock"));
  v1::Frame frame;
  frame.mutable_hello()->set_protocol_version(GeneratedChannel::kProtocolVersion);
  frame.mutable_hello()->set_oldest_version(GeneratedChannel::kProtocolVersion);
  LGPU_ASSIGN_OR_RETURN(const GeneratedFrame welcome, session.Ask(frame));
  if (welcome.fds.size() != 2) return absl::ResourceExhaustedError(welcome.frame.goodbye().message());
  void* const page = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, welcome.fds[1].get(), 0);
  if (page == MAP_FAILED) return absl::InternalError("mmap failed");
  frame.mutable_attach()->set_request_id(1);
  frame.mutable_attach()->set_lease(lease.id());
  LGPU_RETURN_IF_ERROR(session.Ask(frame).status());
  frame.mutable_charge()->set_request_id(2);
  frame.mutable_charge()->set_card_uuid(lease.devices(0).card_uuid());
  frame.mutable_charge()->set_bytes(1);
  LGPU_RETURN_IF_ERROR(session.Ask(frame).status());
  return page;
}

/// Sessions without a connection, whose process lives and maps their pages.
void SessionsLeftBehind(const Attack& attack) {
  const absl::StatusOr<std::unique_ptr<Control>> control = Control::Open(attack.dir);
  if (!control.ok()) return;
  const absl::StatusOr<v1::Lease> lease =
      (*control)->CreateLease(OneDevice(64 * kMiB, /*preallocate=*/false, /*lasting=*/true));
  if (!lease.ok()) return;
  std::vector<void*> pages;
  while (!attack.over) {
    const absl::StatusOr<void*> page = LeaveASession(attack.dir, *lease);
    if (page.ok()) pages.push_back(*page);
  }
  for (void* const page : pages) ::munmap(page, 4096);
}

struct Times {
  std::vector<double> connect, create, grow;  // milliseconds
};

void Print(const char* name, Times times) {
  std::printf("%-28s %5zu", name, times.grow.size());
  for (std::vector<double>* part : {&times.connect, &times.create, &times.grow}) {
    std::sort(part->begin(), part->end());
    const auto at = [part](double share) {
      return (*part)[static_cast<std::size_t>(share * static_cast<double>(part->size() - 1))];
    };
    std::printf("  %8.1f %8.1f %8.1f", at(0.5), at(0.99), part->back());
  }
  std::printf("\n");
  std::fflush(stdout);
}

/// Honest programs, one after the other. The error of the first step that failed.
absl::Status Live(const std::string& dir, Clock::time_point end, Times& times) {
  const auto timed = [](std::vector<double>& to, auto step) {
    const Clock::time_point start = Clock::now();
    auto result = step();
    to.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
    return result;
  };
  do {
    absl::StatusOr<RawSession> session = timed(times.connect, [&] { return RawSession::Open(dir); });
    if (!session.ok()) return session.status();
    const absl::StatusOr<v1::Lease> lease = timed(times.create, [&]() -> absl::StatusOr<v1::Lease> {
      absl::StatusOr<std::unique_ptr<Control>> control = Control::Open(dir);
      if (!control.ok()) return control.status();
      (*control)->SetSessionToken(session->token);
      return (*control)->CreateLease(OneDevice(64 * kMiB));
    });
    if (!lease.ok()) return lease.status();
    for (std::uint64_t id = 1; id <= 4; ++id) {
      const absl::Status grown = timed(times.grow, [&] {
        return session->Grow(id, lease->devices(0).id(), 2 * kMiB, /*timeout_ms=*/15'000).status();
      });
      if (!grown.ok()) return grown;
    }
    LGPU_RETURN_IF_ERROR(Close(*session));
  } while (Clock::now() < end);
  return absl::OkStatus();
}

/// `open_files`: the daemon's limit; 0: this process's.
bool Run(const char* name, const std::function<void(const Attack&)>& attack, std::chrono::seconds seconds,
         std::uint64_t open_files = 0) {
  DaemonProcess::Options options{.simulate = "1GiB"};
  options.open_files = open_files;
  options.open_to_everybody = true;
  const absl::StatusOr<std::unique_ptr<DaemonProcess>> daemon = DaemonProcess::Start(options);
  if (!daemon.ok()) {
    std::fprintf(stderr, "%s\n", std::string(daemon.status().message()).c_str());
    return false;
  }
  const absl::StatusOr<RawSession> holder = HoldHalf((*daemon)->dir());
  if (!holder.ok()) {
    std::fprintf(stderr, "%s\n", std::string(holder.status().message()).c_str());
    return false;
  }
  std::atomic<bool> over = false;
  std::thread attacker;
  if (attack) {
    attacker = std::thread([&] {
      // The raw system call changes this thread alone: the daemon sees its connections as the attacker's.
      if (::syscall(SYS_setresuid, -1, kAttacker, -1) != 0) std::abort();
      attack({.dir = (*daemon)->dir(), .over = over});
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
  Times times;
  const absl::Status lived = Live((*daemon)->dir(), Clock::now() + seconds, times);
  over = true;
  if (attacker.joinable()) attacker.join();
  if (!lived.ok()) {
    std::printf("%-28s FAILED after %zu grants: %s\n", name, times.grow.size(),
                std::string(lived.message()).c_str());
    return false;
  }
  Print(name, std::move(times));
  return true;
}

int Main(std::chrono::seconds seconds) {
  if (::geteuid() != 0) {
    std::printf("only root may become several users; nothing is measured\n");
    return 77;
  }
  const OpenFilesLimit files(OpenFilesLimit::kAll);
  std::printf("%-28s %5s  %26s  %26s  %26s\n%-28s %5s", "", "", "connect", "create", "grow", "attack",
              "grows");
  for (int i = 0; i < 3; ++i) std::printf("  %8s %8s %8s", "p50 ms", "p99", "worst");
  std::printf("\n");
  bool ok = Run("none", {}, seconds);
  ok = Run("answers not read", AnswersNotRead, seconds) && ok;
  ok = Run("streams not read", StreamsNotRead, seconds) && ok;
  ok = Run("unfinished requests", UnfinishedRequests, seconds) && ok;
  ok = Run("leases that wait", LeasesThatWait, seconds) && ok;
  ok = Run("connections without a word", ConnectionsWithoutAWord, seconds) && ok;
  ok = Run("the whole card for a day", TheWholeCard, seconds) && ok;
  ok = Run("sessions without an end", Churn, seconds) && ok;
  ok = Run("sessions left behind", SessionsLeftBehind, seconds, /*open_files=*/256) && ok;
  ok = Run("none, again", {}, seconds) && ok;
  ok = RunTurnAttack(kAttacker, /*turns=*/12) && ok;
  return ok ? 0 : 1;
}

}  // namespace
}  // namespace lgpu::testing

int main(int argc, char** argv) {
  int seconds = 2;
  if (argc == 3 && std::string_view(argv[1]) == "--seconds") {
    seconds = std::atoi(argv[2]);
  } else if (argc != 1) {
    seconds = 0;
  }
  if (seconds < 1) {
    std::fprintf(stderr, "usage: lgpu_attacks [--seconds N]\n");
    return 2;
  }
  return lgpu::testing::Main(std::chrono::seconds(seconds));
}
