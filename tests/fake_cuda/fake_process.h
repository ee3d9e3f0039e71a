#ifndef LGPU_TESTS_FAKE_CUDA_FAKE_PROCESS_H_
#define LGPU_TESTS_FAKE_CUDA_FAKE_PROCESS_H_

// The fake driver's state in one process. A driver has one state for a process, so here (and only here) is a
// global.

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/process_epoch.h"
#include "tests/fake_cuda/fake_state.h"

namespace lgpu::fake_cuda {

/// A reference to an allocation: the whole of it is mapped once, which keeps its range locked and takes no
/// descriptor.
class Allocation {
 public:
  /// `memory` is an open file of the card's that has the range locked.
  static std::shared_ptr<Allocation> Hold(int memory, const Slot& slot);
  /// All of this process.
  static std::vector<Allocation*> All();
  ~Allocation();
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;

  const int card;
  std::uint64_t offset;  // changes when the process is suspended and comes back
  const std::uint64_t bytes;
  char* const data;
  const bool is_context, is_on_card;
  bool is_shared = false;  // exported, or imported

 private:
  Allocation(const Slot& slot, char* address);
};

/// A range of device memory that a piece of work touches.
struct Touch {
  std::uint64_t address = 0, bytes = 0;
  bool writes = false;
};

/// The end of work that an event marks, for streams and threads that wait for it.
struct Completion {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::chrono::steady_clock::time_point at;  // when it was done
  void Set();
  void Wait();
  bool IsDone();
};

class Blocks;  // fake_blocks.h
struct Pool;   // fake_pools.h
struct Graph;  // fake_graphs.h
struct GraphExec;
struct GraphMemory;
class Stream;

struct Context {
  int card = 0;
  int retained = 0;  // 0: released or destroyed
  bool is_primary = false;
  Context* primary = nullptr;  // of a green context: where its memory is
  unsigned flags = 0;
  std::map<int, std::size_t> limits;  // by CUlimit
  std::map<int, std::shared_ptr<Allocation>> limit_memory;
  std::shared_ptr<Allocation> memory;
  std::shared_ptr<Allocation> code;        // Card::module_bytes
  std::shared_ptr<Stream> default_stream;  // from its first use on
  std::shared_ptr<Blocks> blocks;          // of cuMemAlloc
  /// The context that memory which is made in this one goes with.
  Context* owner() { return primary == nullptr ? this : primary; }
};

/// The current contexts of one thread. It has no destructor: programs use the driver in destructors of static
/// objects, which run after those of the thread.
struct Contexts {
  static constexpr std::size_t kMost = 64;
  Context* items[kMost] = {};
  std::size_t size = 0;
  bool empty() const { return size == 0; }
  Context* back() const { return items[size - 1]; }
};

class Stream {
 public:
  struct Work {
    std::vector<Touch> touches;
    std::function<void()> run;
  };
  explicit Stream(Context* of, unsigned stream_flags = 0);
  ~Stream();  // finishes queued work
  /// While it captures, the work goes into the graph.
  void Queue(Work work);
  bool IsIdle();
  void Drain();
  /// Queued or running work that touches the range.
  bool Touches(std::uint64_t address, std::uint64_t bytes);
  Context* const context;
  const unsigned flags;
  std::shared_ptr<Graph> capture;  // guarded by Process::mutex

 private:
  void Run();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> work_;  // the front one may be running
  bool ending_ = false;
  std::thread thread_;
};

struct Event {
  bool keeps_time = false;
  std::shared_ptr<Graph> capture;          // recorded while a stream captured
  std::shared_ptr<Completion> completion;  // null: never recorded
};

struct Emulation;  // of a kernel: fake_kernels.h

struct Module;

struct Function {
  const Emulation* emulation = nullptr;  // null: a kernel that does nothing
  Module* module = nullptr;
  std::string name;
  std::map<int, int> attributes;  // that were set
};

struct Module {
  Context* context = nullptr;
  std::string image;
  bool is_library = false;
  std::map<std::string, std::unique_ptr<Function>> functions;
  std::map<std::string, std::pair<std::uint64_t, std::uint64_t>>
      globals;  // address and bytes, where asked for
};

struct Mapping {
  std::shared_ptr<Allocation> memory;
  std::uint64_t bytes = 0;
  std::map<int, int> access;  // by card: CU_MEM_ACCESS_FLAGS_PROT_...
};

struct Reservation {
  std::uint64_t bytes = 0;
  char* shadow = nullptr;  // where the host sees mapped memory: never given to a caller
};

struct Handle {
  std::shared_ptr<Allocation> memory;
  int references = 1;
};

/// Memory that a call of the driver gave by address.
struct Piece {
  enum class Kind { kPlain, kPooled, kManaged, kGraph, kImported };
  Kind kind = Kind::kPlain;
  std::uint64_t bytes = 0;
  int card = 0;
  Context* context = nullptr;           // it goes with this one; null: it outlives contexts
  std::shared_ptr<Blocks> blocks = {};  // where it was cut from; null: a mapping of its own
  std::uint64_t mapping = 0;            // that one's address
  std::uint64_t slot = 0;               // of imported memory
  int opened = 1;                       // how often, of imported memory
};

/// The gate through which calls of the driver go. It is shut while the process is locked: calls wait then.
class Gate {
 public:
  /// Waits while it is shut.
  void Enter();
  void Leave() { inside_.fetch_sub(1); }
  /// Does not wait for calls that are inside.
  void Shut() { inside_.fetch_or(kShut); }
  void Open();
  bool IsEmpty() const { return (inside_ & ~kShut) == 0; }

