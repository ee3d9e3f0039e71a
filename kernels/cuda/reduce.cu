#include "kernels/bodies/reduce.h"
#include "kernels/bodies/softmax.h"
#include "kernels/cuda/launch.cuh"

namespace {

using lgpu::code::kBlockThreads;

/// shared[t] becomes the combination of the values of the threads t % lanes, t % lanes + lanes, ...
template <typename T, typename Combine>
__device__ void CombineRows(T* shared, int lanes, Combine combine) {
  __syncthreads();
  for (int rows = kBlockThreads / lanes / 2; rows > 0; rows /= 2) {
    if (threadIdx.x < rows * lanes) {
      shared[threadIdx.x] = combine(shared[threadIdx.x], shared[threadIdx.x + rows * lanes]);
    }
    __syncthreads();
  }
}

/// Sums of elements of `From`, as elements of `To`.
template <typename From, typename To>
__device__ void Reduce(const lgpu::code::ReduceParameters& p) {
  using Sum = lgpu::code::SumOf<To>;
  __shared__ Sum shared[kBlockThreads];
  const int lane = threadIdx.x % p.lanes;
  const std::uint64_t groups = (p.outputs + p.lanes - 1) / p.lanes;
  for (std::uint64_t i = blockIdx.x; i < groups * p.splits; i += gridDim.x) {
    const std::uint64_t split = i % p.splits;
    const std::uint64_t output = i / p.splits * p.lanes + lane;
    shared[threadIdx.x] = output < p.outputs
                              ? lgpu::code::PartialSum<From>(p, output, split, threadIdx.x / p.lanes,
                                                             kBlockThreads / p.lanes)
                              : Sum{0};
    CombineRows(shared, p.lanes, [](Sum a, Sum b) { return a + b; });
    // Its own element of `shared`: the next round may begin.
    if (threadIdx.x < p.lanes && output < p.outputs) lgpu::code::WriteSum<To>(p, output, split, shared[lane]);
  }
}

// Neighbouring threads share a row. In `shared` those of a row are the ones with the same number modulo the rows.
template <typename T>
__device__ void Softmax(const lgpu::code::SoftmaxParameters& p) {
  __shared__ double shared[kBlockThreads];
  const int rows = kBlockThreads / p.lanes;
  const int lane = threadIdx.x % p.lanes;
  const int slot = threadIdx.x / p.lanes;
  const int cell = lane * rows + slot;
  for (std::uint64_t first = std::uint64_t{blockIdx.x} * rows; first < p.rows;
       first += std::uint64_t{gridDim.x} * rows) {
    const std::uint64_t row = first + slot;
    const bool there = row < p.rows;
    lgpu::code::SoftmaxPart<T> part;
    if (there) part = lgpu::code::PartOfRow<T>(p, row, lane, p.lanes);
    shared[cell] = part.most;
    CombineRows(shared, rows, [](double a, double b) { return lgpu::code::Larger(a, b); });
    const double most = shared[slot];
    __syncthreads();
    shared[cell] = part.SumFor(most);
    CombineRows(shared, rows, [](double a, double b) { return a + b; });
    const double sum = shared[slot];
    if (there) lgpu::code::WriteSoftmax<T>(p, row, most, sum, lane, p.lanes);
    __syncthreads();
  }
}

}  // namespace

#define LGPU_REDUCE(name, type)                                                                             \
  extern "C" LGPU_KERNEL lgpu_reduce_##name(const __grid_constant__ lgpu::code::ReduceParameters p) {   \
    Reduce<type, type>(p);                                                                                  \
  }
LGPU_FOR_NUMBERS(LGPU_REDUCE)

// The second launch of a sum that was split. Where a type is its own sum's, lgpu_reduce does it.
#define LGPU_REDUCE_PARTIALS(name, type)                                                      \
  extern "C" LGPU_KERNEL lgpu_reduce_partials_##name(                                     \
      const __grid_constant__ lgpu::code::ReduceParameters p) {                               \
    Reduce<lgpu::code::SumOf<type>, type>(p);                                                 \
  }
LGPU_REDUCE_PARTIALS(half, lgpu::code::HalfBits)
LGPU_REDUCE_PARTIALS(bfloat16, lgpu::code::BFloat16Bits)
LGPU_REDUCE_PARTIALS(float, float)
LGPU_REDUCE_PARTIALS(int32, std::uint32_t)

#define LGPU_SOFTMAX(name, type)                                                                            \
  extern "C" LGPU_KERNEL_FOR(2) lgpu_softmax_##name(const __grid_constant__ lgpu::code::SoftmaxParameters p) { \
    Softmax<type>(p);                                                                                       \
  }
LGPU_FOR_FLOATS(LGPU_SOFTMAX)
