#include "client/session/fork_guard.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

#include "base/check.h"

namespace lgpu {

/// The guards of this process, as an intrusive list: the child of a fork may not allocate.
struct ForkGuardList {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  ForkGuard* first = nullptr;

  static ForkGuardList& Get() {
    static ForkGuardList list;
    [[maybe_unused]] static const int registered = [] {
      const int result = pthread_atfork(&BeforeFork, &InParent, &InChild);
      LGPU_CHECK_OP(result, ==, 0);
      return result;
    }();
    return list;
  }

  void Add(ForkGuard* guard) {
    pthread_mutex_lock(&mutex);
    guard->next_ = first;
    if (first != nullptr) first->previous_ = guard;
    first = guard;
    pthread_mutex_unlock(&mutex);
  }
  void Remove(ForkGuard* guard) {
    pthread_mutex_lock(&mutex);
    (guard->previous_ != nullptr ? guard->previous_->next_ : first) = guard->next_;
    if (guard->next_ != nullptr) guard->next_->previous_ = guard->previous_;
    pthread_mutex_unlock(&mutex);
  }

  static void BeforeFork() { pthread_mutex_lock(&Get().mutex); }
  static void InParent() { pthread_mutex_unlock(&Get().mutex); }
  static void InChild() {
    int dead = ::eventfd(0, EFD_CLOEXEC);
    bool is_guarded = false;
    for (ForkGuard* guard = std::exchange(Get().first, nullptr); guard != nullptr;) {
      for (const int fd : guard->dead_in_child_) {
        // A process at its limit of open files can open one after this close. Where it cannot, no other file
        // of the child gets the number.
        if (dead < 0) {
          ::close(fd);
          dead = ::eventfd(0, EFD_CLOEXEC);
          is_guarded = dead == fd;
        }
        if (dead != fd && ::dup3(dead, fd, O_CLOEXEC) < 0) ::close(fd);
      }
      ForkGuard* next = std::exchange(guard->next_, nullptr);
      guard->previous_ = nullptr;
      guard = next;
    }
    if (dead >= 0 && !is_guarded) ::close(dead);
    pthread_mutex_unlock(&Get().mutex);
  }
};

absl::Status ForkedError() {
  return absl::FailedPreconditionError(
      "this process was forked from the one that opened the Context or LogicalMemory, and GPU memory does "
      "not "
      "survive a fork; open one of its own after exec (LGPU_LEASE attaches it to the same lease)");
}

ForkGuard::ForkGuard(std::vector<int> dead_in_child) : dead_in_child_(std::move(dead_in_child)) {
  ForkGuardList::Get().Add(this);
}

ForkGuard::~ForkGuard() {
  if (!IsForked()) ForkGuardList::Get().Remove(this);
}

}  // namespace lgpu
