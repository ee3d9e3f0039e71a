#include "tests/fuzz/memory_plane.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/device/simulated/simulated_backend.h"
#include "base/check.h"
#include "daemon/server/poll_waker.h"
#include "tests/support/broker_testing.h"

namespace lgpu::daemon {
namespace {

constexpr char kBoot[] = "01234567-89ab-cdef-0123-456789abcdef";
constexpr std::chrono::seconds kPatience{60};

template <typename Result>
auto Need(Result value) {
  LGPU_CHECK(value.ok());
  return *std::move(value);
}

}  // namespace

MemoryPlane::MemoryPlane() {
  config_.state_dir = directory_.path();
  now_ = Start(/*again=*/false);
}

MemoryPlane::~MemoryPlane() {
  now_->server->Stop();
  now_->reclaimer->Stop();
}

std::unique_ptr<MemoryPlane::Generation> MemoryPlane::Start(bool again) {
  auto next = std::make_unique<Generation>();
  next->backend = MakeSimulatedBackend(
      {.devices = {SimulatedDevice(0, Bytes(kCardChunks * kChunkBytes), "fuzz")}, .sparse = true});
  Journal::Opened found = Need(Journal::Open(directory_.path(), kBoot));
  next->journal = std::move(found.journal);
  const std::shared_ptr<PollWaker> waker = Need(PollWaker::Create());
  Broker::Options options = AllCardsOf(*next->backend);
  options.unconfirmed_waker = waker;
  const auto tick_waker = std::make_shared<ThreadWaker>();
  options.tick_waker = tick_waker;
  next->broker = Need(Broker::Create(*next->backend, *next->journal, options));
  next->ticker = Need(BrokerTicker::Start(*next->broker, tick_waker));
  next->leases = std::make_unique<LeaseTable>(config_, LeaseTable::Parts{.broker = *next->broker,
                                                                         .sessions = next->sessions,
                                                                         .events = next->events,
                                                                         .journal = next->journal.get()});
  next->reclaimer = Need(Reclaimer::Start(*next->broker, *next->leases, next->sessions,
                                          {.waker = waker, .grace = std::chrono::milliseconds(0)}));
  next->server = std::make_unique<SessionServer>(SessionServices{.broker = *next->broker,
                                                                 .leases = *next->leases,
                                                                 .sessions = next->sessions,
                                                                 .events = next->events,
                                                                 .budget = next->budget,
                                                                 .reclaimer = *next->reclaimer,
                                                                 .log_limit = next->log_limit,
                                                                 .outlives_daemon = true});
  if (!again) {
    next->journal->Settled();
    return next;
  }
  LGPU_CHECK(found.found == Journal::Found::kWhole);
  next->recovery = std::make_unique<Recovery>(RecoveryParts{.backend = *next->backend,
                                                            .broker = *next->broker,
                                                            .leases = *next->leases,
                                                            .sessions = next->sessions,
                                                            .reclaimer = *next->reclaimer,
                                                            .events = next->events,
                                                            .journal = *next->journal});
  next->server->SkipIds(SessionId{found.state.ids().session_id()});
  LGPU_CHECK(next->recovery->Run(found, {}, {}).ok());
  return next;
}

GeneratedChannel MemoryPlane::Connect() {
  std::array<int, 2> ends;
  LGPU_CHECK(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0);
  now_->server->Serve(UniqueFd(ends[0]), Need(GetPeerCredentials(ends[0])));
  return GeneratedChannel(UniqueFd(ends[1]));
}

Caller MemoryPlane::WhoHas(const std::string& token) const {
  return {.uid = ::getuid(), .session = now_->sessions.FindToken(token)};
}

absl::StatusOr<v1::Lease> MemoryPlane::CreateLease(const std::string& token, std::uint64_t chunks,
                                                   bool preallocate) {
  v1::CreateLeaseRequest request;
  request.set_name(absl::StrCat("lease", ++leases_made_));  // not one that is made up at random
  v1::LogicalDeviceSpec& device = *request.add_devices();
  device.set_memory_limit_bytes(chunks * kChunkBytes);
  device.set_mode(preallocate ? v1::LogicalDeviceSpec::MODE_PREALLOCATE : v1::LogicalDeviceSpec::MODE_GROWTH);
  return now_->leases->Create(WhoHas(token), request, std::chrono::steady_clock::now());
}

absl::StatusOr<v1::Lease> MemoryPlane::AttachLease(const std::string& token, const std::string& lease) {
  return now_->leases->Attach(WhoHas(token), lease);
}

void MemoryPlane::ResizeLease(const std::string& token, const std::string& lease, std::uint64_t chunks) {
  v1::ResizeLeaseRequest request;
  request.set_lease(lease);
  request.add_devices()->set_memory_limit_bytes(chunks * kChunkBytes);
  (void)now_->leases->Resize(WhoHas(token), request, std::chrono::steady_clock::now());
}

void MemoryPlane::RemoveLease(const std::string& token, const std::string& lease) {
  now_->leases->Remove(WhoHas(token), lease, std::chrono::steady_clock::now()).IgnoreError();
}

void MemoryPlane::Restart() {
  now_->broker->StopWaiting();
  now_->leases->Close();
  now_->events.Close();
  now_->server->Stop();
  now_->reclaimer->Stop();
  now_.reset();
  now_ = Start(/*again=*/true);
}

void MemoryPlane::EndSessions(std::size_t left) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (true) {
    now_->server->Reap();
    for (const std::shared_ptr<SessionState>& session : now_->sessions.All()) {
      if (session->phase() == SessionState::Phase::kAbsent) {
        now_->reclaimer->EndAbsent(session, /*is_gone=*/true);
      }
    }
    if (now_->server->size() == left && now_->sessions.size() == left) return;
    LGPU_CHECK(std::chrono::steady_clock::now() < deadline);
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

void MemoryPlane::WaitUntilHeld(Bytes bytes) const {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (now_->broker->Cards().front().view.held > bytes) {
    LGPU_CHECK(std::chrono::steady_clock::now() < deadline);
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  LGPU_CHECK(now_->broker->Cards().front().view.held == bytes);
}

void MemoryPlane::CheckEmpty() const {
  LGPU_CHECK_OP(now_->leases->size(), ==, 0u);
  const auto waker = Need(PollWaker::Create());
  LGPU_CHECK(now_->budget.TryTake(SessionId{~std::uint64_t{0}}, waker, now_->budget.limit()));
  now_->budget.GiveBack(now_->budget.limit());
}

void MemoryPlane::CheckInvariants() const {
  const absl::Status status = now_->broker->CheckInvariants();
  if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  LGPU_CHECK(status.ok());
}

}  // namespace lgpu::daemon
