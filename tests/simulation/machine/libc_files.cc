// libc's calls for files, in front of the real ones. Files are real ones, below the folder of the run; calls
// that change them may fail or be cut. The folders of processes in /proc are the machine's.

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "tests/simulation/machine/file_faults.h"
#include "tests/simulation/machine/paths.h"
#include "tests/simulation/machine/proc_directory.h"
#include "tests/simulation/machine/real_calls.h"

using namespace lgpu::simulation;  // NOLINT: definitions in the global namespace

namespace {

int Fail(int error) {
  errno = error;
  return -1;
}

// The real descriptor of one of the calling process; other numbers as they are. -1 and EBADF.
int RealOf(int fd) {
  if (Scheduler::Here() == nullptr || !Descriptors::IsSimulated(fd)) return fd;
  const std::shared_ptr<Descriptor> descriptor = Descriptors::Get().Find(fd);
  if (descriptor == nullptr) return -1;
  return descriptor->real() >= 0 ? descriptor->real() : Fail(EINVAL);
}

int AddFile(int real) {
  if (real < 0) return -1;
  const OpenDescriptor<Descriptor> file(std::make_shared<RealFile>(real));
  return Descriptors::Get().Add(file.get());
}

int OpenProc(const ProcPath& path, int flags) {
  LGPU_REAL(openat);
  if (std::optional<std::vector<std::string>> names = ProcNames(path)) {
    return Descriptors::Get().Add(std::make_shared<ProcDirectory>(*std::move(names)));
  }
  if (const std::optional<std::string> text = ProcText(path)) {
    const int file = RealTextFile(*text);
    return file < 0 ? -1 : AddFile(file);
  }
  const std::shared_ptr<Descriptor> descriptor = ProcDescriptor(path);
  if (descriptor == nullptr) return Fail(ENOENT);
  if (descriptor->real() < 0) return Fail(ENXIO);
  const std::string same = "/proc/self/fd/" + std::to_string(descriptor->real());
  const int opened = AddFile(real(AT_FDCWD, same.c_str(), flags));
  if (opened < 0) return -1;
  const auto* const from = dynamic_cast<const RealFile*>(descriptor.get());
  Descriptors::Get().FindKind<RealFile>(opened)->SetMemfdName(from->memfd_name());
  return opened;
}

int Open(Scheduler& scheduler, int directory, const char* path, int flags, mode_t mode) {
  LGPU_REAL(openat);
  scheduler.Step("open");
  if (const std::optional<ProcPath> proc = ParseProcPath(path)) return OpenProc(*proc, flags);
  if ((flags & O_CREAT) != 0 && FileCallFails(scheduler)) return -1;
  const int parent = RealOf(directory);
  if (parent == -1) return -1;
  const std::string from = RealPath(path);
  const int opened = AddFile(real(parent, from.c_str(), flags, mode));
  if (opened >= 0 && from != path) {
    struct stat info = {};
    if (::fstat(opened, &info) == 0) {
      // Through /proc/self/fd: the same memfd.
      const std::string_view number = std::string_view(path).substr(std::strlen("/proc/self/fd/"));
      const auto same = Descriptors::Get().FindKind<RealFile>(std::atoi(number.data()));
      if (same != nullptr) Descriptors::Get().FindKind<RealFile>(opened)->SetMemfdName(same->memfd_name());
    }
  }
  return opened;
}

}  // namespace

LGPU_IN_FRONT int openat(int directory, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const auto mode = static_cast<mode_t>(va_arg(arguments, unsigned));
  va_end(arguments);
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr) {
    LGPU_REAL(openat);
    return real(directory, path, flags, mode);
  }
  return Open(*scheduler, directory, path, flags, mode);
}

LGPU_IN_FRONT int openat64(int directory, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const auto mode = static_cast<mode_t>(va_arg(arguments, unsigned));
  va_end(arguments);
  return openat(directory, path, flags, mode);
}

LGPU_IN_FRONT int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const auto mode = static_cast<mode_t>(va_arg(arguments, unsigned));
  va_end(arguments);
  return openat(AT_FDCWD, path, flags, mode);
}

LGPU_IN_FRONT int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const auto mode = static_cast<mode_t>(va_arg(arguments, unsigned));
  va_end(arguments);
  return openat(AT_FDCWD, path, flags, mode);
}

// For streams of C++. A stream of a process that is killed stays open in this program.
LGPU_IN_FRONT std::FILE* fopen64(const char* path, const char* mode) {
  LGPU_REAL(fopen64);
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr) return real(path, mode);
  scheduler->Step("open");
  const std::optional<ProcPath> proc = ParseProcPath(path);
  if (!proc) return real(RealPath(path).c_str(), mode);
  const std::optional<std::string> text = ProcText(*proc);
  if (!text) {
    errno = ENOENT;
    return nullptr;
  }
  return ::fdopen(RealTextFile(*text), mode);
}

LGPU_IN_FRONT std::FILE* fopen(const char* path, const char* mode) { return fopen64(path, mode); }

LGPU_IN_FRONT ssize_t pread(int fd, void* buffer, std::size_t bytes, off_t at) {
  LGPU_REAL(pread);
  if (Scheduler* const scheduler = Scheduler::Here()) scheduler->Step("read", bytes);
  const int file = RealOf(fd);
  return file == -1 ? -1 : real(file, buffer, bytes, at);
}

