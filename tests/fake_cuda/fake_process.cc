#include "tests/fake_cuda/fake_process.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

namespace lgpu::fake_cuda {

std::shared_ptr<Allocation> Allocation::Hold(int memory, const Slot& slot) {
  void* const data = ::mmap(nullptr, slot.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory,
                            static_cast<off_t>(slot.offset));
  if (data == MAP_FAILED) return nullptr;
  ::madvise(data, slot.bytes, MADV_DONTFORK);
  return std::shared_ptr<Allocation>(new Allocation(slot.card, slot, static_cast<char*>(data)));
}

Allocation::~Allocation() { ::munmap(data, bytes); }

void Completion::Set() {
  const std::lock_guard lock(mutex);
  done = true;
  at = std::chrono::steady_clock::now();
  changed.notify_all();
}

void Completion::Wait() {
  std::unique_lock lock(mutex);
  while (!done) changed.wait(lock);
}

bool Completion::IsDone() {
  const std::lock_guard lock(mutex);
  return done;
}

Stream::Stream(Context* of) : context(of), thread_([this] { Run(); }) {}

Stream::~Stream() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void Stream::Queue(Work work) {
  const std::lock_guard lock(mutex_);
  work_.push_back(std::move(work));
  changed_.notify_all();
}

bool Stream::IsIdle() {
  const std::lock_guard lock(mutex_);
  return work_.empty();
}

void Stream::Drain() {
  std::unique_lock lock(mutex_);
  while (!work_.empty()) changed_.wait(lock);
}

bool Stream::Touches(std::uint64_t address, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  for (const Work& work : work_) {
    for (const Touch& touch : work.touches) {
      if (touch.address < address + bytes && address < touch.address + touch.bytes) return true;
    }
  }
  return false;
}

void Stream::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    while (work_.empty() && !ending_) changed_.wait(lock);
    if (work_.empty()) return;
    const std::function<void()>& run = work_.front().run;  // a deque keeps its front where it is
    lock.unlock();
    run();
    lock.lock();
    work_.pop_front();
    changed_.notify_all();
  }
}

Process& Process::This() {
  static Process* const process = [] {
    auto* const made = new Process;
    made->file = StateFile::OfThisProcess();
    return made;
  }();
  return *process;
}

Contexts& Process::ContextStack() {
  static thread_local Contexts stack;
  return stack;
}

void Process::Break(const char* rule, const std::string& text) {
  const StateFile::Lock lock(*file);
  file->AddViolation(rule, text);
}

char* Process::Reach(const Touch& touch, int card, const char* call) {
  char where[64];
  std::snprintf(where, sizeof(where), "%#lx of %lu bytes", static_cast<unsigned long>(touch.address),
                static_cast<unsigned long>(touch.bytes));
  auto reservation = reservations.upper_bound(touch.address);
  if (reservation == reservations.begin()) {
    Break("unmapped-access", std::string(call) + " of memory that is not the driver's, at " + where);
    return nullptr;
  }
  --reservation;
  std::uint64_t reached = touch.address;
  while (reached < touch.address + touch.bytes) {
    auto mapping = mappings.upper_bound(reached);
    if (mapping == mappings.begin() || (--mapping, reached >= mapping->first + mapping->second.bytes)) {
      Break("unmapped-access", std::string(call) + " of memory that is not mapped, at " + where);
      return nullptr;
    }
    const auto access = mapping->second.access.find(card);
    if (access == mapping->second.access.end() || access->second == 0) {
      const char* const rule =
          card == mapping->second.memory->card ? "access-before-set-access" : "peer-without-access";
      Break(rule, std::string(call) + " of memory without access, at " + where);
      return nullptr;
    }
    if (touch.writes && access->second != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
      Break("write-to-read-only", std::string(call) + " writes memory mapped for reading, at " + where);
      return nullptr;
    }
    reached = mapping->first + mapping->second.bytes;
  }
  return reservation->second.shadow + (touch.address - reservation->first);
}

bool Process::IsReserved(std::uint64_t address) const {
  auto at = reservations.upper_bound(address);
  return at != reservations.begin() && (--at, address < at->first + at->second.bytes);
}

bool Process::IsPageLocked(const void* address) const {
  const auto value = reinterpret_cast<std::uint64_t>(address);
  auto at = host_memory.upper_bound(value);
  return at != host_memory.begin() && (--at, value < at->first + at->second);
}

bool Process::IsInUse(std::uint64_t address, std::uint64_t bytes) {
  for (const auto& [key, stream] : streams) {
    if (stream->Touches(address, bytes)) return true;
  }
  for (const std::shared_ptr<Stream>& stream : zombies) {
    if (stream->Touches(address, bytes)) return true;
  }
  return false;
}

CUresult Process::CurrentContext(Context** context, const char* call) {
  const Contexts& stack = ContextStack();
  if (stack.empty() || stack.back() == nullptr || stack.back()->retained == 0) {
    Break("no-context", std::string(call) + " on a thread without a current context");
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  *context = stack.back();
  return sticky;
}

namespace {

// What a program that ends in good order has left behind.
__attribute__((destructor)) void ReportLeaks() {
  Process& process = Process::This();
  if (process.file == nullptr || process.pid != ::getpid()) return;
  std::vector<std::shared_ptr<Stream>> zombies;
  {
    const std::lock_guard lock(process.mutex);
    zombies.swap(process.zombies);
  }
  zombies.clear();
  const std::lock_guard lock(process.mutex);
  std::string left;
  const auto count = [&left](std::size_t number, const char* what) {
    if (number != 0) left += std::to_string(number) + " " + what + ", ";
  };
  count(process.handles.size(), "handles");
  count(process.mappings.size(), "mappings");
  count(process.reservations.size(), "address ranges");
  count(process.streams.size(), "streams");
  count(process.events.size(), "events");
  count(process.modules.size(), "modules");
  std::size_t retained = 0;
  for (const auto& [card, context] : process.contexts) retained += context->retained > 0 ? 1 : 0;
  count(retained, "contexts");
  if (!left.empty()) process.Break("leaked-handle", left.substr(0, left.size() - 2) + " at exit");
  int descriptors = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator it("/proc/self/fd", error), end; !error && it != end;
       it.increment(error)) {
    if (process.file->CardOfDescriptor(std::atoi(it->path().filename().c_str())) >= 0) ++descriptors;
  }
  if (descriptors != 0)
    process.Break("leaked-fd", std::to_string(descriptors) + " exported descriptors at exit");
}

}  // namespace
}  // namespace lgpu::fake_cuda
