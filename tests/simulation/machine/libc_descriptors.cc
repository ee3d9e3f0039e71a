// libc's calls for descriptors of every kind, in front of the real ones.

#include <fcntl.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>

#include "tests/simulation/machine/clock.h"
#include "tests/simulation/machine/descriptors.h"
#include "tests/simulation/machine/file_faults.h"
#include "tests/simulation/machine/real_calls.h"
#include "tests/simulation/machine/sockets.h"

using namespace lgpu::simulation;  // NOLINT: definitions in the global namespace

namespace {

short PollOne(const pollfd& entry) {
  const std::shared_ptr<Descriptor> descriptor = Descriptors::Get().Find(entry.fd);
  if (descriptor == nullptr) return POLLNVAL;
  return static_cast<short>(descriptor->Ready() & (entry.events | POLLHUP | POLLERR));
}

int PollAll(pollfd* entries, nfds_t count) {
  int ready = 0;
  for (nfds_t i = 0; i < count; ++i) {
    entries[i].revents = entries[i].fd < 0 ? short{0} : PollOne(entries[i]);
    ready += entries[i].revents != 0 ? 1 : 0;
  }
  return ready;
}

// The descriptors are held, so that the scheduler can look at them on other threads.
std::function<bool()> IsAnyReady(const pollfd* entries, nfds_t count) {
  std::vector<std::pair<std::shared_ptr<Descriptor>, short>> waited;
  for (nfds_t i = 0; i < count; ++i) {
    if (entries[i].fd < 0) continue;
    waited.emplace_back(Descriptors::Get().Find(entries[i].fd),
                        static_cast<short>(entries[i].events | POLLHUP | POLLERR));
  }
  return [waited = std::move(waited)] {
    for (const auto& [descriptor, events] : waited) {
      if ((descriptor->Ready() & events) != 0) return true;
    }
    return false;
  };
}

int Poll(Scheduler& scheduler, pollfd* entries, nfds_t count, std::optional<Time> deadline) {
  scheduler.Step("poll", count);
  while (true) {
    const int ready = PollAll(entries, count);
    if (ready > 0 || (deadline && *deadline <= scheduler.now())) return ready;
    // A wait that is interrupted holds no descriptor open.
    if (!scheduler.Block("descriptors", nullptr, IsAnyReady(entries, count), deadline)) {
      return PollAll(entries, count);
    }
  }
}

template <typename Call>
long WaitUnlessNonblocking(Scheduler& scheduler, Descriptor& descriptor, short events, Call call) {
  while (true) {
    const long result = call();
    if (result >= 0 || errno != EAGAIN || descriptor.is_nonblocking) return result;
    scheduler.Block("a descriptor", nullptr, [&] { return (descriptor.Ready() & events) != 0; }, {});
  }
}

}  // namespace

LGPU_IN_FRONT int close(int fd) {
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr || !Descriptors::IsSimulated(fd)) {
    LGPU_REAL(close);
    return real(fd);
  }
  const int result = Descriptors::Get().Close(fd);
  scheduler->Step("close");
  return result;
}

static bool IsEventFd(int fd) { return Descriptors::Get().FindKind<EventFd>(fd) != nullptr; }

LGPU_IN_FRONT ssize_t read(int fd, void* buffer, std::size_t bytes) {
  Scheduler* const scheduler = Scheduler::Here();
  LGPU_REAL(read);
  if (scheduler == nullptr || !Descriptors::IsSimulated(fd)) return real(fd, buffer, bytes);
  if (const auto& then = Scheduler::Self().process->on_clear; then && IsEventFd(fd)) then();
  scheduler->Step("read", bytes);
  const std::shared_ptr<Descriptor> descriptor = Descriptors::Get().Find(fd);
  if (descriptor == nullptr) return -1;
  if (descriptor->real() >= 0) return real(descriptor->real(), buffer, bytes);
  return WaitUnlessNonblocking(*scheduler, *descriptor, POLLIN,
                               [&] { return descriptor->Read(buffer, bytes); });
}

