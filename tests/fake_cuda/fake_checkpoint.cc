#include "tests/fake_cuda/fake_checkpoint.h"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

namespace lgpu::fake_cuda {
namespace {

using Request = CheckpointTarget::Request;

constexpr int kPauseMicroseconds = 200;

/// Memory of the card whose contents are in host memory.
struct Moved {
  Allocation* allocation = nullptr;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> contents;  // offset and bytes; 0 elsewhere
  char* place = nullptr;  // of the new mapping, before it takes the place of the old one
};

/// The parts of a range of a card's memory that were ever written.
std::vector<std::pair<std::uint64_t, std::uint64_t>> WrittenParts(int memory, std::uint64_t offset,
                                                                  std::uint64_t bytes) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> parts;
  const auto end = static_cast<off_t>(offset + bytes);
  off_t at = static_cast<off_t>(offset);
  while (at < end) {
    const off_t data = ::lseek(memory, at, SEEK_DATA);
    if (data < 0 || data >= end) break;
    at = std::min(::lseek(memory, data, SEEK_HOLE), end);
    parts.emplace_back(static_cast<std::uint64_t>(data) - offset, static_cast<std::uint64_t>(at - data));
  }
  return parts;
}

void CopyParts(const Moved& moved, char* to, const char* from) {
  for (const auto& [offset, bytes] : moved.contents) std::memcpy(to + offset, from + offset, bytes);
}

void Unmap(const std::vector<Moved>& all) {
  for (const Moved& moved : all) ::munmap(moved.place, moved.allocation->bytes);
}

/// Puts the new mappings where the old ones are.
void PutInPlace(std::vector<Moved>& all) {
  for (Moved& moved : all) {
    const std::uint64_t bytes = moved.allocation->bytes;
    ::madvise(moved.place, bytes, MADV_DONTFORK);
    ::mremap(moved.place, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, moved.allocation->data);
    moved.place = nullptr;
  }
}

class Server {
 public:
  explicit Server(Process& process) : process_(process), file_(*process.file) {}

  /// Takes an entry for this thread. False: there is none.
  bool Register();
  void Run();

 private:
  CUresult Serve(Request request, std::int64_t give_up_at);
  CUresult Lock(std::int64_t give_up_at);
  CUresult Checkpoint();
  CUresult Restore();
  bool HasFault(const std::atomic<bool>& fault) const {
    const std::int32_t of = file_.state().checkpoint_faults_of;
    return fault && (of == 0 || of == target_->pid);
  }
  bool AllStreamsAreIdle() const;
  void SetState(CUprocessState state);
  /// The host's addresses of mapped memory that has moved: without memory, or those of the new memory.
  void MapAgain(const std::vector<Moved>& all, bool has_memory);

