#ifndef LGPU_TESTS_FAKE_CUDA_FAKE_CHECKPOINT_H_
#define LGPU_TESTS_FAKE_CUDA_FAKE_CHECKPOINT_H_

// The target's side of the checkpoint calls. A thread of each process that has started the driver serves the
// requests of other processes, one after the other; the machine's State has them (CheckpointTarget). A
// request whose caller has died is served all the same.

#include <cstdint>

#include "tests/fake_cuda/fake_process.h"

namespace lgpu::fake_cuda {

/// Starts the thread, if the process may have one more. Callers hold Process::mutex.
void ServeCheckpoints(Process& process);

/// This process's pid namespace; 0: unknown.
std::uint64_t PidNamespace();
/// Nanoseconds of the steady clock, which all processes share.
std::int64_t NanosecondsNow();
/// Waits until the word may have another value than `seen`, at most 20 ms if `is_short`.
void WaitForChange(std::atomic<std::uint32_t>& word, std::uint32_t seen, bool is_short);
/// Wakes all that wait for a change of it, in all processes.
void TellChange(std::atomic<std::uint32_t>& word);

}  // namespace lgpu::fake_cuda

#endif  // LGPU_TESTS_FAKE_CUDA_FAKE_CHECKPOINT_H_
