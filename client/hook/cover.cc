#include "client/hook/cover.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <cerrno>
#include <climits>
#include <optional>
#include <string_view>
#include <utility>

#include "client/hook/refuse.h"

namespace lgpu::hook {
namespace {

// In the container: the lease's own folder, which the runtime has mounted, and the copies beside it. `lgpu
// rm` ends the first; programs then still start, and are refused memory.
constexpr char kLeaseFolder[] = "/run/lgpu";
constexpr char kCopies[] = "/usr/lib/lgpu/cover";
constexpr std::size_t kMostCopies = 64;
constexpr char kOldestGlibc[] = "GLIBC_2.28";

void MustMount(bool done, const std::string& what) {
  if (!done) Refuse("the kernel refuses " + what + ": " + Reason(errno) + " (Linux 5.12 or newer is needed)");
}

bool IsRootOfMount(int file) {
  struct statx found = {};
  return ::statx(file, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &found) == 0 &&
         (found.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

bool MoveMount(int mount, int target) {
  return ::move_mount(mount, "", target, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) == 0;
}

/// A file system in memory at kCopies. The descriptor is its root, also after it is mounted.
UniqueFd MountCopies(const Container& container) {
  const UniqueFd at = container.root.MakeFolder(kCopies);
  const UniqueFd context(::fsopen("tmpfs", FSOPEN_CLOEXEC));
  const auto set = [&context](const char* key, const std::string& value) {
    MustMount(::fsconfig(context.get(), FSCONFIG_SET_STRING, key, value.c_str(), 0) == 0,
              std::string("a file system with ") + key + "=" + value);
  };
  MustMount(static_cast<bool>(context), "a file system in memory");
  set("source", "lgpu");
  set("mode", "0755");
  set("size", "1g");
  if (!container.mount_label.empty()) set("context", container.mount_label);
  MustMount(::fsconfig(context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) == 0,
            "a file system in memory");
  UniqueFd mounted(::fsmount(context.get(), FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV));
  MustMount(mounted && MoveMount(mounted.get(), at.get()), std::string("a mount at ") + kCopies);
  return mounted;
}

void WriteCopy(int folder, const char* name, std::string_view bytes) {
  const UniqueFd file(::openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0755));
  bool done = file && ::fchmod(file.get(), 0755) == 0;  // overrides the umask
  while (done && !bytes.empty()) {
    const ssize_t wrote = ::write(file.get(), bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    done = wrote > 0;
    if (done) bytes.remove_prefix(static_cast<std::size_t>(wrote));
  }
  if (!done) Refuse(std::string("cannot write ") + name + " in " + kCopies + ": " + Reason(errno));
}

/// Mounts the file of `source` over the one of `target`.
void Bind(int source, int target, bool is_copy, const std::string& what) {
  const UniqueFd tree(::open_tree(source, "", AT_EMPTY_PATH | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
  MustMount(static_cast<bool>(tree), what);
  if (is_copy) {
    mount_attr attributes = {};
    attributes.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;
    MustMount(::mount_setattr(tree.get(), "", AT_EMPTY_PATH, &attributes, sizeof(attributes)) == 0, what);
  }
  MustMount(MoveMount(tree.get(), target), what);
}

/// Refuses where the container's C library cannot load lgpu's libraries. Without any that is found, the
/// driver, which needs one, decides.
void CheckGlibc(const Container& container, const std::vector<std::string>& folders) {
  std::string old;
  for (const std::string& folder : folders) {
    const UniqueFd library = container.root.OpenFile(folder + "/libc.so.6");
    if (!library || !shim::IsLibraryOfThisMachine(library.get())) continue;
    if (shim::HasName(library.get(), kOldestGlibc)) return;
    old = folder + "/libc.so.6";
  }
  if (!old.empty()) {
    Refuse("the container's C library, " + old + ", is older than glibc 2.28, which lgpu's libraries need");
  }
}

/// The folder of the lease has to be the one that programs find: with another socket there a container could
/// be its own lgpud.
void CheckLease(const Container& container, const Lease& lease) {
  const std::string socket = std::string(kLeaseFolder) + "/session.sock";
  struct stat inside = {};
  struct stat outside = {};
  const bool is_inside = container.root.Look(socket, &inside);
  // A user namespace may keep the hook from the lease's folder on the machine.
  const bool is_outside = ::stat((lease.directory + "/session.sock").c_str(), &outside) == 0;
  if (!is_inside && !is_outside) {
    Refuse("lease " + lease.id + " is gone: its folder, which is mounted at " + kLeaseFolder +
           ", has no socket");
  }
  bool is_other =
      is_outside && (!is_inside || inside.st_dev != outside.st_dev || inside.st_ino != outside.st_ino);
  for (const std::string& mount : container.mounts) {
    is_other = is_other || mount.starts_with(std::string(kLeaseFolder) + "/");
  }
  if (is_other) {
    Refuse("the container has another lease, or a volume, mounted at " + std::string(kLeaseFolder) +
           ", where the folder of lease " + lease.id + " has to be");
  }
}

class Covering {
 public:
  Covering(const Container& container, const Lease& lease)
      : container_(container),
        lease_(lease.id),
        variables_("LGPU_SHIM=on\nLGPU_LEASE=" + lease.id + "\nLGPU_ENDPOINT=" + kLeaseFolder + "\n" +
                   (lease.cards.empty() ? "" : "CUDA_VISIBLE_DEVICES=" + lease.cards + "\n")) {}

  /// How many files of the library were covered.
  std::size_t CoverAll(const Installed& installed, const std::vector<std::string>& paths) {
    std::size_t covered = 0;
    for (const std::string& path : paths) covered += CoverOne(installed, path) ? 1 : 0;
    return covered;
  }

  void MakeReadOnly() {
    if (!copies_) return;
    mount_attr attributes = {};
    attributes.attr_set = MOUNT_ATTR_RDONLY;
    MustMount(::mount_setattr(copies_.get(), "", AT_EMPTY_PATH, &attributes, sizeof(attributes)) == 0,
              std::string(kCopies) + " as read-only");
  }

 private:
  bool CoverOne(const Installed& installed, const std::string& path) {
    const UniqueFd real = container_.root.OpenFile(path);
    if (!real || !shim::IsLibraryOfThisMachine(real.get()) || IsCopy(installed.names, real.get(), path)) {
      return false;
    }
    if (!copies_) copies_ = MountCopies(container_);
    if (++made_ > kMostCopies) {
      Refuse("the container has more than " + std::to_string(kMostCopies) + " files of NVIDIA's driver");
    }
    const std::string number = std::to_string(made_);
    const std::string folder = std::string(kCopies) + "/" + number;
    const std::optional<std::string> copy = installed.file.CopyFor(folder, variables_);
    if (!copy) Refuse("the GPUs of lease " + lease_ + " have too long a list of names");
    UniqueFd made(::mkdirat(copies_.get(), number.c_str(), 0755) == 0
                      ? ::openat(copies_.get(), number.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)
                      : -1);
    if (!made || ::fchmod(made.get(), 0755) != 0) Refuse("cannot make " + folder + ": " + Reason(errno));
    WriteCopy(made.get(), installed.names.name, *copy);
    WriteCopy(made.get(), installed.names.real, "");
    const UniqueFd place(::openat(made.get(), installed.names.real, O_PATH | O_CLOEXEC));
    const UniqueFd ours(::openat(made.get(), installed.names.name, O_PATH | O_CLOEXEC));
    const UniqueFd beneath = TakeAway(real.get(), place.get(), path);
    if (!beneath) Bind(real.get(), place.get(), /*is_copy=*/false, "a mount of " + path);
    Bind(ours.get(), beneath ? beneath.get() : real.get(), /*is_copy=*/true, "a mount over " + path);
    return true;
  }

  /// Moves a mount of the runtime's to `place`, and returns the file beneath. The kernel ends mounts over a
  /// file that is removed: over the machine's own file, a copy would go with an upgrade of the driver. Empty:
  /// it is no mount, or one that cannot be moved, such as one of a namespace above.
  UniqueFd TakeAway(int real, int place, const std::string& path) const {
    if (!IsRootOfMount(real) || !MoveMount(real, place)) return UniqueFd();
    UniqueFd beneath = container_.root.OpenFile(path);
    if (!beneath) Refuse("there is no file beneath the mount of " + path + " in the container");
    return beneath;
  }

  /// Whether the file is one of lgpu's: a copy that this hook has made, of which `path` is another name, or
  /// an installed library. Refuses a copy for another lease.
  bool IsCopy(const Library& library, int file, const std::string& path) const {
    std::string damage;
    const std::optional<shim::ShimFile> shim = shim::ShimFile::Read(file, library.real, &damage);
    if (!damage.empty()) Refuse(path + " in the container is a library of lgpu's and damaged: " + damage);
    if (!shim) return false;
    if (shim->folder().empty()) return true;
    struct stat own = {};
    struct stat found = {};
    if (copies_ && ::fstat(copies_.get(), &own) == 0 && ::fstat(file, &found) == 0 &&
        own.st_dev == found.st_dev)
      return true;
    Refuse("the container has a lease already: " + path + " is limited, and lease " + lease_ +
           " would be a second one");
  }

  const Container& container_;
  const std::string lease_;
  const std::string variables_;
  UniqueFd copies_;
  std::size_t made_ = 0;
};

}  // namespace

std::vector<Installed> ReadInstalled() {
  char self[PATH_MAX + 1] = {};
  if (::readlink("/proc/self/exe", self, PATH_MAX) < 0) Refuse("cannot tell where this program lies");
  const std::string folder = std::string(self).substr(0, std::string_view(self).rfind('/'));
  std::vector<Installed> installed;
  for (const Library& library : {kCuda, kNvml}) {
    // Installed, and in the build tree.
    UniqueFd fd;
    for (const char* const beside : {"/driver/", "/lib/"}) {
      if (!fd) fd.Reset(::open((folder + beside + library.name).c_str(), O_RDONLY | O_CLOEXEC));
    }
    std::string damage = "it is not there";
    std::optional<shim::ShimFile> file =
        fd ? shim::ShimFile::Read(fd.get(), library.real, &damage) : std::nullopt;
    if (!file) {
      Refuse("lgpu's " + std::string(library.name) + " beside " + self +
             " cannot be used: " + (damage.empty() ? "it is not lgpu's" : damage));
    }
    installed.push_back({.names = library, .file = *std::move(file)});
  }
  return installed;
}

void Cover(const Container& container, const std::vector<Installed>& libraries, const Lease& lease) {
  CheckLease(container, lease);
  const std::vector<std::string> folders = LibraryFolders(container);
  Covering covering(container, lease);
  for (const Installed& installed : libraries) {
    const std::size_t covered = covering.CoverAll(installed, FilesNamed(container, folders, installed.names));
    if (covered == 0 && std::string_view(installed.names.name) == kCuda.name) {
      Refuse("the container has no libcuda.so.1, so nothing would limit it to lease " + lease.id +
             "; give it the GPU's own device too, for example --device nvidia.com/gpu=all");
    }
  }
  CheckGlibc(container, folders);
  covering.MakeReadOnly();
}

}  // namespace lgpu::hook
