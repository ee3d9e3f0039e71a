#include "cli/release_hook.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "lgpu/bytes.h"
#include "lgpu/status.h"

namespace lgpu::cli {
namespace {

constexpr int kLookEveryMs = 50;
constexpr int kMostReads = 64;  // in a row: a command may write for ever
constexpr std::size_t kLongestLine = 512;
constexpr int kExitTimedOut = 124;  // of timeout(1)

}  // namespace

ReleaseHook::ReleaseHook(std::string command, DaemonConnection& session, const ForwardedSignals& signals,
                         const v1::Lease& lease, pid_t program, const CommonOptions& options)
    : command_(std::move(command)),
      session_(session),
      signals_(signals),
      lease_(lease.id()),
      program_(program),
      options_(options),
      thread_([this] { Run(); }) {}

ReleaseHook::~ReleaseHook() {
  stopping_.store(true);
  {
    MutexLock lock(mutex_);
    changed_.NotifyAll();
  }
  thread_.join();
}

void ReleaseHook::Look() {
  std::vector<wire::Release> orders = session_.TakeReleases();
  if (orders.empty()) return;
  MutexLock lock(mutex_);
  for (wire::Release& order : orders) orders_.push_back(std::move(order));
  changed_.NotifyAll();
}

void ReleaseHook::Run() {
  while (true) {
    wire::Release order;
    {
      MutexLock lock(mutex_);
      while (orders_.empty() && !stopping_.load()) changed_.Wait(mutex_);
      if (stopping_.load()) return;
      order = std::move(orders_.front());
      orders_.pop_front();
    }
    const auto began = std::chrono::steady_clock::now();
    options_.Note(absl::StrCat("lgpu: another program lacks ", FormatBytes(Bytes(order.bytes)),
                               ", and this one is idle: running --release"));
    const absl::Status status = RunOnce(order);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    options_.Note(status.ok() ? absl::StrFormat("lgpu: --release ended well after %.1fs", took.count())
                              : absl::StrCat("lgpu: --release: ", status.message()));
    session_.AnswerRelease(order.release_id, status);
  }
}

absl::Status ReleaseHook::RunOnce(const wire::Release& order) {
  LGPU_ASSIGN_OR_RETURN(Pipe output, Pipe::Make());
  // timeout(1) puts the command into a process group of its own, so that all of it is ended.
  LGPU_ASSIGN_OR_RETURN(
      SpawnedProcess process,
      SpawnedProcess::Start(
          {.argv = {"timeout", "--kill-after=2",
                    absl::StrFormat("%.3f", static_cast<double>(order.limit_ms) / 1000), "/bin/sh", "-c",
                    command_},
           .environment = {{"LGPU_LEASE", lease_},
                           {"LGPU_RELEASE_PID", absl::StrCat(program_)},
                           {"LGPU_RELEASE_BYTES", absl::StrCat(order.bytes)}},
           .descriptors = {{output.write.get(), STDOUT_FILENO}, {output.write.get(), STDERR_FILENO}},
           .signal_mask = signals_.mask_before()}));
  output.write.Reset();
  return Follow(process, output.read.get());
}

absl::Status ReleaseHook::Follow(SpawnedProcess& process, int output) {
  std::string text;
  std::optional<int> code;
  bool told_to_end = false;
  while (!code) {
    if (stopping_.load() && !std::exchange(told_to_end, true)) ::kill(process.pid(), SIGTERM);
    // What the command leaves behind may keep the pipe open: its own end counts.
    code = process.TryWait();
    pollfd polled{output, POLLIN, 0};
    const int patience_ms = code ? 0 : kLookEveryMs;
    for (int reads = 0; reads < kMostReads; ++reads) {
      if (::poll(&polled, 1, patience_ms) <= 0) break;
      char bytes[4096];
      const ssize_t count = ::read(output, bytes, sizeof(bytes));
      if (count <= 0) break;
      text.append(bytes, static_cast<std::size_t>(count));
      PrintLines(text, false);
    }
    if (!code && (polled.revents & POLLHUP) != 0) ::poll(nullptr, 0, kLookEveryMs);
  }
  PrintLines(text, true);
  if (*code == 0) return absl::OkStatus();
  if (*code == kExitTimedOut) return absl::DeadlineExceededError("it took too long, and was ended");
  return absl::InternalError(absl::StrCat("it ended with ", *code));
}

void ReleaseHook::PrintLines(std::string& text, bool all) const {
  std::size_t begin = 0;
  while (begin < text.size()) {
    std::size_t end = text.find('\n', begin);
    const bool is_whole = end != std::string::npos;
    if (!is_whole && !all && text.size() - begin < kLongestLine) break;
    if (!is_whole) end = text.size();
    options_.Note(absl::StrCat("lgpu: --release: ", Printable(text.substr(begin, end - begin))));
    begin = is_whole ? end + 1 : end;
  }
  text.erase(0, begin);
}

}  // namespace lgpu::cli
