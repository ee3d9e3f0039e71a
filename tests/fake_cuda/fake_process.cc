#include "tests/fake_cuda/fake_process.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "tests/fake_cuda/fake_graphs.h"
#include "tests/fake_cuda/fake_pools.h"

namespace lgpu::fake_cuda {
namespace {

struct Registry {
  std::mutex mutex;
  std::set<Allocation*> allocations;
};

Registry& TheRegistry() {
  static auto* const registry = new Registry;
  return *registry;
}

}  // namespace

std::shared_ptr<Allocation> Allocation::Hold(int memory, const Slot& slot) {
  void* const data = ::mmap(nullptr, slot.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory,
                            static_cast<off_t>(slot.offset));
  if (data == MAP_FAILED) return nullptr;
  ::madvise(data, slot.bytes, MADV_DONTFORK);
  return std::shared_ptr<Allocation>(new Allocation(slot, static_cast<char*>(data)));
}

std::vector<Allocation*> Allocation::All() {
  Registry& registry = TheRegistry();
  const std::lock_guard lock(registry.mutex);
  return {registry.allocations.begin(), registry.allocations.end()};
}

Allocation::Allocation(const Slot& slot, char* address)
    : card(slot.card),
      offset(slot.offset),
      bytes(slot.bytes),
      data(address),
      is_context(slot.is_context),
      is_on_card(slot.charged != 0) {
  Registry& registry = TheRegistry();
  const std::lock_guard lock(registry.mutex);
  registry.allocations.insert(this);
}

Allocation::~Allocation() {
  {
    Registry& registry = TheRegistry();
    const std::lock_guard lock(registry.mutex);
    registry.allocations.erase(this);
  }
  ::munmap(data, bytes);
}

void Gate::Enter() {
  std::uint32_t seen = inside_.load();
  while (true) {
    if ((seen & kShut) != 0) {
      inside_.wait(seen);
      seen = inside_.load();
    } else if (inside_.compare_exchange_weak(seen, seen + 1)) {
      return;
    }
  }
}

void Gate::Open() {
  inside_.fetch_and(~kShut);
  inside_.notify_all();
}

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

Stream::Stream(Context* of, unsigned stream_flags)
    : context(of), flags(stream_flags), thread_([this] { Run(); }) {}

Stream::~Stream() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void Stream::Queue(Work work) {
  if (capture != nullptr) {
    capture->nodes.push_back(std::make_shared<GraphNode>(GraphNode{.run = std::move(work.run)}));
    return;
  }
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
    if (run != nullptr) run();
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
  const auto holds = [value](const std::map<std::uint64_t, std::uint64_t>& ranges) {
    auto at = ranges.upper_bound(value);
    return at != ranges.begin() && (--at, value - at->first < at->second);
  };
  return holds(host_memory) || holds(registered);
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

int Process::OrdinalOf(int card) const {
  const auto at = std::find(cards.begin(), cards.end(), card);
  return at == cards.end() ? -1 : static_cast<int>(at - cards.begin());
}

std::vector<std::shared_ptr<Stream>> Process::StreamsOf(const Context* context) const {
  std::vector<std::shared_ptr<Stream>> found;
  for (const auto& [key, stream] : streams) {
    if (stream->context == context) found.push_back(stream);
  }
  if (context->default_stream != nullptr) found.push_back(context->default_stream);
  return found;
}

void Process::WaitForContext(std::unique_lock<std::mutex>& lock, const Context* context) {
  std::vector<std::shared_ptr<Stream>> all = StreamsOf(context);
  // Work of streams that were destroyed is work of the context still.
  for (const std::shared_ptr<Stream>& zombie : zombies) {
    if (zombie->context == context) all.push_back(zombie);
  }
  lock.unlock();
  for (const std::shared_ptr<Stream>& stream : all) stream->Drain();
  all.clear();
  lock.lock();
}

void Process::TrimPools() {
  for (const auto& [key, pool] : pools) pool->blocks->Trim(*this, pool->threshold);
}

bool Process::HasContext(int card) const {
  const auto primary = contexts.find(card);
  return (primary != contexts.end() && primary->second->retained > 0) ||
         std::any_of(made_contexts.begin(), made_contexts.end(),
                     [card](const auto& context) { return context->card == card && context->retained > 0; });
}

std::map<std::uint64_t, Piece>::iterator Process::FindPiece(std::uint64_t address) {
  auto at = pieces.upper_bound(address);
  if (at == pieces.begin()) return pieces.end();
  --at;
  return address - at->first < at->second.bytes ? at : pieces.end();
}

void Process::FreePiece(std::map<std::uint64_t, Piece>::iterator found) {
  const Piece piece = std::move(found->second);
  const std::uint64_t address = found->first;
  pieces.erase(found);
  if (piece.kind == Piece::Kind::kGraph) return FreeGraphMemory(*this, address);
  if (piece.mapping != 0) return UnmapMemory(*this, piece.mapping);
  piece.blocks->Free(address, piece.bytes);
  if (piece.kind == Piece::Kind::kPlain) piece.blocks->Trim(*this, 0);
}

CUresult Process::FindStream(CUstream handle, const char* call, std::shared_ptr<Stream>* found) {
  Context* context = nullptr;
  if (const CUresult current = CurrentContext(&context, call); current != CUDA_SUCCESS) return current;
  if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
    if (context->default_stream == nullptr) context->default_stream = std::make_shared<Stream>(context);
    *found = context->default_stream;
    return CUDA_SUCCESS;
  }
  const auto stream = streams.find(reinterpret_cast<Stream*>(handle));
  if (stream == streams.end()) {
    Break("use-after-destroy", std::string(call) + " of a stream that is not there");
    return CUDA_ERROR_INVALID_HANDLE;
  }
  *found = stream->second;
  return CUDA_SUCCESS;
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

// Reports objects that a program with an orderly end has not destroyed.
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
  if (descriptors != 0) {
    process.Break("leaked-fd", std::to_string(descriptors) + " exported descriptors at exit");
  }
}

}  // namespace
}  // namespace lgpu::fake_cuda
