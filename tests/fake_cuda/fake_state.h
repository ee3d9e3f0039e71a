#ifndef LGPU_TESTS_FAKE_CUDA_FAKE_STATE_H_
#define LGPU_TESTS_FAKE_CUDA_FAKE_STATE_H_

// The hardware of the fake machine. All processes that open the fake driver or the fake NVML share it with
// the test that made it. The variable LGPU_FAKE_CUDA names the memfd that holds a State ("/proc/PID/fd/N");
// without it there is no GPU. A container may have the State and the memories as files of one folder, with
// the procfs of the test's pid namespace mounted as `proc` there.

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"

namespace lgpu::fake_cuda {

inline constexpr char kVariable[] = "LGPU_FAKE_CUDA";

/// One card. Its memory is a sparse file in which every allocation has a range of its own for good. An
/// allocation lives as long as some open file, or a mapping of one, has its range locked: handles, exported
/// descriptors, imports and mappings, in any process. The kernel unlocks for a process that is killed.
struct Card {
  char name[64];
  unsigned char uuid[16];
  std::uint32_t pci_bus;
  std::int32_t compute_major, compute_minor;
  std::int32_t speed;           // FASTEST_FIRST: the highest comes first
  bool is_mig;                  // an instance of a card in MIG mode
  std::uint64_t total;          // without `reserved`
  std::uint64_t reserved;       // the driver keeps it; NVML counts it and CUDA does not
  std::uint64_t context_bytes;  // of the card's first context
  std::uint64_t context_step;   // by which each further context is larger than the one before
  std::uint64_t module_bytes;   // a context takes it with its first module
  std::uint64_t create_bytes;   // a process without a context takes it with its first cuMemCreate
  std::uint64_t contexts_made;  // by all processes
  std::int32_t memory_fd;       // in the process that made the machine
  std::uint64_t next_offset;
  std::uint64_t used;  // of slots; Sweep finds allocations without a reference
};

/// One allocation.
struct Slot {
  bool used;
  bool is_context;
  std::int32_t card;
  std::int32_t pid;  // its maker: StateFile::pid()
  std::uint64_t offset, bytes;
  std::int64_t freed_at;  // when its last reference went, in ns of the steady clock; 0: it has one
  std::uint64_t charged;  // of the card: `bytes`, or 0 for managed memory that is on the host
};

/// One call that is to fail.
struct Fault {
  char call[48];       // "cuMemCreate"; empty: no fault
  std::int32_t skip;   // so many calls succeed before
  std::int32_t times;  // and so many fail; -1: all
  std::int32_t pid;    // of this process only; 0: of all
  std::int32_t result;
};

struct Violation {
  std::int32_t pid;
  char rule[32];
  char text[200];
};

struct ProcessContexts {
  std::int32_t pid;
  std::uint32_t created, live;
};

/// A process that has started the driver, for the checkpoint calls of other processes: fake_checkpoint.h.
/// Process ids are those of its own pid namespace, as cuda.h's calls take them.
struct CheckpointTarget {
  enum class Request : std::int32_t { kNone, kState, kLock, kCheckpoint, kRestore, kUnlock };

  std::int32_t pid;                    // 0: no process
  std::int32_t thread;                 // that serves the requests: an entry lives as long as it
  std::uint64_t pid_namespace;         // its inode
  std::int32_t state;                  // CUprocessState; of a process that has ended: its last one
  std::int32_t checkpoints, restores;  // that succeeded
  Request request;
  std::int64_t give_up_at;           // of kLock, in ns of the steady clock; 0: never
  std::int32_t results[8];           // of the last answers
  std::atomic<std::uint32_t> asked;  // counts requests: there is one at a time
  std::atomic<std::uint32_t> answered;
};

struct CallCount {
  char call[48];
  std::atomic<std::uint64_t> count;
};

struct State {
  static constexpr std::uint64_t kMagic = 0x6c6770754641'4b45;
  static constexpr int kMaxCards = 8, kMaxSlots = 8192, kMaxFaults = 16, kMaxViolations = 64;
  static constexpr int kMaxProcesses = 128, kMaxCalls = 400;

