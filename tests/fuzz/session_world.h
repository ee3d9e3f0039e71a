#ifndef LGPU_TESTS_FUZZ_SESSION_WORLD_H_
#define LGPU_TESTS_FUZZ_SESSION_WORLD_H_

#include <google/protobuf/stubs/logging.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "tests/fuzz/hostile_client.h"
#include "tests/fuzz/input_reader.h"
#include "tests/fuzz/memory_plane.h"

namespace lgpu::daemon {

/// A step of a client of a SessionWorld, or one that is done to it.
enum class Deed {
  kConnect,
  kHello,
  kResume,
  kMakeLease,
  kAttach,
  kGrow,
  kAcknowledge,
  kAcknowledgeSomehow,
  kReturn,
  kAnswerTrim,
  kClose,
  kHang,
  kPacket,
  kAttest,
  kRestart,
  kResize,
  kRemoveLease,
  kBare,
  kBystander,
};

// Text that is not UTF-8, and every client that the daemon ends, would be a line of the log.
inline const bool kQuiet = [] {
  google::protobuf::SetLogHandler(nullptr);
  spdlog::set_level(spdlog::level::off);
  return true;
}();

inline std::ptrdiff_t CountDescriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                       std::filesystem::directory_iterator());
}

/// A SessionWorld is a daemon's memory plane with clients that send any frames, and a bystander that must not
/// notice them. Every frame is answered or ends the connection, the accounts agree after every step, a
/// session's memory stays counted, the bystander keeps its memory and is served, and in the end nothing is
/// left. Not thread-safe.
class SessionWorld {
 public:
  SessionWorld() {
    bystander_.Connect(plane_);
    bystander_.SayHello(2, 1, "bystander");
    bystander_.Settle();
    const v1::Lease lease =
        *plane_.CreateLease(bystander_.token(), MemoryPlane::kCardChunks, /*preallocate=*/false);
    bystanders_ = {.id = lease.id(), .device = lease.devices(0).id()};
    LGPU_CHECK(BystanderGrows());
  }

  /// Runs one of `steps`. A step reads the same bytes of the input in every set of steps.
  void Step(InputReader& input, std::span<const Deed> steps) {
    const Deed what = steps[input.Byte() % steps.size()];
    const std::uint8_t whom = input.Byte();
    HostileClient& client = clients_[whom % kClients];
    switch (what) {
      case Deed::kConnect:
        client.Connect(plane_);
        break;
      case Deed::kHello:
        SayHello(client, input);
        break;
      case Deed::kResume:
        Resume(client, input);
        break;
      case Deed::kMakeLease:
        MakeLease(client, input);
        break;
      case Deed::kAttach:
        Attach(client, input.Byte());
        break;
      case Deed::kGrow:
        Grow(client, input);
        break;
      case Deed::kAcknowledge:
        client.Acknowledge();
        break;
      case Deed::kAcknowledgeSomehow:
        AcknowledgeSomehow(client, input.Number());
        break;
      case Deed::kReturn:
        client.Return(Device(input), input);
        break;
      case Deed::kAnswerTrim:
        client.AnswerTrim(input.Byte());
        break;
      case Deed::kClose:
        client.Close();
        break;
      case Deed::kHang:
        client.Hang();
        break;
      case Deed::kPacket:
        SendPacket(client, input);
        break;
      case Deed::kAttest:
        client.Attest(Device(input), input, clients_[whom / kClients % kClients]);
        break;
      case Deed::kRestart:
        Restart();
        break;
      case Deed::kResize:
        ResizeLease(client, input);
        break;
      case Deed::kRemoveLease:
        RemoveLease(client, input);
        break;
      case Deed::kBare:
        client.SendBare(input.Byte());
        break;
      case Deed::kBystander:
        // The bystander is answered, also while other clients wait.
        if (BystanderGrows()) BystanderReturns();
        break;
    }
    if (whom < 0xc0) client.Settle();
    plane_.CheckInvariants();
    for (const HostileClient& each : clients_) LGPU_CHECK(plane_.Held(each.id()) >= each.SurelyHeld());
  }

  /// Ends all sessions; nothing is left.
  void End() {
    for (HostileClient& client : clients_) {
      client.Settle();
      if (client.state() == HostileClient::State::kLive) client.AwaitGrows();
      client.Hang();
    }
    plane_.EndSessions(1);
    CheckBystander();
    // No other session is left.
    LGPU_CHECK(BystanderGrows());
    BystanderReturns();
    CheckBystander();
    bystander_.Close();
    bystander_.Settle();
    LGPU_CHECK(bystander_.state() == HostileClient::State::kOver && bystander_.closed());
    plane_.EndSessions(0);
    plane_.WaitUntilHeld(Bytes());
    plane_.CheckInvariants();
    plane_.CheckEmpty();
    // Nor memory that only a descriptor keeps.
    for (HostileClient& client : clients_) client.Drop();
    bystander_.Drop();
    WaitForDescriptors();
  }

  const HostileClient& client(std::size_t i) const { return clients_[i]; }