 private:
  static constexpr std::uint32_t kShut = std::uint32_t{1} << 31;
  std::atomic<std::uint32_t> inside_ = 0;  // how many calls are inside, and kShut
};

/// Everything that a process has of the driver. `mutex` guards all of it but `file` and `gate`.
struct Process {
  std::mutex mutex;
  StateFile* file = nullptr;  // null: no GPU here
  Gate gate;
  ProcessEpoch epoch;                                   // of cuInit
  int pid = 0;                                          // that called cuInit; 0: none yet
  std::vector<int> cards;                               // by CUDA's ordinal
  CUresult sticky = CUDA_SUCCESS;                       // a fault that killed the contexts
  std::map<int, std::unique_ptr<Context>> contexts;     // the primary ones, by card
  std::vector<std::unique_ptr<Context>> made_contexts;  // for good, so that handles of dead ones are known
  std::map<int, std::shared_ptr<Allocation>> create_memory;  // by card: Card::create_bytes
  std::map<std::uint64_t, Handle> handles;
  std::set<std::uint64_t> dead_handles;
  std::uint64_t next_handle = 0x1000;
  std::map<std::uint64_t, Reservation> reservations;
  std::map<std::uint64_t, Mapping> mappings;
  std::map<std::uint64_t, std::uint64_t> host_memory;  // page-locked: bytes by address
  std::map<std::uint64_t, std::uint64_t> registered;   // the program's, page-locked
  std::map<Stream*, std::shared_ptr<Stream>> streams;
  std::vector<std::shared_ptr<Stream>> zombies;  // destroyed, and perhaps not done yet
  std::map<Event*, std::unique_ptr<Event>> events;
  std::map<Module*, std::unique_ptr<Module>> modules;
  std::map<std::uint64_t, Piece> pieces;
  std::map<Pool*, std::shared_ptr<Pool>> pools;
  std::map<int, std::shared_ptr<Pool>> default_pools, current_pools;  // by card
  std::shared_ptr<Pool> host_pool;
  std::map<Graph*, std::shared_ptr<Graph>> graphs;
  std::map<GraphExec*, std::shared_ptr<GraphExec>> execs;
  std::map<std::uint64_t, GraphMemory> graph_memory;          // by address
  std::map<int, std::map<int, std::uint64_t>> graph_figures;  // by card and CUgraphMem_attribute

  static Process& This();
  static Contexts& ContextStack();  // of the calling thread

  /// Records that the program broke a rule. Callers may hold `mutex`.
  void Break(const char* rule, const std::string& text);
  /// Where the host sees device memory; null unless it is mapped, as one piece, with that access for the card
  /// that touches it. Breaks the rule of access otherwise. Callers hold `mutex`.
  char* Reach(const Touch& touch, int card, const char* call);
  bool IsReserved(std::uint64_t address) const;
  bool IsPageLocked(const void* address) const;
  /// Work that is queued or runs on any stream and touches the range.
  bool IsInUse(std::uint64_t address, std::uint64_t bytes);
  CUresult CurrentContext(Context** context, const char* call);
  bool HasContext(int card) const;
  int OrdinalOf(int card) const;  // CUDA's, or -1
  /// Waits for all work of a context, without the lock, and for its dead streams.
  void WaitForContext(std::unique_lock<std::mutex>& lock, const Context* context);
  std::vector<std::shared_ptr<Stream>> StreamsOf(const Context* context) const;
  /// Gives back the memory of pools above their thresholds, as a driver does whenever a program waits.
  void TrimPools();
  /// The piece that holds the address, or end().
  std::map<std::uint64_t, Piece>::iterator FindPiece(std::uint64_t address);
  void FreePiece(std::map<std::uint64_t, Piece>::iterator piece);
  /// The stream of a handle (0, 1 and 2 are the context's default one); breaks the rule of destroyed streams.
  CUresult FindStream(CUstream handle, const char* call, std::shared_ptr<Stream>* found);
};

}  // namespace lgpu::fake_cuda

#endif  // LGPU_TESTS_FAKE_CUDA_FAKE_PROCESS_H_
