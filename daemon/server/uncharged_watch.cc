#include "daemon/server/uncharged_watch.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "allocator/broker/card_observer.h"
#include "base/process.h"

namespace lgpu::daemon {
namespace {

constexpr int kDeepest = 64;  // of a tree of processes
// "nvidia-cuda-mps-server" and "nvidia-cuda-mps-control", as the kernel cuts them.
constexpr char kMps[] = "nvidia-cuda-mps";

/// Any user can give a process this name, so the control process must be root's or of the user whose program
/// it excuses.
bool IsUnderMps(const CardObserver::Uncharged& use) {
  const std::optional<std::uint32_t> user = ProcessOwner(use.pid);
  return std::any_of(use.listed.begin(), use.listed.end(), [&](std::int64_t pid) {
    if (ProcessCommand(pid) != kMps) return false;
    const std::int64_t control = ParentProcess(pid);
    const std::optional<std::uint32_t> owner = ProcessOwner(control);
    return ProcessCommand(control) == kMps && owner && (*owner == 0 || owner == user);
  });
}

/// Empty: it is killed.
std::string Kill(const Process& process) {
  const long sent = ::syscall(SYS_pidfd_send_signal, process.pidfd.get(), SIGKILL, nullptr, 0u);
  return sent == 0 || errno == ESRCH ? "" : std::strerror(errno);
}

}  // namespace

LeaseKey UnchargedWatch::LeaseOf(std::int64_t pid) const {
  std::map<std::int64_t, LeaseKey> attached;
  for (const std::shared_ptr<SessionState>& session : sessions_.All()) {
    if (session->lease() && !session->process().IsGone()) attached[session->process().pid] = session->lease();
  }
  for (int depth = 0; depth < kDeepest && pid > 1; ++depth) {
    if (const auto found = attached.find(pid); found != attached.end()) return found->second;
    pid = ParentProcess(pid);
  }
  return LeaseKey();
}

void UnchargedWatch::Look() {
  std::set<std::int64_t> told;
  std::set<LeaseKey> leases;
  for (const CardObserver::Uncharged& use : broker_.observer().UnchargedUse()) {
    const LeaseKey lease = LeaseOf(use.pid);
    if (!lease || IsUnderMps(use)) continue;
    leases.insert(lease);
    told.insert(use.pid);
    if (!told_.contains(use.pid)) Act(use, lease);
  }
  told_ = std::move(told);
  std::erase_if(stopped_, [&](LeaseKey lease) {
    if (leases.contains(lease)) return false;
    broker_.SetStopped(lease, false);
    return true;
  });
}

std::string UnchargedWatch::ProgramOf(std::int64_t pid) const {
  for (const std::shared_ptr<SessionState>& session : sessions_.All()) {
    const std::string& command = session->identity().command;
    if (session->process().pid == pid && !command.empty()) return command;
  }
  const std::string name = ProcessCommand(pid);
  return name.empty() ? "a program that has ended" : name;
}

std::string UnchargedWatch::ReasonOf(const CardObserver::Uncharged& use) const {
  bool is_attached = false;
  std::uint64_t told = 0;  // by the program, which may tell anything
  for (const std::shared_ptr<SessionState>& session : sessions_.All()) {
    if (session->process().pid != use.pid || session->process().IsGone()) continue;
    is_attached = true;
    told = std::max(told, session->client_page()->kernel_heap.load(std::memory_order_relaxed));
  }
  if (!is_attached) {
    return "the program has no session with lgpud: it reaches the driver past lgpu, and none of its memory "
           "is "
           "charged";
  }
  const Bytes heap = std::min(Bytes(told), use.beside);
  const std::string of_heap = absl::StrCat(FormatBytes(heap),
                                           " of it are the heap of malloc in kernels, as the program has set "
                                           "it (cuCtxSetLimit, cudaDeviceSetLimit)");
  if (heap + use.allowed >= use.beside) return of_heap;
  constexpr char kLikely[] = "a large context or much code, variables of kernels (globals), stacks";
  if (heap > Bytes(0)) {
    return absl::StrCat(of_heap, "; likely causes of the rest: ", kLikely,
                        ", or allocations that bypass lgpu");
  }
  return absl::StrCat("likely causes: ", kLikely,
                      ", the heap of malloc in kernels, or allocations that bypass lgpu");
}

void UnchargedWatch::Act(const CardObserver::Uncharged& use, LeaseKey lease) {
  const std::string program = ProgramOf(use.pid), reason = ReasonOf(use);  // before it may be killed
  std::string text = absl::StrCat("uses ", FormatBytes(use.beside), " of GPU ", use.card_index,
                                  " beyond its charges and chunks, which is more than ",
                                  FormatBytes(use.allowed), " (memory.overhead_allowance) plus 64MiB");
  if (action_ == "stop") {
    broker_.SetStopped(lease, true);
    stopped_.insert(lease);
    absl::StrAppend(&text, ": the lease gets no more memory until it uses less");
  } else if (action_ == "kill") {
    const absl::StatusOr<Process> process = HoldProcess(use.pid);
    // While it is held, its pid is no other process's.
    if (!process.ok() || LeaseOf(use.pid) != lease) return;
    const std::string failure = Kill(*process);
    absl::StrAppend(&text, failure.empty() ? ": lgpud killed it"
                                           : absl::StrCat(": lgpud could not kill it (", failure,
                                                          "; docs/configuration.md, memory.on_uncharged)"));
  }
  absl::StrAppend(&text, "; ", reason, "; if the program needs this memory, raise memory.overhead_allowance");
  leases_.TellOf(lease, [&](const LeaseEvents& events, const Lease& of) {
    events.Uncharged(of, use.pid, program, text);
  });
}

}  // namespace lgpu::daemon
