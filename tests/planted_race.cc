// A data race on purpose: ThreadSanitizer, with the suppressions of tests/tsan.supp, has to report it. It
// ends with 0 only if the race went unseen.

#include <thread>

namespace lgpu {
namespace {

int unguarded = 0;

void Increment() {
  for (int i = 0; i < 1000; ++i) ++unguarded;
}

}  // namespace
}  // namespace lgpu

int main() {
  std::thread other(lgpu::Increment);
  lgpu::Increment();
  other.join();
  return 0;
}
