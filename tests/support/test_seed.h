#ifndef LGPU_TESTS_SUPPORT_TEST_SEED_H_
#define LGPU_TESTS_SUPPORT_TEST_SEED_H_

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string_view>

namespace lgpu {

/// The seed of a test's random numbers: the same in every run, printed, and changed by LGPU_TEST_SEED=N, or
/// by LGPU_TEST_SEED=random for one that no run had before.
inline std::uint32_t TestSeed() {
  const char* const given = std::getenv("LGPU_TEST_SEED");
  std::uint32_t seed = 20260131;
  if (given != nullptr && std::string_view(given) == "random") {
    seed = std::random_device{}();
  } else if (given != nullptr) {
    seed = static_cast<std::uint32_t>(std::strtoul(given, nullptr, 10));
  }
  std::printf("LGPU_TEST_SEED=%u\n", seed);
  return seed;
}

}  // namespace lgpu

#endif  // LGPU_TESTS_SUPPORT_TEST_SEED_H_
