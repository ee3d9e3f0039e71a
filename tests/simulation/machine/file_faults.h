#ifndef LGPU_TESTS_SIMULATION_MACHINE_FILE_FAULTS_H_
#define LGPU_TESTS_SIMULATION_MACHINE_FILE_FAULTS_H_

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "tests/simulation/machine/descriptors.h"
#include "tests/simulation/machine/scheduler.h"

namespace lgpu::simulation {

/// Whether this call of the calling process on a file fails, with errno set.
inline bool FileCallFails(Scheduler& scheduler) {
  const FileFaults& faults = Scheduler::Self().process->file_faults;
  if (faults.one_in == 0 || !scheduler.OneIn(faults.one_in)) return false;
  errno = faults.error;
  return true;
}

/// A write to a file, of `write(bytes)`: it may fail, write a part, take long, or be cut by the death of its
/// process. One to a memfd is whole.
template <typename Write>
long WriteWithFaults(Scheduler& scheduler, const char* what, const RealFile& file, std::size_t bytes,
                     Write write) {
  if (!file.memfd_name().empty()) {
    scheduler.Step(what, bytes);
    return write(bytes);
  }
  if (scheduler.DiesNext()) {
    if (const std::size_t part = scheduler.Below(bytes + 1); part != 0) (void)write(part);
  }
  scheduler.Step(what, bytes);
  // A disk that fails is slow, too: other threads come to where they wait for this one.
  constexpr std::uint64_t kLongest{4'000'000};
  if (Scheduler::Self().process->file_faults.one_in != 0 && scheduler.OneIn(2)) {
    scheduler.Block("a slow disk", nullptr, {}, scheduler.now() + Time(scheduler.Below(kLongest)));
  }
  if (!FileCallFails(scheduler)) return write(bytes);
  const int error = errno;
  if (bytes > 1 && scheduler.OneIn(2)) return write(1 + scheduler.Below(bytes - 1));
  errno = error;
  return -1;
}

}  // namespace lgpu::simulation

#endif  // LGPU_TESTS_SIMULATION_MACHINE_FILE_FAULTS_H_