 private:
  struct KnownLease {
    std::string id;
    std::uint64_t device = 0;
  };
  const KnownLease& Lease(InputReader& input) const { return leases_[input.Byte() % leases_.size()]; }
  std::uint64_t Device(InputReader& input) const {
    const std::size_t which = input.Byte();
    if (which >= 0xf8) return bystanders_.device;
    return which < 0xf0 && !leases_.empty() ? leases_[which % leases_.size()].device : which;
  }
  void MakeLease(HostileClient& client, InputReader& input) {
    const std::uint8_t size = input.Byte();
    if (leases_.size() >= kMostLeases) return;
    const absl::StatusOr<v1::Lease> lease =
        plane_.CreateLease(client.token(), size % (MemoryPlane::kCardChunks + 2), size >= 0x80);
    if (lease.ok()) leases_.push_back({.id = lease->id(), .device = lease->devices(0).id()});
  }
  void Attach(const HostileClient& client, std::size_t which) {
    if (which >= 0xf8) {
      (void)plane_.AttachLease(client.token(), bystanders_.id);
    } else if (!leases_.empty()) {
      (void)plane_.AttachLease(client.token(), leases_[which % leases_.size()].id);
    }
  }
  // Threads of sessions that ended close theirs as the last thing.
  void WaitForDescriptors() const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (CountDescriptors() > idle_ && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    LGPU_CHECK_OP(CountDescriptors(), ==, idle_);
  }
  bool BystanderGrows() {
    const std::size_t before = bystander_.chunks().size();
    bystander_.Grow({.device = bystanders_.device, .at_least = 1, .wanted = 1});
    bystander_.AwaitGrows();
    bystander_.Acknowledge();
    bystander_.Settle();
    return bystander_.chunks().size() == before + 1;
  }
  void BystanderReturns() {
    bystander_.ReturnOne();
    bystander_.Settle();
    LGPU_CHECK_OP(bystander_.chunks().size(), ==, 1u);
  }
  // One value after another: the order in which arguments are evaluated is not said anywhere.
  static void SayHello(HostileClient& client, InputReader& input) {
    const std::uint8_t versions = input.Byte();
    client.SayHello(versions % 4, versions / 4 % 4, input.Text());
  }
  void Resume(HostileClient& client, InputReader& input) {
    HostileClient& whose = clients_[input.Byte() % kClients];
    client.Resume(whose, input.Byte());
  }
  static void SendPacket(HostileClient& client, InputReader& input) {
    const std::size_t fd_count = input.Byte() % 4;
    client.SendPacket(input.Text(), fd_count);
  }
  void ResizeLease(HostileClient& client, InputReader& input) {
    if (leases_.empty()) return;
    const KnownLease& lease = Lease(input);
    plane_.ResizeLease(client.token(), lease.id, input.Byte() % (2 * MemoryPlane::kCardChunks));
  }
  // Sizes are in mebibytes, because the input's numbers are small.
  void Grow(HostileClient& client, InputReader& input) const {
    constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
    const std::uint64_t device = Device(input);
    const std::uint64_t at_least = input.Number() * kMiB;
    const std::uint64_t wanted = input.Number() * kMiB;
    const std::uint64_t timeout_ms = input.Number();
    client.Grow({.device = device,
                 .at_least = at_least,
                 .wanted = wanted,
                 .timeout_ms = timeout_ms < 0xf8 ? timeout_ms / 8 : timeout_ms,
                 .ahead = timeout_ms % 2 == 1});
  }
  static void AcknowledgeSomehow(HostileClient& client, std::uint64_t how) {
    how < 0x80 ? client.AcknowledgeLater() : client.AcknowledgeWrongly(how);
  }
  void RemoveLease(HostileClient& client, InputReader& input) {
    if (leases_.empty()) return;
    plane_.RemoveLease(client.token(), Lease(input).id);
    // Its sessions were told to end.
    for (HostileClient& each : clients_) each.Settle();
  }
  void Restart() {
    if (++restarts_ > 3) return;
    std::array<Bytes, kClients> held;
    for (std::size_t i = 0; i < kClients; ++i) held[i] = clients_[i].SurelyHeld();
    plane_.Restart();
    plane_.CheckInvariants();
    // Granted memory is still charged, before any client resumed.
    for (std::size_t i = 0; i < kClients; ++i) LGPU_CHECK(plane_.Held(clients_[i].id()) >= held[i]);
    for (HostileClient& client : clients_) client.Settle();
    bystander_.Settle();
    bystander_.ComeBack(plane_);
    LGPU_CHECK_OP(bystander_.chunks().size(), ==, 1u);
  }
  void CheckBystander() {
    bystander_.Settle();
    LGPU_CHECK(bystander_.state() == HostileClient::State::kLive);
    const HostileClient::Held& held = bystander_.chunks().begin()->second;
    struct stat info = {};
    LGPU_CHECK(::fstat(held.fd.get(), &info) == 0);
    LGPU_CHECK(info.st_size == static_cast<off_t>(MemoryPlane::kChunkBytes));
    plane_.WaitUntilHeld(Bytes(MemoryPlane::kChunkBytes));
  }

  static constexpr std::size_t kClients = 3;
  static constexpr std::size_t kMostLeases = 8;

  MemoryPlane plane_;
  const std::ptrdiff_t idle_ = CountDescriptors();
  HostileClient::Granted granted_;
  HostileClient bystander_{granted_};
  KnownLease bystanders_;
  std::array<HostileClient, kClients> clients_{HostileClient(granted_), HostileClient(granted_),
                                               HostileClient(granted_)};
  std::vector<KnownLease> leases_;
  int restarts_ = 0;
};

}  // namespace lgpu::daemon

#endif  // LGPU_TESTS_FUZZ_SESSION_WORLD_H_
