#ifndef LGPU_DAEMON_WAKER_H_
#define LGPU_DAEMON_WAKER_H_

namespace lgpu::daemon {

/// A Waker tells a waiting thread to look again. Thread-safe.
class Waker {
 public:
  virtual ~Waker() = default;
  /// Never blocks. No lock of the caller is held over it.
  virtual void Wake() const = 0;
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_WAKER_H_
