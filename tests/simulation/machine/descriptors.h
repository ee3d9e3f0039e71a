#ifndef LGPU_TESTS_SIMULATION_MACHINE_DESCRIPTORS_H_
#define LGPU_TESTS_SIMULATION_MACHINE_DESCRIPTORS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/simulation/machine/processes.h"

namespace lgpu::simulation {

/// A Descriptor is what one or more descriptors of processes stand for: a file, a socket, an event. It ends
/// with its last OpenDescriptor: a pointer on the stack of a thread that was killed does not keep it open.
class Descriptor {
 public:
  virtual ~Descriptor() = default;
  void Open() { ++uses_; }
  void Release() {
    if (--uses_ == 0) Ended();
  }
  bool is_open() const { return uses_ > 0; }
  /// POLLIN, POLLOUT, POLLHUP: what a poll would find now.
  virtual short Ready() const = 0;
  /// A real descriptor of this program; -1: it has none.
  virtual int real() const { return -1; }
  /// As read and write, without waiting: -1 and errno; EAGAIN.
  virtual long Read(void* buffer, std::size_t bytes);
  virtual long Write(const void* buffer, std::size_t bytes);

  bool is_nonblocking = false;

 protected:
  /// The last use is over.
  virtual void Ended() {}

 private:
  int uses_ = 0;
};

/// One use of a descriptor: in the table of a process, mapped, or on its way in a socket.
template <typename Kind>
class OpenDescriptor {
 public:
  OpenDescriptor() = default;
  explicit OpenDescriptor(std::shared_ptr<Kind> descriptor) : descriptor_(std::move(descriptor)) {
    if (descriptor_ != nullptr) descriptor_->Open();
  }
  OpenDescriptor(const OpenDescriptor& other) : OpenDescriptor(other.descriptor_) {}
  OpenDescriptor(OpenDescriptor&& other) noexcept : descriptor_(std::exchange(other.descriptor_, nullptr)) {}
  OpenDescriptor& operator=(OpenDescriptor other) {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~OpenDescriptor() {
    if (descriptor_ != nullptr) descriptor_->Release();
  }
  const std::shared_ptr<Kind>& get() const { return descriptor_; }

 private:
  std::shared_ptr<Kind> descriptor_;
};

/// A file, directory or memfd of this program.
class RealFile final : public Descriptor {
 public:
  explicit RealFile(int real) : real_(real) {
    All().insert(this);
    NoteChange();
  }
  short Ready() const override;
  int real() const override { return real_; }

  /// Empty: it is no memfd.
  const std::string& memfd_name() const { return memfd_name_; }
  void SetMemfdName(std::string name);

  /// All that are open or mapped in some process, or on their way in a socket.
  static std::set<const RealFile*>& All();
  /// Rises with each change of All, of a name, and of a file's size.
  static std::uint64_t changes() { return changes_; }
  /// The size of the file with this real descriptor has changed.
  static void NoteSize(int real);
  std::uint64_t inode() const { return About().inode; }
  std::uint64_t size() const { return About().size; }

 private:
  struct FileAbout {
    std::uint64_t inode = 0, size = 0;
  };
  static FileAbout AboutOf(int real);
  const FileAbout& About() const;
  static void NoteChange() { ++changes_; }
  void Ended() override;

  static inline std::uint64_t changes_ = 0;
  const int real_;
  mutable std::optional<FileAbout> about_;  // nothing: About() was not called yet
  std::string memfd_name_;
};

class EventFd final : public Descriptor {
 public:
  explicit EventFd(std::uint64_t count) : count_(count) {}
  short Ready() const override;
  long Read(void* buffer, std::size_t bytes) override;
  long Write(const void* buffer, std::size_t bytes) override;

 private:
  std::uint64_t count_;
};

class TimerFd final : public Descriptor, public std::enable_shared_from_this<TimerFd> {
 public:
  short Ready() const override;
  long Read(void* buffer, std::size_t bytes) override;
  /// Zero: it is stopped.
  void Set(Time at);

 private:
  std::uint64_t setting_ = 0;  // how often it was set
  bool has_expired_ = false;
};

class PidFd final : public Descriptor {
 public:
  explicit PidFd(const MachineProcess& of) : process(of) {}
  short Ready() const override;
  const MachineProcess& process;
};

class Epoll final : public Descriptor {
 public:
  struct Watched {
    std::weak_ptr<Descriptor> descriptor;
    std::uint32_t events = 0;
    std::uint64_t data = 0;
  };
  short Ready() const override;
  std::map<int, Watched> watched;  // by the descriptor's number
};

/// The table of all processes' descriptors. A number belongs to one process, so that a number of another
/// process is a wrong one.
class Descriptors {
 public:
  static constexpr int kFirst = 1 << 20;
  static constexpr int kOfAProcess = 2048;
  static bool IsSimulated(int fd) { return fd >= kFirst; }

  static Descriptors& Get();
  /// The lowest free number of the calling process that is at least its number `least`; -1 and EMFILE.
  int Add(std::shared_ptr<Descriptor> descriptor, int least = 0);
  /// Of the calling process; null and EBADF.
  std::shared_ptr<Descriptor> Find(int fd);
  template <typename Kind>
  std::shared_ptr<Kind> FindKind(int fd) {
    return std::dynamic_pointer_cast<Kind>(Find(fd));
  }
  int Close(int fd);
  /// Puts the descriptor into the place of `fd`.
  int Replace(int fd, std::shared_ptr<Descriptor> descriptor);
  void CloseAll(const MachineProcess& process);
  /// By number.
  std::map<int, std::shared_ptr<Descriptor>> Of(const MachineProcess& process) const;

 private:
  using Table = std::vector<OpenDescriptor<Descriptor>>;
  OpenDescriptor<Descriptor>* Place(int fd);
  static int Number(const MachineProcess& process, std::size_t index);

  std::map<std::uint64_t, Table> tables_;  // by the process's number
};

}  // namespace lgpu::simulation

#endif  // LGPU_TESTS_SIMULATION_MACHINE_DESCRIPTORS_H_
