// In the place of daemon/server/control_server.cc, which is gRPC's: calls of the control plane come from a
// queue and run on a few threads of lgpud. What gRPC bounds is not simulated.

#include "daemon/server/control_server.h"

#include <deque>
#include <utility>
#include <vector>

#include "base/thread.h"
#include "lgpu/status.h"
#include "tests/simulation/control_calls.h"
#include "tests/simulation/machine/mutex_watch.h"
#include "tests/simulation/machine/processes.h"

namespace lgpu::simulation {
namespace {

struct Call {
  ControlBody body;
  absl::Status status;
  bool is_done = false;
};

// Of the lgpud that serves.
struct Queue {
  const daemon::ControlService::Parts* parts = nullptr;
  MachineProcess* process = nullptr;
  std::deque<std::shared_ptr<Call>> calls;
};

Queue& TheQueue() {
  static Queue* const queue = new Queue();
  return *queue;
}

bool Serves() { return TheQueue().parts != nullptr && TheQueue().process->is_alive; }

}  // namespace

absl::Status CallControl(ControlBody body) {
  Scheduler& scheduler = *Scheduler::Here();
  scheduler.Step("control");
  if (!Serves()) return absl::UnavailableError("no lgpud serves");
  const MachineProcess* const server = TheQueue().process;
  auto call = std::make_shared<Call>(Call{.body = std::move(body), .status = {}, .is_done = false});
  TheQueue().calls.push_back(call);
  scheduler.WakeOne(&TheQueue());
  while (!call->is_done && server->is_alive) {
    scheduler.Block("a control call", call.get(), {}, scheduler.now() + std::chrono::milliseconds(100));
  }
  return call->is_done ? call->status : absl::UnavailableError("lgpud died during the call");
}

const Broker* ServingBroker() { return Serves() ? &TheQueue().parts->broker : nullptr; }

}  // namespace lgpu::simulation

namespace lgpu::daemon {

using simulation::Scheduler;

class ControlServer::Impl {
 public:
  explicit Impl(const ControlService::Parts& parts) : parts_(parts) {}
  ~Impl() { Stop(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  absl::Status Start() {
    simulation::StopWatchingMutex();  // an earlier lgpud's
    simulation::TheQueue() = {.parts = &parts_, .process = Scheduler::Self().process, .calls = {}};
    for (int i = 0; i < 3; ++i) {
      LGPU_ASSIGN_OR_RETURN(Thread thread, Thread::Start("lgpud-control", [this] { Work(); }));
      threads_.push_back(std::move(thread));
    }
    return absl::OkStatus();
  }

  void Stop() {
    if (std::exchange(stopped_, true)) return;
    simulation::Queue& queue = simulation::TheQueue();
    Scheduler::Here()->WakeAll(&queue);
    for (Thread& thread : threads_) thread.Join();
    if (queue.parts != &parts_) return;
    queue = {};
    simulation::StopWatchingMutex();
  }

 private:
  void Work() {
    Scheduler& scheduler = *Scheduler::Here();
    simulation::Queue& queue = simulation::TheQueue();
    while (true) {
      while (queue.calls.empty() && !stopped_) scheduler.Block("control calls", &queue, {}, {});
      if (queue.calls.empty()) return;
      const std::shared_ptr<simulation::Call> call = std::move(queue.calls.front());
      queue.calls.pop_front();
      call->status = stopped_ ? absl::UnavailableError("lgpud is stopping") : call->body(parts_.leases);
      scheduler.Step("control answer");
      call->is_done = true;
      scheduler.WakeAll(call.get());
    }
  }

  const ControlService::Parts parts_;
  bool stopped_ = false;
  std::vector<Thread> threads_;
};

ControlServer::ControlServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ControlServer::~ControlServer() = default;

absl::StatusOr<std::unique_ptr<ControlServer>> ControlServer::Start(const ControlService::Parts& parts) {
  auto impl = std::make_unique<Impl>(parts);
  LGPU_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<ControlServer>(new ControlServer(std::move(impl)));
}

// A program looks for lgpud by connecting: this is all that comes here.
absl::Status ControlServer::Serve(UniqueFd /*socket*/, const PeerCredentials& /*peer*/,
                                  std::optional<LeaseKey> /*only*/) {
  return absl::OkStatus();
}

void ControlServer::EndLease(LeaseKey /*lease*/) {}

void ControlServer::Stop() { impl_->Stop(); }

}  // namespace lgpu::daemon
