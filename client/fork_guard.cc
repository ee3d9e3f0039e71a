#include "client/fork_guard.h"

#include <pthread.h>
#include <unistd.h>

#include <utility>

#include "allocator/check.h"

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
    for (ForkGuard* guard = std::exchange(Get().first, nullptr); guard != nullptr;) {
      for (const int fd : guard->close_in_child_) ::close(fd);
      ForkGuard* next = std::exchange(guard->next_, nullptr);
      guard->previous_ = nullptr;
      guard = next;
    }
    pthread_mutex_unlock(&Get().mutex);
  }
};

ForkGuard::ForkGuard(std::vector<int> close_in_child) : close_in_child_(std::move(close_in_child)) {
  ForkGuardList::Get().Add(this);
}

ForkGuard::~ForkGuard() {
  if (!IsForked()) ForkGuardList::Get().Remove(this);
}

}  // namespace lgpu
