#include "kernels/bodies/reduce.h"
#include "kernels/bodies/softmax.h"
#include "kernels/cuda/launch.cuh"

namespace {

using lgpu::code::kBlockThreads;

/// shared[t] becomes the combination of what the threads t % lanes, t % lanes + lanes, ... have.
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

template <typename T>
__device__ void Reduce(const lgpu::code::ReduceParameters& p) {
  using Sum = lgpu::code::SumOf<T>;
  __shared__ Sum shared[kBlockThreads];
  const int lane = threadIdx.x % p.lanes;
  for (std::uint64_t first = std::uint64_t{blockIdx.x} * p.lanes; first < p.outputs;
       first += std::uint64_t{gridDim.x} * p.lanes) {
    const std::uint64_t output = first + lane;
    shared[threadIdx.x] = output < p.outputs ? lgpu::code::PartialSum<T>(p, output, threadIdx.x / p.lanes,
                                                                         kBlockThreads / p.lanes)
                                             : Sum{0};
    CombineRows(shared, p.lanes, [](Sum a, Sum b) { return a + b; });
    if (threadIdx.x < p.lanes && output < p.outputs) lgpu::code::WriteSum<T>(p, output, shared[lane]);
    __syncthreads();
  }
}

// Here the threads of a row are those with the same number modulo the rows of the block.
template <typename T>
__device__ void Softmax(const lgpu::code::SoftmaxParameters& p) {
  __shared__ double shared[kBlockThreads];
  const int rows = kBlockThreads / p.lanes;
  const int lane = threadIdx.x / rows;
  const int slot = threadIdx.x % rows;
  for (std::uint64_t first = std::uint64_t{blockIdx.x} * rows; first < p.rows;
       first += std::uint64_t{gridDim.x} * rows) {
    const std::uint64_t row = first + slot;
    const bool there = row < p.rows;
    shared[threadIdx.x] = there ? lgpu::code::PartialMax<T>(p, row, lane, p.lanes) : 0;
    CombineRows(shared, rows, [](double a, double b) { return lgpu::code::Larger(a, b); });
    const double most = shared[slot];
    __syncthreads();
    shared[threadIdx.x] = there ? lgpu::code::PartialExponentials<T>(p, row, most, lane, p.lanes) : 0;
    CombineRows(shared, rows, [](double a, double b) { return a + b; });
    const double sum = shared[slot];
    if (there) lgpu::code::WriteSoftmax<T>(p, row, most, sum, lane, p.lanes);
    __syncthreads();
  }
}

}  // namespace

#define LGPU_REDUCE(name, type)                                                                             \
  extern "C" __global__ void lgpu_reduce_##name(const __grid_constant__ lgpu::code::ReduceParameters p) {   \
    Reduce<type>(p);                                                                                        \
  }
LGPU_FOR_NUMBERS(LGPU_REDUCE)

#define LGPU_SOFTMAX(name, type)                                                                            \
  extern "C" __global__ void lgpu_softmax_##name(const __grid_constant__ lgpu::code::SoftmaxParameters p) { \
    Softmax<type>(p);                                                                                       \
  }
LGPU_FOR_FLOATS(LGPU_SOFTMAX)
