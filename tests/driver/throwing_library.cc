// A library linked as the shims are: an exception in it is found by the libgcc in it and
// client/driver/old_glibc.c.

#include <stdexcept>
#include <string>

namespace {

struct Counted {
  explicit Counted(int& ends) : ends_(ends) {}
  ~Counted() { ++ends_; }
  int& ends_;
};

[[gnu::noinline]] void Throw(int depth, int& ends) {
  const Counted counted(ends);
  if (depth == 0) throw std::runtime_error("thrown");
  Throw(depth - 1, ends);
}

}  // namespace

/// The frames that an exception went through until it was caught; -1: another exception was caught.
extern "C" __attribute__((visibility("default"))) int FramesOfAnException(int depth) {
  int ends = 0;
  try {
    Throw(depth, ends);
  } catch (const std::runtime_error& error) {
    return error.what() == std::string("thrown") ? ends : -1;
  }
  return -1;
}
