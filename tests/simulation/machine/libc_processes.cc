// libc's calls for processes, memory and random numbers, in front of the real ones.

#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstring>
#include <random>

#include "tests/simulation/machine/mappings.h"
#include "tests/simulation/machine/real_calls.h"

using namespace lgpu::simulation;  // NOLINT: definitions in the global namespace

namespace {

int Fail(int error) {
  errno = error;
  return -1;
}

std::uintptr_t AddressOf(const void* address) { return reinterpret_cast<std::uintptr_t>(address); }

void FillAtRandom(Scheduler& scheduler, void* buffer, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) {
    static_cast<unsigned char*>(buffer)[i] = static_cast<unsigned char>(scheduler.Below(256));
  }
}

int Signal(Scheduler& scheduler, pid_t pid, int signal) {
  scheduler.Step("kill", static_cast<std::uint64_t>(signal));
  MachineProcess* const process = Processes::Get().Find(pid);
  if (process == nullptr) return Fail(ESRCH);
  if (signal == SIGKILL) Processes::Get().Kill(*process);
  if (signal == SIGSTOP) Processes::Get().Stop(*process);
  if (signal == SIGCONT) Processes::Get().Continue(*process);
  return 0;
}

int OpenPid(Scheduler& scheduler, pid_t pid) {
  scheduler.Step("pidfd_open");
  const MachineProcess* const process = Processes::Get().Find(pid);
  return process == nullptr ? Fail(ESRCH) : Descriptors::Get().Add(std::make_shared<PidFd>(*process));
}

}  // namespace

LGPU_IN_FRONT pid_t getpid() noexcept {
  LGPU_REAL(getpid);
  return Scheduler::Here() == nullptr ? real() : Scheduler::Self().process->pid;
}

LGPU_IN_FRONT uid_t getuid() noexcept {
  LGPU_REAL(getuid);
  return Scheduler::Here() == nullptr ? real() : Scheduler::Self().process->uid;
}

LGPU_IN_FRONT uid_t geteuid() noexcept {
  LGPU_REAL(geteuid);
  return Scheduler::Here() == nullptr ? real() : Scheduler::Self().process->uid;
}

LGPU_IN_FRONT int kill(pid_t pid, int signal) noexcept {
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr) {
    LGPU_REAL(kill);
    return real(pid, signal);
  }
  return Signal(*scheduler, pid, signal);
}

LGPU_IN_FRONT void* mmap(void* address, std::size_t bytes, int protection, int flags, int fd,
                         off_t at) noexcept {
  LGPU_REAL(mmap);
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr) return real(address, bytes, protection, flags, fd, at);
  scheduler->Step("mmap", bytes);
  std::shared_ptr<RealFile> file;
  if (Descriptors::IsSimulated(fd)) {
    file = Descriptors::Get().FindKind<RealFile>(fd);
    if (file == nullptr) {
      errno = EBADF;
      return MAP_FAILED;
    }
    fd = file->real();
  }
  void* const mapped = real(address, bytes, protection, flags, fd, at);
  if (mapped != MAP_FAILED) Mappings::Get().Add(AddressOf(mapped), bytes, std::move(file));
  return mapped;
}

LGPU_IN_FRONT void* mmap64(void* address, std::size_t bytes, int protection, int flags, int fd,
                           off64_t at) noexcept {
  return mmap(address, bytes, protection, flags, fd, at);
}

LGPU_IN_FRONT int munmap(void* address, std::size_t bytes) noexcept {
  LGPU_REAL(munmap);
  if (Scheduler* const scheduler = Scheduler::Here(); scheduler != nullptr) {
    scheduler->Step("munmap", bytes);
    Mappings::Get().Remove(AddressOf(address), bytes);
  }
  return real(address, bytes);
}

LGPU_IN_FRONT void* mremap(void* address, std::size_t before, std::size_t bytes, int flags, ...) noexcept {
  LGPU_REAL(mremap);
  void* const mapped = real(address, before, bytes, flags);
  if (Scheduler::Here() != nullptr && mapped != MAP_FAILED) {
    Mappings::Get().Add(AddressOf(mapped), bytes, Mappings::Get().FileAt(AddressOf(address)));
  }
  return mapped;
}

// As the real one, it takes six values, also where the caller gave fewer.
LGPU_IN_FRONT __attribute__((no_sanitize("address"))) long syscall(long number, ...) noexcept {
  LGPU_REAL(syscall);
  long values[6];
  va_list arguments;
  va_start(arguments, number);
  for (long& value : values) value = va_arg(arguments, long);
  va_end(arguments);
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler != nullptr) {
    switch (number) {
      case SYS_gettid:
        return static_cast<long>(Scheduler::Self().number);
      case SYS_tgkill:
        return scheduler->Lives(static_cast<std::uint32_t>(values[1])) ? 0 : Fail(ESRCH);
      case SYS_pidfd_open:
        return OpenPid(*scheduler, static_cast<pid_t>(values[0]));
      case SYS_pidfd_send_signal: {
        const auto process = Descriptors::Get().FindKind<PidFd>(static_cast<int>(values[0]));
        if (process == nullptr) return -1;
        return Signal(*scheduler, process->process.pid, static_cast<int>(values[1]));
      }
      case SYS_mmap: {
        void* const mapped = mmap(reinterpret_cast<void*>(values[0]), static_cast<std::size_t>(values[1]),
                                  static_cast<int>(values[2]), static_cast<int>(values[3]),
                                  static_cast<int>(values[4]), values[5]);
        return reinterpret_cast<long>(mapped);
      }
      default:
        break;
    }
  }
  return real(number, values[0], values[1], values[2], values[3], values[4], values[5]);
}

LGPU_IN_FRONT ssize_t getrandom(void* buffer, std::size_t bytes, unsigned flags) {
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr) {
    LGPU_REAL(getrandom);
    return real(buffer, bytes, flags);
  }
  FillAtRandom(*scheduler, buffer, bytes);
  return static_cast<ssize_t>(bytes);
}

// The machine has memory enough for every chunk.
LGPU_IN_FRONT int sysinfo(struct sysinfo* info) noexcept {
  LGPU_REAL(sysinfo);
  const int result = real(info);
  if (Scheduler::Here() != nullptr) {
    info->freeram = 1ul << 40;
    info->mem_unit = 1;
  }
  return result;
}

// The standard library's, which reads the processor's own random numbers.
__attribute__((visibility("default"))) std::random_device::result_type std::random_device::_M_getval() {
  std::random_device::result_type value = 0;
  (void)!getrandom(&value, sizeof value, 0);
  return value;
}
