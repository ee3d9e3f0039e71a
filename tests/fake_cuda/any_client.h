#ifndef LGPU_TESTS_FAKE_CUDA_ANY_CLIENT_H_
#define LGPU_TESTS_FAKE_CUDA_ANY_CLIENT_H_

#include <cuda.h>

#include <cstddef>
#include <cstdio>
#include <functional>
#include <map>
#include <string>

namespace any_client {

inline constexpr std::size_t kMiB = std::size_t{1} << 20;

extern int wrong;

#define EXPECT(condition)                                                                \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s, line %d: not so: %s\n", __FILE__, __LINE__, #condition); \
      ++any_client::wrong;                                                               \
    }                                                                                    \
  } while (false)
#define OK(call) EXPECT((call) == CUDA_SUCCESS)

std::size_t Free();
/// By how much `free` fell since `before`.
std::size_t Taken(std::size_t before);
/// The driver with the primary context of device 0 current.
CUcontext Start();
/// A chunk of device 0.
CUmemGenericAllocationHandle Create(std::size_t bytes);

/// The cases of any_client_wide.cc.
const std::map<std::string, std::function<void()>>& WideCases();

}  // namespace any_client

#endif  // LGPU_TESTS_FAKE_CUDA_ANY_CLIENT_H_