  Process& process_;
  StateFile& file_;
  CheckpointTarget* target_ = nullptr;
  CUprocessState state_ = CU_PROCESS_STATE_RUNNING;
  std::vector<Moved> moved_;
  bool is_broken_ = false;
};

bool Server::Register() {
  const std::uint64_t name_space = PidNamespace();
  const StateFile::Lock lock(file_);
  auto& targets = file_.state().targets;
  const auto is_own = [&](const CheckpointTarget& target) {
    return target.pid == ::getpid() && target.pid_namespace == name_space;
  };
  const auto is_free = [](const CheckpointTarget& target) { return target.pid == 0; };
  const auto is_over = [&](const CheckpointTarget& target) {
    return target.pid_namespace == name_space && ::syscall(SYS_tgkill, target.pid, target.thread, 0) != 0 &&
           errno == ESRCH;
  };
  auto found = std::find_if(std::begin(targets), std::end(targets), is_own);  // of before an exec
  if (found == std::end(targets)) found = std::find_if(std::begin(targets), std::end(targets), is_free);
  if (found == std::end(targets)) found = std::find_if(std::begin(targets), std::end(targets), is_over);
  if (found == std::end(targets)) return false;
  target_ = found;
  target_->pid = ::getpid();
  target_->thread = static_cast<std::int32_t>(::syscall(SYS_gettid));
  target_->pid_namespace = name_space;
  target_->state = CU_PROCESS_STATE_RUNNING;
  target_->checkpoints = target_->restores = 0;
  std::fill(std::begin(target_->results), std::end(target_->results), CUDA_ERROR_INVALID_VALUE);
  target_->answered = target_->asked.load();
  return true;
}

void Server::Run() {
  std::uint32_t served = target_->answered;
  while (true) {
    while (target_->asked == served) WaitForChange(target_->asked, served, /*is_short=*/false);
    Request request{};
    std::int64_t give_up_at = 0;
    {
      const StateFile::Lock lock(file_);
      request = target_->request;
      give_up_at = target_->give_up_at;
    }
    const CUresult result = Serve(request, give_up_at);
    {
      const StateFile::Lock lock(file_);
      ++served;
      target_->results[served % std::size(target_->results)] = static_cast<std::int32_t>(result);
      target_->answered = served;
    }
    TellChange(target_->answered);
  }
}

CUresult Server::Serve(Request request, std::int64_t give_up_at) {
  switch (request) {
    case Request::kState:
      return CUDA_SUCCESS;
    case Request::kLock:
      return state_ == CU_PROCESS_STATE_RUNNING ? Lock(give_up_at) : CUDA_ERROR_ILLEGAL_STATE;
    case Request::kCheckpoint:
      return state_ == CU_PROCESS_STATE_LOCKED ? Checkpoint() : CUDA_ERROR_ILLEGAL_STATE;
    case Request::kRestore:
      return state_ == CU_PROCESS_STATE_CHECKPOINTED ? Restore() : CUDA_ERROR_ILLEGAL_STATE;
    case Request::kUnlock:
      if (state_ != CU_PROCESS_STATE_LOCKED) return CUDA_ERROR_ILLEGAL_STATE;
      SetState(CU_PROCESS_STATE_RUNNING);
      process_.gate.Open();
      return CUDA_SUCCESS;
    case Request::kNone:
      break;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult Server::Lock(std::int64_t give_up_at) {
  const State& state = file_.state();
  const auto is_late = [&] { return give_up_at != 0 && NanosecondsNow() >= give_up_at; };
  if (HasFault(state.lock_kills)) {
    ::signal(SIGSEGV, SIG_DFL);
    sigset_t held;
    sigemptyset(&held);
    sigaddset(&held, SIGSEGV);
    ::pthread_sigmask(SIG_UNBLOCK, &held, nullptr);
    ::raise(SIGSEGV);
  }
  while (HasFault(state.lock_hangs)) ::usleep(kPauseMicroseconds);
  if (is_late()) return CUDA_ERROR_NOT_READY;  // the process was stopped
  process_.gate.Shut();
  while (!process_.gate.IsEmpty() || !AllStreamsAreIdle()) {
    if (is_late()) {
      process_.gate.Open();
      return CUDA_ERROR_NOT_READY;
    }
    ::usleep(kPauseMicroseconds);
  }
  SetState(CU_PROCESS_STATE_LOCKED);
  return CUDA_SUCCESS;
}

bool Server::AllStreamsAreIdle() const {
  const std::lock_guard lock(process_.mutex);
  const auto is_idle = [](const std::shared_ptr<Stream>& stream) {
    return stream == nullptr || stream->IsIdle();
  };
  const auto has_idle_default = [&](const auto& context) { return is_idle(context->default_stream); };
  return std::all_of(process_.streams.begin(), process_.streams.end(),
                     [&](const auto& entry) { return is_idle(entry.second); }) &&
         std::all_of(process_.zombies.begin(), process_.zombies.end(), is_idle) &&
         std::all_of(process_.contexts.begin(), process_.contexts.end(),
                     [&](const auto& entry) { return has_idle_default(entry.second); }) &&
         std::all_of(process_.made_contexts.begin(), process_.made_contexts.end(), has_idle_default);
}

CUresult Server::Checkpoint() {
  const std::lock_guard lock(process_.mutex);
  const bool has_managed = std::any_of(process_.pieces.begin(), process_.pieces.end(), [](const auto& entry) {
    return entry.second.kind == Piece::Kind::kManaged;
  });
  if (has_managed) return CUDA_ERROR_NOT_SUPPORTED;
  std::vector<Moved> all;
  for (Allocation* const allocation : Allocation::All()) {
    if (allocation->is_shared && HasFault(file_.state().checkpoint_refuses_shared)) {
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (allocation->is_on_card && !allocation->is_shared) all.push_back({allocation, {}, nullptr});
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Allocation& allocation = *all[i].allocation;
    const UniqueFd memory = file_.OpenMemory(allocation.card);
    void* const place = ::mmap(nullptr, allocation.bytes, PROT_READ | PROT_WRITE, kReserved, -1, 0);
    if (!memory || place == MAP_FAILED) {
      if (place != MAP_FAILED) ::munmap(place, allocation.bytes);
      all.resize(i);
      Unmap(all);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    all[i].place = static_cast<char*>(place);
    all[i].contents = WrittenParts(memory.get(), allocation.offset, allocation.bytes);
    CopyParts(all[i], all[i].place, allocation.data);
  }
  // The last mapping of the card's memory goes, and with it the memory.
  PutInPlace(all);
  MapAgain(all, /*has_memory=*/false);
  moved_ = std::move(all);
  SetState(CU_PROCESS_STATE_CHECKPOINTED);
  return CUDA_SUCCESS;
}

// As a public thread reports it: after a restore without room no later one succeeds.
CUresult Server::Restore() {
  if (is_broken_) return CUDA_ERROR_OPERATING_SYSTEM;
  while (HasFault(file_.state().restore_hangs)) ::usleep(kPauseMicroseconds);
  const std::lock_guard lock(process_.mutex);
  std::vector<Moved> all;
  {
    const StateFile::Lock state(file_);
    for (const Moved& moved : moved_) {
      Allocation& allocation = *moved.allocation;
      const UniqueFd memory = file_.OpenMemory(allocation.card);
      const auto kind = allocation.is_context ? StateFile::Kind::kContext : StateFile::Kind::kMemory;
      const Slot* const slot =
          memory ? file_.Allocate(allocation.card, allocation.bytes, kind, memory.get()) : nullptr;
      void* const place = slot == nullptr ? MAP_FAILED
                                          : ::mmap(nullptr, slot->bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                                                   memory.get(), static_cast<off_t>(slot->offset));
      if (place == MAP_FAILED) {
        Unmap(all);
        is_broken_ = true;
        return CUDA_ERROR_OUT_OF_MEMORY;
      }
      allocation.offset = slot->offset;
      all.push_back({&allocation, moved.contents, static_cast<char*>(place)});
    }
  }
  for (const Moved& moved : all) CopyParts(moved, moved.place, moved.allocation->data);
  PutInPlace(all);
  MapAgain(all, /*has_memory=*/true);
  moved_.clear();
  SetState(CU_PROCESS_STATE_LOCKED);
  return CUDA_SUCCESS;
}

void Server::MapAgain(const std::vector<Moved>& all, bool has_memory) {
  for (const auto& [address, mapping] : process_.mappings) {
    const bool has_moved =
        std::any_of(all.begin(), all.end(),
                    [of = mapping.memory.get()](const Moved& moved) { return moved.allocation == of; });
    if (!has_moved) continue;
    const auto& [start, reservation] = *std::prev(process_.reservations.upper_bound(address));
    char* const seen = reservation.shadow + (address - start);
    if (has_memory) {
      ::mremap(mapping.memory->data, 0, mapping.bytes, MREMAP_MAYMOVE | MREMAP_FIXED, seen);
    } else {
      ::mmap(seen, mapping.bytes, PROT_NONE, kReserved | MAP_FIXED, -1, 0);
    }
    ::madvise(seen, mapping.bytes, MADV_DONTFORK);
  }
}

void Server::SetState(CUprocessState state) {
  const StateFile::Lock lock(file_);
  if (state == CU_PROCESS_STATE_CHECKPOINTED) ++target_->checkpoints;
  if (state_ == CU_PROCESS_STATE_CHECKPOINTED) ++target_->restores;
  state_ = state;
  target_->state = static_cast<std::int32_t>(state);
}

struct ThreadStart {
  Process& process;
  Completion registered;
};

void* ServeForEver(void* argument) {
  auto& start = *static_cast<ThreadStart*>(argument);
  ::pthread_setname_np(::pthread_self(), "fake-checkpoint");
  Server server(start.process);
  const bool is_known = server.Register();
  start.registered.Set();
  if (is_known) server.Run();
  return nullptr;
}

}  // namespace

void ServeCheckpoints(Process& process) {
  // It takes no signal of the program's.
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  ThreadStart start{process, {}};
  pthread_t thread;
  if (::pthread_create(&thread, nullptr, ServeForEver, &start) == 0) {
    ::pthread_detach(thread);
    start.registered.Wait();
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

std::uint64_t PidNamespace() {
  struct stat about {};
  return ::stat("/proc/self/ns/pid", &about) == 0 ? about.st_ino : 0;
}

std::int64_t NanosecondsNow() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

void WaitForChange(std::atomic<std::uint32_t>& word, std::uint32_t seen, bool is_short) {
  const timespec most{.tv_sec = 0, .tv_nsec = 20'000'000};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, is_short ? &most : nullptr, nullptr, 0);
}

void TellChange(std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, 0x7fffffff, nullptr, nullptr, 0);
}

}  // namespace lgpu::fake_cuda
