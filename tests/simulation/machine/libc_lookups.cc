// libc's calls that look at files and folders, in front of the real ones.

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>

#include "tests/simulation/machine/paths.h"
#include "tests/simulation/machine/proc_directory.h"
#include "tests/simulation/machine/real_calls.h"

using namespace lgpu::simulation;  // NOLINT: definitions in the global namespace

namespace lgpu::simulation {

int RealTextFile(const std::string& text) {
  LGPU_REAL(memfd_create);
  LGPU_REAL_AS(pwrite, real_pwrite);
  const int file = real("text", MFD_CLOEXEC);
  if (file >= 0) (void)!real_pwrite(file, text.data(), text.size(), 0);
  return file;
}

}  // namespace lgpu::simulation

namespace {

// A folder of /proc that is being read; its address stands for it as a DIR.
struct OpenFolder {
  std::shared_ptr<ProcDirectory> directory;
  int fd = -1;
  std::size_t next = 0;
  dirent entry = {};
};

std::map<DIR*, std::unique_ptr<OpenFolder>>& OpenFolders() {
  static auto* const folders = new std::map<DIR*, std::unique_ptr<OpenFolder>>();
  return *folders;
}

int StatDescriptor(const Descriptor& descriptor, struct stat* info) {
  LGPU_REAL(fstat);
  if (descriptor.real() >= 0) {
    const int result = real(descriptor.real(), info);
    if (result != 0) return result;
    info->st_ino = SimulatedInode(info->st_ino);
    // fallocate gives memfds no pages here, so that a simulation does not clear them.
    const auto* const file = dynamic_cast<const RealFile*>(&descriptor);
    if (file != nullptr && !file->memfd_name().empty()) info->st_blocks = info->st_size / 512;
    return result;
  }
  *info = {};
  info->st_mode = S_IFSOCK | 0600;
  return 0;
}

// Of a path in /proc; `follow`: what a link leads to.
int StatProc(const ProcPath& path, struct stat* info, bool follow) {
  const std::shared_ptr<Descriptor> descriptor = ProcDescriptor(path);
  if (descriptor != nullptr && follow) return StatDescriptor(*descriptor, info);
  *info = {};
  if (path.process != nullptr) info->st_uid = path.process->uid;
  const bool is_folder = path.is_root || (path.process != nullptr && (path.rest.empty() || ProcNames(path)));
  if (descriptor != nullptr) {
    info->st_mode = S_IFLNK | 0700;
    info->st_size = 0;
  } else if (is_folder) {
    info->st_mode = S_IFDIR | 0555;
  } else if (ProcText(path)) {
    info->st_mode = S_IFREG | 0444;
  } else {
    errno = ENOENT;
    return -1;
  }
  return 0;
}

}  // namespace

LGPU_IN_FRONT int stat(const char* path, struct stat* info) noexcept {
  LGPU_REAL(stat);
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr) return real(path, info);
  scheduler->Step("stat");
  if (const std::optional<ProcPath> proc = ParseProcPath(path)) return StatProc(*proc, info, true);
  const int result = real(RealPath(path).c_str(), info);
  if (result == 0) info->st_ino = SimulatedInode(info->st_ino);
  return result;
}

LGPU_IN_FRONT int lstat(const char* path, struct stat* info) noexcept {
  LGPU_REAL(lstat);
  if (Scheduler::Here() == nullptr) return real(path, info);
  if (const std::optional<ProcPath> proc = ParseProcPath(path)) return StatProc(*proc, info, false);
  return real(path, info);
}

LGPU_IN_FRONT int fstat(int fd, struct stat* info) noexcept {
  LGPU_REAL(fstat);
  if (Scheduler::Here() == nullptr || !Descriptors::IsSimulated(fd)) return real(fd, info);
  const std::shared_ptr<Descriptor> descriptor = Descriptors::Get().Find(fd);
  return descriptor == nullptr ? -1 : StatDescriptor(*descriptor, info);
}

LGPU_IN_FRONT int fstatat(int directory, const char* path, struct stat* info, int flags) noexcept {
  LGPU_REAL(fstatat);
  if (Scheduler::Here() == nullptr || !Descriptors::IsSimulated(directory)) {
    return real(directory, path, info, flags);
  }
  const std::shared_ptr<Descriptor> parent = Descriptors::Get().Find(directory);
  return parent == nullptr ? -1 : real(parent->real(), path, info, flags);
}