LGPU_IN_FRONT ssize_t pwrite(int fd, const void* buffer, std::size_t bytes, off_t at) {
  LGPU_REAL(pwrite);
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr) return real(fd, buffer, bytes, at);
  if (!Descriptors::IsSimulated(fd)) return real(fd, buffer, bytes, at);
  const auto file = Descriptors::Get().FindKind<RealFile>(fd);
  if (file == nullptr) return Fail(EBADF);
  return WriteWithFaults(*scheduler, "pwrite", *file, bytes,
                         [&](std::size_t part) { return real(file->real(), buffer, part, at); });
}

LGPU_IN_FRONT off_t lseek(int fd, off_t at, int whence) noexcept {
  LGPU_REAL(lseek);
  const int file = RealOf(fd);
  return file == -1 ? -1 : real(file, at, whence);
}

LGPU_IN_FRONT int ftruncate(int fd, off_t bytes) noexcept {
  LGPU_REAL(ftruncate);
  if (Scheduler* const scheduler = Scheduler::Here(); scheduler != nullptr) {
    scheduler->Step("ftruncate", static_cast<std::uint64_t>(bytes));
  }
  const int file = RealOf(fd);
  if (file == -1) return -1;
  const int result = real(file, bytes);
  RealFile::NoteSize(file);
  return result;
}

LGPU_IN_FRONT int fallocate(int fd, int mode, off_t at, off_t bytes) {
  LGPU_REAL(fallocate);
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr || !Descriptors::IsSimulated(fd)) return real(fd, mode, at, bytes);
  scheduler->Step("fallocate", static_cast<std::uint64_t>(bytes));
  const auto file = Descriptors::Get().FindKind<RealFile>(fd);
  if (file == nullptr) return Fail(EBADF);
  return file->memfd_name().empty() ? real(file->real(), mode, at, bytes) : 0;
}

LGPU_IN_FRONT int fsync(int fd) {
  LGPU_REAL(fsync);
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr) return real(fd);
  scheduler->Step("fsync");
  if (FileCallFails(*scheduler)) return -1;
  return RealOf(fd) == -1 ? -1 : 0;  // what a power cut loses is not simulated
}

LGPU_IN_FRONT int renameat(int from_directory, const char* from, int to_directory, const char* to) noexcept {
  LGPU_REAL(renameat);
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr) return real(from_directory, from, to_directory, to);
  scheduler->Step("rename");
  if (FileCallFails(*scheduler)) return -1;
  const int from_real = RealOf(from_directory), to_real = RealOf(to_directory);
  return from_real == -1 || to_real == -1 ? -1 : real(from_real, from, to_real, to);
}

LGPU_IN_FRONT int rename(const char* from, const char* to) noexcept {
  return renameat(AT_FDCWD, from, AT_FDCWD, to);
}

LGPU_IN_FRONT int unlinkat(int directory, const char* path, int flags) noexcept {
  LGPU_REAL(unlinkat);
  if (Scheduler* const scheduler = Scheduler::Here(); scheduler != nullptr) scheduler->Step("unlink");
  const int parent = RealOf(directory);
  return parent == -1 ? -1 : real(parent, path, flags);
}

LGPU_IN_FRONT int fchmod(int fd, mode_t mode) noexcept {
  LGPU_REAL(fchmod);
  const int file = RealOf(fd);
  return file == -1 ? -1 : real(file, mode);
}

LGPU_IN_FRONT int fchmodat(int directory, const char* path, mode_t mode, int flags) noexcept {
  LGPU_REAL(fchmodat);
  const int parent = RealOf(directory);
  return parent == -1 ? -1 : real(parent, path, mode, flags);
}

LGPU_IN_FRONT int chmod(const char* path, mode_t mode) noexcept {
  LGPU_REAL(chmod);
  return real(Scheduler::Here() == nullptr ? path : RealPath(path).c_str(), mode);
}

LGPU_IN_FRONT int fchown(int fd, uid_t user, gid_t group) noexcept {
  LGPU_REAL(fchown);
  const int file = RealOf(fd);
  return file == -1 ? -1 : real(file, user, group);
}

LGPU_IN_FRONT int fchownat(int directory, const char* path, uid_t user, gid_t group, int flags) noexcept {
  LGPU_REAL(fchownat);
  const int parent = RealOf(directory);
  return parent == -1 ? -1 : real(parent, path, user, group, flags);
}

LGPU_IN_FRONT int flock(int fd, int operation) noexcept {
  LGPU_REAL(flock);
  if (Scheduler* const scheduler = Scheduler::Here(); scheduler != nullptr) scheduler->Step("flock");
  const int file = RealOf(fd);
  return file == -1 ? -1 : real(file, operation);
}

LGPU_IN_FRONT int memfd_create(const char* name, unsigned flags) noexcept {
  LGPU_REAL(memfd_create);
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr) return real(name, flags);
  scheduler->Step("memfd_create");
  const int opened = AddFile(real(name, flags));
  if (opened < 0) return -1;
  const auto file = Descriptors::Get().FindKind<RealFile>(opened);
  file->SetMemfdName(name);
  struct stat info = {};
  if (::fstat(file->real(), &info) == 0) NewInode(info.st_ino);
  return opened;
}