LGPU_IN_FRONT ssize_t write(int fd, const void* buffer, std::size_t bytes) {
  Scheduler* const scheduler = Scheduler::Here();
  LGPU_REAL(write);
  if (scheduler == nullptr || !Descriptors::IsSimulated(fd)) return real(fd, buffer, bytes);
  const std::shared_ptr<Descriptor> descriptor = Descriptors::Get().Find(fd);
  if (descriptor == nullptr) return -1;
  if (const auto* const file = dynamic_cast<const RealFile*>(descriptor.get())) {
    return WriteWithFaults(*scheduler, "write", *file, bytes,
                           [&](std::size_t part) { return real(file->real(), buffer, part); });
  }
  scheduler->Step("write", bytes);
  const long result = WaitUnlessNonblocking(*scheduler, *descriptor, POLLOUT,
                                            [&] { return descriptor->Write(buffer, bytes); });
  scheduler->DescriptorsChanged();
  return result;
}

LGPU_IN_FRONT int fcntl(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  const auto number = static_cast<int>(reinterpret_cast<std::intptr_t>(argument));
  Scheduler* const scheduler = Scheduler::Here();
  LGPU_REAL(fcntl);
  if (scheduler == nullptr || !Descriptors::IsSimulated(fd)) return real(fd, command, argument);
  const std::shared_ptr<Descriptor> descriptor = Descriptors::Get().Find(fd);
  if (descriptor == nullptr) return -1;
  if (command == F_DUPFD || command == F_DUPFD_CLOEXEC) {
    scheduler->Step("dup");
    return Descriptors::Get().Add(descriptor, number);
  }
  if (command == F_GETFD) return FD_CLOEXEC;
  if (command == F_SETFD) return 0;
  if (command == F_SETFL) descriptor->is_nonblocking = (number & O_NONBLOCK) != 0;
  if (descriptor->real() >= 0) return real(descriptor->real(), command, argument);
  if (command == F_GETFL) return O_RDWR | (descriptor->is_nonblocking ? O_NONBLOCK : 0);
  if (command == F_SETFL) return 0;
  errno = EINVAL;
  return -1;
}

LGPU_IN_FRONT int fcntl64(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  return fcntl(fd, command, argument);
}

LGPU_IN_FRONT int dup3(int from, int to, int flags) noexcept {
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr || !Descriptors::IsSimulated(from)) {
    LGPU_REAL(dup3);
    return real(from, to, flags);
  }
  scheduler->Step("dup");
  std::shared_ptr<Descriptor> descriptor = Descriptors::Get().Find(from);
  return descriptor == nullptr ? -1 : Descriptors::Get().Replace(to, std::move(descriptor));
}

LGPU_IN_FRONT int ioctl(int fd, unsigned long request, ...) noexcept {
  va_list arguments;
  va_start(arguments, request);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  if (Scheduler::Here() == nullptr || !Descriptors::IsSimulated(fd)) {
    LGPU_REAL(ioctl);
    return real(fd, request, argument);
  }
  const auto socket = Descriptors::Get().FindKind<UnixSocket>(fd);
  if (socket == nullptr || request != SIOCOUTQ) {
    errno = EINVAL;
    return -1;
  }
  *static_cast<int*>(argument) = static_cast<int>(socket->unread());
  return 0;
}

LGPU_IN_FRONT int poll(pollfd* entries, nfds_t count, int timeout) {
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr) {
    LGPU_REAL(poll);
    return real(entries, count, timeout);
  }
  return Poll(*scheduler, entries, count, DeadlineIn(*scheduler, timeout));
}

LGPU_IN_FRONT int ppoll(pollfd* entries, nfds_t count, const timespec* timeout, const sigset_t* signals) {
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr) {
    LGPU_REAL(ppoll);
    return real(entries, count, timeout, signals);
  }
  std::optional<Time> deadline;
  if (timeout != nullptr) deadline = scheduler->now() + FromTimespec(*timeout);
  return Poll(*scheduler, entries, count, deadline);
}

LGPU_IN_FRONT int eventfd(unsigned count, int flags) noexcept {
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr) {
    LGPU_REAL(eventfd);
    return real(count, flags);
  }
  scheduler->Step("eventfd");
  auto descriptor = std::make_shared<EventFd>(count);
  descriptor->is_nonblocking = (flags & EFD_NONBLOCK) != 0;
  return Descriptors::Get().Add(std::move(descriptor));
}

