#include "tests/simulation/machine/descriptors.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "tests/simulation/machine/real_calls.h"
#include "tests/simulation/machine/scheduler.h"

namespace lgpu::simulation {
namespace {

long Fail(int error) {
  errno = error;
  return -1;
}

}  // namespace

long Descriptor::Read(void*, std::size_t) { return Fail(EINVAL); }
long Descriptor::Write(const void*, std::size_t) { return Fail(EINVAL); }

std::set<const RealFile*>& RealFile::All() {
  static auto* const all = new std::set<const RealFile*>();
  return *all;
}

void RealFile::Ended() {
  All().erase(this);
  NoteChange();
  LGPU_REAL(close);
  real(real_);
}

RealFile::FileAbout RealFile::AboutOf(int real) {
  LGPU_REAL_AS(fstat, look);
  struct stat info = {};
  if (look(real, &info) != 0) return {};
  return {.inode = info.st_ino, .size = static_cast<std::uint64_t>(info.st_size)};
}

const RealFile::FileAbout& RealFile::About() const {
  if (!about_) about_ = AboutOf(real_);
  return *about_;
}

void RealFile::NoteSize(int real) {
  const FileAbout about = AboutOf(real);
  for (const RealFile* file : All()) {
    if (file->about_ && file->about_->inode == about.inode) file->about_ = about;
  }
  NoteChange();
}

void RealFile::SetMemfdName(std::string name) {
  memfd_name_ = std::move(name);
  NoteChange();
}

short RealFile::Ready() const { return POLLIN | POLLOUT; }

short EventFd::Ready() const { return static_cast<short>((count_ > 0 ? POLLIN : 0) | POLLOUT); }

long EventFd::Read(void* buffer, std::size_t bytes) {
  if (bytes < sizeof count_) return Fail(EINVAL);
  if (count_ == 0) return Fail(EAGAIN);
  std::memcpy(buffer, &count_, sizeof count_);
  count_ = 0;
  return sizeof count_;
}

long EventFd::Write(const void* buffer, std::size_t bytes) {
  std::uint64_t more = 0;
  if (bytes < sizeof more) return Fail(EINVAL);
  std::memcpy(&more, buffer, sizeof more);
  count_ += more;
  return sizeof more;
}

short TimerFd::Ready() const { return has_expired_ ? POLLIN : 0; }

long TimerFd::Read(void* buffer, std::size_t bytes) {
  const std::uint64_t times = 1;
  if (bytes < sizeof times) return Fail(EINVAL);
  if (!std::exchange(has_expired_, false)) return Fail(EAGAIN);
  std::memcpy(buffer, &times, sizeof times);
  return sizeof times;
}

void TimerFd::Set(Time at) {
  has_expired_ = false;
  ++setting_;
  if (at == Time(0)) return;
  Scheduler::Here()->At(at, [timer = weak_from_this(), setting = setting_] {
    const std::shared_ptr<TimerFd> live = timer.lock();
    if (live == nullptr || live->setting_ != setting) return;
    live->has_expired_ = true;
    Scheduler::Here()->DescriptorsChanged();
  });
}

short PidFd::Ready() const { return process.is_alive ? 0 : POLLIN; }

short Epoll::Ready() const {
  for (const auto& [fd, entry] : watched) {
    const std::shared_ptr<Descriptor> live = entry.descriptor.lock();
    if (live != nullptr && live->is_open() &&
        (live->Ready() & static_cast<short>(entry.events | POLLHUP | POLLERR)) != 0) {
      return POLLIN;
    }
  }
  return 0;
}

// Not destroyed: threads of this program may outlive its main function.
Descriptors& Descriptors::Get() {
  static Descriptors* const descriptors = new Descriptors();
  return *descriptors;
}

int Descriptors::Number(const MachineProcess& process, std::size_t index) {
  return kFirst + static_cast<int>(process.number) * kOfAProcess + static_cast<int>(index);
}

int Descriptors::Add(std::shared_ptr<Descriptor> descriptor, int least) {
  const MachineProcess& process = *Scheduler::Self().process;
  Table& table = tables_[process.number];
  const int first = IsSimulated(least) ? least - Number(process, 0) : least;
  std::size_t open = 0;
  for (const auto& entry : table) open += entry.get() != nullptr ? 1 : 0;
  if (open >= process.most_descriptors) return static_cast<int>(Fail(EMFILE));
  auto index = static_cast<std::size_t>(first);
  while (index < table.size() && table[index].get() != nullptr) ++index;
  if (index >= kOfAProcess) return static_cast<int>(Fail(EMFILE));
  if (index >= table.size()) table.resize(index + 1);
  table[index] = OpenDescriptor(std::move(descriptor));
  return Number(process, index);
}

OpenDescriptor<Descriptor>* Descriptors::Place(int fd) {
  const MachineProcess& process = *Scheduler::Self().process;
  Table& table = tables_[process.number];
  const int index = fd - Number(process, 0);
  if (index < 0 || index >= static_cast<int>(table.size()) ||
      table[static_cast<std::size_t>(index)].get() == nullptr) {
    errno = EBADF;
    return nullptr;
  }
  return &table[static_cast<std::size_t>(index)];
}

std::shared_ptr<Descriptor> Descriptors::Find(int fd) {
  const OpenDescriptor<Descriptor>* const place = Place(fd);
  return place == nullptr ? nullptr : place->get();
}

int Descriptors::Close(int fd) {
  OpenDescriptor<Descriptor>* const place = Place(fd);
  if (place == nullptr) return -1;
  *place = {};
  Scheduler::Here()->DescriptorsChanged();
  return 0;
}

int Descriptors::Replace(int fd, std::shared_ptr<Descriptor> descriptor) {
  OpenDescriptor<Descriptor>* const place = Place(fd);
  if (place == nullptr) return -1;
  *place = OpenDescriptor(std::move(descriptor));
  Scheduler::Here()->DescriptorsChanged();
  return fd;
}

void Descriptors::CloseAll(const MachineProcess& process) { tables_.erase(process.number); }

std::map<int, std::shared_ptr<Descriptor>> Descriptors::Of(const MachineProcess& process) const {
  std::map<int, std::shared_ptr<Descriptor>> open;
  const auto found = tables_.find(process.number);
  if (found == tables_.end()) return open;
  for (std::size_t i = 0; i < found->second.size(); ++i) {
    if (found->second[i].get() != nullptr) open[Number(process, i)] = found->second[i].get();
  }
  return open;
}

}  // namespace lgpu::simulation