  std::uint64_t magic;
  std::int32_t card_count;
  std::atomic<std::int32_t> init_result;         // of cuInit
  std::atomic<std::int32_t> driver_version;      // 13000; older drivers refuse newer images
  std::atomic<std::int32_t> driver_branch;       // as NVML has it: 580
  std::atomic<std::int32_t> too_new_image;       // the result for machine code of a newer toolkit
  std::atomic<bool> hold_kernels;                // kernels wait until this is false
  std::atomic<bool> nvml_absent;                 // nvmlInit fails
  std::atomic<bool> peers;                       // cards can read each other's memory
  std::atomic<bool> hold_freed;                  // memory that is freed does not come back yet: a slow drain
  std::atomic<bool> reads_pageable;              // cards read the host's pageable memory when they come to it
  std::atomic<bool> long_process_entries;        // NVML's of the first drivers of R535
  std::atomic<std::int32_t> freed_late_ms;       // so long after it was freed memory comes back
  std::atomic<std::int32_t> compute_mode;        // as NVML has it: 2 prohibited, 3 one process
  std::atomic<std::int32_t> foreign_descriptor;  // the result for one that is no memory; 0: INVALID_VALUE
  std::atomic<std::int32_t> nvml_late;           // NVML shows what it found so many of a process's calls ago
  std::atomic<bool> any_program;                 // runs programs that are not held to the rules
  std::atomic<std::uint64_t> pool_unit;          // by which pools grow, where the card has so much; 0: 32 MiB
  std::atomic<std::uint64_t> array_row_unit;     // bytes to which rows of arrays are padded; 0: 128
  std::atomic<std::uint64_t> array_rows_unit;    // rows to which the height is padded; 0: 1
  std::atomic<bool> has_faults;
  // Faults of the checkpoint calls, as public threads report them. A test may change them at any time.
  std::atomic<bool> lock_kills;                    // the target dies of SIGSEGV
  std::atomic<bool> lock_hangs;                    // while it is true; the target runs on
  std::atomic<bool> restore_hangs;                 // while it is true
  std::atomic<bool> checkpoint_refuses_shared;     // exported and imported memory
  std::atomic<std::int32_t> checkpoint_faults_of;  // these are faults of one target only; 0: of all
  // The rest is guarded by the lock of the file (StateFile::Lock).
  Card cards[kMaxCards];
  Slot slots[kMaxSlots];
  Fault faults[kMaxFaults];
  ProcessContexts processes[kMaxProcesses];
  CallCount calls[kMaxCalls];
  CheckpointTarget targets[kMaxProcesses];
  std::int32_t violation_count;
  Violation violations[kMaxViolations];
};

/// A StateFile is one process's view of the machine.
class StateFile {
 public:
  /// The machine that LGPU_FAKE_CUDA names; null without one.
  static StateFile* OfThisProcess();
  /// `memories`: of the cards, to be duplicated.
  StateFile(UniqueFd fd, State* state, const std::vector<UniqueFd>& memories = {});

  State& state() { return *state_; }
  /// This process in the pid namespace of the test that made the machine, as a driver and NVML count
  /// processes. Of a program in another pid namespace without that namespace's procfs: its own pid.
  std::int32_t pid() const;
  /// A new open file of a card's memory.
  UniqueFd OpenMemory(int card);
  /// The card of an exported descriptor, or -1.
  int CardOfDescriptor(int fd);

  /// Keeps other processes and threads out; nests not.
  class Lock {
   public:
    explicit Lock(StateFile& file);
    ~Lock();
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

   private:
    StateFile& file_;
  };

  // Callers hold the lock.
  /// Finds allocations without a reference, and frees them (their contents are scrubbed).
  void Sweep();
  enum class Kind { kMemory, kContext, kOnHost };
  /// A new allocation, locked by `memory` (an open file of the card's); null: out of memory. An allocation on
  /// the host takes no memory of the card.
  Slot* Allocate(int card, std::uint64_t bytes, Kind kind, int memory);
  Slot* FindSlot(int card, std::uint64_t offset);
  void AddViolation(std::string_view rule, const std::string& text);
  /// The place of a call in State::calls, from its first use on.
  int IndexOfCall(std::string_view call);
  /// The result of a call that a test wants to fail, or 0. `of`: the process whose faults count.
  int TakeFault(std::string_view call) { return TakeFault(call, pid()); }
  int TakeFault(std::string_view call, std::int32_t of);
  ProcessContexts& ContextsOfThisProcess();

  /// Locks an allocation's range for as long as the open file `memory` lives.
  static bool LockRange(int memory, std::uint64_t offset, std::uint64_t bytes);

 private:
  UniqueFd fd_;
  State* state_;
  std::vector<std::string> self_links_;  // /proc/self of the test's pid namespace, at the first that is there
  std::vector<UniqueFd> memories_;
};

/// "GPU-10fa4e00-..."
std::string UuidText(const Card& card);

}  // namespace lgpu::fake_cuda

#endif  // LGPU_TESTS_FAKE_CUDA_FAKE_STATE_H_