LGPU_IN_FRONT int timerfd_create(int clock, int flags) noexcept {
  if (Scheduler::Here() == nullptr) {
    LGPU_REAL(timerfd_create);
    return real(clock, flags);
  }
  auto descriptor = std::make_shared<TimerFd>();
  descriptor->is_nonblocking = (flags & TFD_NONBLOCK) != 0;
  return Descriptors::Get().Add(std::move(descriptor));
}

LGPU_IN_FRONT int timerfd_settime(int fd, int flags, const itimerspec* value, itimerspec* before) noexcept {
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr || !Descriptors::IsSimulated(fd)) {
    LGPU_REAL(timerfd_settime);
    return real(fd, flags, value, before);
  }
  scheduler->Step("timer");
  const auto timer = Descriptors::Get().FindKind<TimerFd>(fd);
  if (timer == nullptr) return -1;
  const Time length = FromTimespec(value->it_value);
  const bool is_absolute = (flags & TFD_TIMER_ABSTIME) != 0;
  timer->Set(length == Time(0) ? Time(0)
             : is_absolute     ? length - kMonotonicStart
                               : scheduler->now() + length);
  return 0;
}

LGPU_IN_FRONT int epoll_create1(int flags) noexcept {
  if (Scheduler::Here() == nullptr) {
    LGPU_REAL(epoll_create1);
    return real(flags);
  }
  return Descriptors::Get().Add(std::make_shared<Epoll>());
}

LGPU_IN_FRONT int epoll_ctl(int fd, int operation, int watched, epoll_event* event) noexcept {
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr || !Descriptors::IsSimulated(fd)) {
    LGPU_REAL(epoll_ctl);
    return real(fd, operation, watched, event);
  }
  scheduler->Step("epoll_ctl", static_cast<std::uint64_t>(operation));
  const auto epoll = Descriptors::Get().FindKind<Epoll>(fd);
  const std::shared_ptr<Descriptor> descriptor = Descriptors::Get().Find(watched);
  if (epoll == nullptr || descriptor == nullptr) return -1;
  // As the kernel does, a descriptor that is closed, or replaced by dup3, is out of the set.
  const auto found = epoll->watched.find(watched);
  if (found != epoll->watched.end() && found->second.descriptor.lock() != descriptor) {
    epoll->watched.erase(found);
  }
  const bool is_known = epoll->watched.contains(watched);
  if (is_known == (operation == EPOLL_CTL_ADD)) {
    errno = is_known ? EEXIST : ENOENT;
    return -1;
  }
  if (operation == EPOLL_CTL_DEL) {
    epoll->watched.erase(watched);
  } else {
    epoll->watched[watched] = {.descriptor = descriptor, .events = event->events, .data = event->data.u64};
  }
  scheduler->DescriptorsChanged();
  return 0;
}

LGPU_IN_FRONT int epoll_wait(int fd, epoll_event* events, int most, int timeout) {
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr || !Descriptors::IsSimulated(fd)) {
    LGPU_REAL(epoll_wait);
    return real(fd, events, most, timeout);
  }
  scheduler->Step("epoll_wait");
  const std::optional<Time> deadline = DeadlineIn(*scheduler, timeout);
  const auto epoll = Descriptors::Get().FindKind<Epoll>(fd);
  if (epoll == nullptr) return -1;
  while (true) {
    int found = 0;
    for (const auto& [watched, entry] : epoll->watched) {
      const std::shared_ptr<Descriptor> live = entry.descriptor.lock();
      if (live == nullptr || !live->is_open() || found == most) continue;
      const auto ready =
          static_cast<std::uint32_t>(live->Ready() & static_cast<short>(entry.events | POLLHUP | POLLERR));
      if (ready == 0) continue;
      events[found].events = ready;
      events[found++].data.u64 = entry.data;
    }
    if (found > 0 || (deadline && *deadline <= scheduler->now())) return found;
    scheduler->Block(
        "descriptors", nullptr, [epoll] { return epoll->Ready() != 0; }, deadline);
  }
}

LGPU_IN_FRONT int eventfd_write(int fd, eventfd_t value) {
  return write(fd, &value, sizeof value) == sizeof value ? 0 : -1;
}

LGPU_IN_FRONT int eventfd_read(int fd, eventfd_t* value) {
  return read(fd, value, sizeof *value) == sizeof *value ? 0 : -1;
}
