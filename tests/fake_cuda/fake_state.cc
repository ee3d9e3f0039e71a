#include "tests/fake_cuda/fake_state.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>

#include "base/check.h"

namespace lgpu::fake_cuda {
namespace {

std::mutex& ThreadLock() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}

UniqueFd Reopen(const std::string& path) { return UniqueFd(::open(path.c_str(), O_RDWR | O_CLOEXEC)); }

bool LockFileRange(int fd, short type, std::uint64_t offset, std::uint64_t bytes, int command) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(offset);
  lock.l_len = static_cast<off_t>(bytes);
  int result;
  do {
    result = ::fcntl(fd, command, &lock);
  } while (result != 0 && errno == EINTR);
  return command == F_OFD_GETLK ? result == 0 && lock.l_type == F_UNLCK : result == 0;
}

}  // namespace

StateFile* StateFile::OfThisProcess() {
  static StateFile* const file = []() -> StateFile* {
    const char* const path = std::getenv(kVariable);
    if (path == nullptr || *path == '\0') return nullptr;
    UniqueFd fd = Reopen(path);
    if (!fd) return nullptr;
    void* const data = ::mmap(nullptr, sizeof(State), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (data == MAP_FAILED) return nullptr;
    auto* const state = static_cast<State*>(data);
    if (state->magic != State::kMagic) return nullptr;
    auto* const made = new StateFile(std::move(fd), state);
    const std::string directory(path, std::strrchr(path, '/') + 1);
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    made->self_links_ = {folder / "proc/self",
                         folder.parent_path().parent_path() / "self"};  // or /proc/PID/fd
    for (int i = 0; i < state->card_count; ++i) {
      made->memories_.push_back(Reopen(directory + std::to_string(state->cards[i].memory_fd)));
    }
    return made;
  }();
  return file;
}

StateFile::StateFile(UniqueFd fd, State* state, const std::vector<UniqueFd>& memories)
    : fd_(std::move(fd)), state_(state) {
  for (const UniqueFd& memory : memories) {
    memories_.push_back(Reopen("/proc/self/fd/" + std::to_string(memory.get())));
  }
}

std::int32_t StateFile::pid() const {
  for (const std::string& link : self_links_) {
    char target[32] = {};
    if (::readlink(link.c_str(), target, sizeof(target) - 1) > 0) return std::atoi(target);
  }
  return ::getpid();
}

UniqueFd StateFile::OpenMemory(int card) {
  return Reopen("/proc/self/fd/" + std::to_string(memories_[static_cast<std::size_t>(card)].get()));
}

int StateFile::CardOfDescriptor(int fd) {
  struct stat theirs {};
  // The file offset of an exported descriptor is its allocation's; that of the fake driver's and NVML's own
  // descriptors is 0.
  if (::lseek(fd, 0, SEEK_CUR) <= 0 || ::fstat(fd, &theirs) != 0) return -1;
  for (std::size_t i = 0; i < memories_.size(); ++i) {
    struct stat mine {};
    if (::fstat(memories_[i].get(), &mine) == 0 && mine.st_ino == theirs.st_ino &&
        mine.st_dev == theirs.st_dev) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

StateFile::Lock::Lock(StateFile& file) : file_(file) {
  ThreadLock().lock();
  LockFileRange(file_.fd_.get(), F_WRLCK, 0, 1, F_OFD_SETLKW);
}

StateFile::Lock::~Lock() {
  LockFileRange(file_.fd_.get(), F_UNLCK, 0, 1, F_OFD_SETLK);
  ThreadLock().unlock();
}

bool StateFile::LockRange(int memory, std::uint64_t offset, std::uint64_t bytes) {
  return LockFileRange(memory, F_RDLCK, offset, bytes, F_OFD_SETLK);
}

void StateFile::Sweep() {
  if (state_->hold_freed) return;
  for (Slot& slot : state_->slots) {
    if (!slot.used) continue;
    const int memory = memories_[static_cast<std::size_t>(slot.card)].get();
    if (!LockFileRange(memory, F_WRLCK, slot.offset, slot.bytes, F_OFD_GETLK)) continue;
    if (state_->freed_late_ms > 0) {
      const std::int64_t now =
          std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
      if (slot.freed_at == 0) slot.freed_at = now;
      if (now - slot.freed_at < std::int64_t{state_->freed_late_ms} * 1000000) continue;
    }
    ::fallocate(memory, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(slot.offset),
                static_cast<off_t>(slot.bytes));
    state_->cards[slot.card].used -= slot.charged;
    slot.used = false;
  }
}

Slot* StateFile::Allocate(int card_index, std::uint64_t bytes, Kind kind, int memory) {
  Card& card = state_->cards[card_index];
  const std::uint64_t charged = kind == Kind::kOnHost ? 0 : bytes;
  if (card.total < charged) return nullptr;
  if (card.used > card.total - charged) Sweep();
  if (card.used > card.total - charged) return nullptr;
  Slot* const end = state_->slots + State::kMaxSlots;
  Slot* slot = std::find_if(state_->slots, end, [](const Slot& s) { return !s.used; });
  if (slot == end) {
    Sweep();
    slot = std::find_if(state_->slots, end, [](const Slot& s) { return !s.used; });
  }
  if (slot == end || !LockRange(memory, card.next_offset, bytes)) return nullptr;
  *slot = {.used = true,
           .is_context = kind == Kind::kContext,
           .card = card_index,
           .pid = pid(),
           .offset = card.next_offset,
           .bytes = bytes,
           .freed_at = 0,
           .charged = charged};
  card.next_offset += bytes;
  card.used += charged;
  return slot;
}

Slot* StateFile::FindSlot(int card, std::uint64_t offset) {
  for (Slot& slot : state_->slots) {
    if (slot.used && slot.card == card && slot.offset == offset) return &slot;
  }
  return nullptr;
}

void StateFile::AddViolation(std::string_view rule, const std::string& text) {
  if (state_->any_program) return;
  std::fprintf(stderr, "fake CUDA: pid %d broke the rule %.*s: %s\n", pid(), static_cast<int>(rule.size()),
               rule.data(), text.c_str());
  if (state_->violation_count >= State::kMaxViolations) return;
  Violation& violation = state_->violations[state_->violation_count++];
  violation.pid = pid();
  std::snprintf(violation.rule, sizeof(violation.rule), "%.*s", static_cast<int>(rule.size()), rule.data());
  std::snprintf(violation.text, sizeof(violation.text), "%s", text.c_str());
}

int StateFile::IndexOfCall(std::string_view call) {
  for (int i = 0; i < State::kMaxCalls; ++i) {
    CallCount& entry = state_->calls[i];
    if (entry.call[0] == '\0') {
      std::snprintf(entry.call, sizeof(entry.call), "%.*s", static_cast<int>(call.size()), call.data());
    }
    if (call == entry.call) return i;
  }
  LGPU_CHECK(false);
  return 0;
}

int StateFile::TakeFault(std::string_view call, std::int32_t of) {
  for (Fault& fault : state_->faults) {
    if (call != fault.call || (fault.pid != 0 && fault.pid != of)) continue;
    if (fault.skip > 0) {
      --fault.skip;
      return 0;
    }
    if (fault.times > 0 && --fault.times == 0) fault.call[0] = '\0';
    return fault.result;
  }
  return 0;
}

ProcessContexts& StateFile::ContextsOfThisProcess() {
  const std::int32_t own = pid();
  for (ProcessContexts& entry : state_->processes) {
    if (entry.pid == own || entry.pid == 0) {
      entry.pid = own;
      return entry;
    }
  }
  return state_->processes[0];
}

std::string UuidText(const Card& card) {
  const unsigned char* u = card.uuid;
  char text[48];
  std::snprintf(text, sizeof(text), "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
                card.is_mig ? "MIG" : "GPU", u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9],
                u[10], u[11], u[12], u[13], u[14], u[15]);
  return text;
}

}  // namespace lgpu::fake_cuda