// On this machine's 64 bits the two are one type.
LGPU_IN_FRONT int stat64(const char* path, struct stat64* info) noexcept {
  return stat(path, reinterpret_cast<struct stat*>(info));
}
LGPU_IN_FRONT int lstat64(const char* path, struct stat64* info) noexcept {
  return lstat(path, reinterpret_cast<struct stat*>(info));
}
LGPU_IN_FRONT int fstat64(int fd, struct stat64* info) noexcept {
  return fstat(fd, reinterpret_cast<struct stat*>(info));
}

LGPU_IN_FRONT int access(const char* path, int mode) noexcept {
  LGPU_REAL(access);
  if (Scheduler::Here() == nullptr) return real(path, mode);
  struct stat info = {};
  if (const std::optional<ProcPath> proc = ParseProcPath(path)) return StatProc(*proc, &info, true);
  return real(RealPath(path).c_str(), mode);
}

LGPU_IN_FRONT ssize_t readlink(const char* path, char* buffer, std::size_t bytes) noexcept {
  LGPU_REAL(readlink);
  if (Scheduler::Here() == nullptr) return real(path, buffer, bytes);
  const std::optional<ProcPath> proc = ParseProcPath(path);
  if (!proc) return real(path, buffer, bytes);
  const std::shared_ptr<Descriptor> descriptor = ProcDescriptor(*proc);
  if (descriptor == nullptr) {
    errno = ENOENT;
    return -1;
  }
  const std::string target = ProcLink(*descriptor);
  const std::size_t copied = std::min(bytes, target.size());
  std::memcpy(buffer, target.data(), copied);
  return static_cast<ssize_t>(copied);
}

LGPU_IN_FRONT DIR* fdopendir(int fd) {
  LGPU_REAL(fdopendir);
  if (Scheduler::Here() == nullptr || !Descriptors::IsSimulated(fd)) return real(fd);
  const std::shared_ptr<Descriptor> descriptor = Descriptors::Get().Find(fd);
  if (descriptor == nullptr) return nullptr;
  auto folder = std::make_unique<OpenFolder>();
  folder->directory = std::dynamic_pointer_cast<ProcDirectory>(descriptor);
  folder->fd = fd;
  if (folder->directory == nullptr) {
    LGPU_REAL_AS(dup, real_dup);
    DIR* const opened = real(real_dup(descriptor->real()));
    if (opened != nullptr) Descriptors::Get().Close(fd);
    return opened;
  }
  auto* const opened = reinterpret_cast<DIR*>(folder.get());
  OpenFolders()[opened] = std::move(folder);
  return opened;
}

LGPU_IN_FRONT DIR* opendir(const char* path) {
  if (Scheduler::Here() == nullptr) {
    LGPU_REAL(opendir);
    return real(path);
  }
  const int fd = openat(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  return fd < 0 ? nullptr : fdopendir(fd);
}

LGPU_IN_FRONT dirent* readdir(DIR* directory) {
  LGPU_REAL(readdir);
  const auto found = Scheduler::Here() == nullptr ? OpenFolders().end() : OpenFolders().find(directory);
  if (found == OpenFolders().end()) return real(directory);
  OpenFolder& folder = *found->second;
  if (folder.next == folder.directory->names.size()) return nullptr;
  const std::string& name = folder.directory->names[folder.next++];
  folder.entry = {};
  folder.entry.d_type = DT_UNKNOWN;
  std::memcpy(folder.entry.d_name, name.c_str(), std::min(name.size() + 1, sizeof folder.entry.d_name));
  return &folder.entry;
}

LGPU_IN_FRONT int closedir(DIR* directory) {
  LGPU_REAL(closedir);
  const auto found = Scheduler::Here() == nullptr ? OpenFolders().end() : OpenFolders().find(directory);
  if (found == OpenFolders().end()) return real(directory);
  const int fd = found->second->fd;
  OpenFolders().erase(found);
  return Descriptors::Get().Close(fd);
}
