#ifndef LGPU_BENCH_KERNELS_BENCH_H_
#define LGPU_BENCH_KERNELS_BENCH_H_

#include <chrono>
#include <functional>
#include <string>

#include "lgpu/context.h"

namespace lgpu::bench {

struct Options {
  bool quick = false;
  bool needs_gpu = false;
};

/// Medians, in seconds.
struct Pair {
  double ours = 0, bare = 0;
};

template <typename Function>
double Seconds(const Function& function) {
  const auto start = std::chrono::steady_clock::now();
  function();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Makes the compiler believe that the memory was read.
void Keep(const void* data);
void Heading(const std::string& title, const std::string& unit);
void Row(const std::string& name, double ours, double bare, double ratio);
/// Both in turns, after one round that does not count.
Pair Compare(const Options& options, const std::function<void()>& ours, const std::function<void()>& bare);

/// False if something failed on a GPU, or if there is none and one is needed. Says which.
bool MeasureGpu(const Options& options);

/// A part of it; the GPU's context is current.
absl::Status MeasureCopies(const Options& options, const Context& gpu);

}  // namespace lgpu::bench

#endif  // LGPU_BENCH_KERNELS_BENCH_H_
