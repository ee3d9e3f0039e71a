#ifndef LGPU_ALLOCATOR_BROKER_WAKER_H_
#define LGPU_ALLOCATOR_BROKER_WAKER_H_

namespace lgpu {

/// A Waker tells a waiting thread to look again. Thread-safe.
class Waker {
 public:
  virtual ~Waker() = default;
  /// Never blocks. No lock of the caller is held over it.
  virtual void Wake() const = 0;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_WAKER_H_
