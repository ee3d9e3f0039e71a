#include "tests/fake_cuda/fake_kernels.h"

#include <cstring>

#include "kernels/bodies/add_n.h"
#include "kernels/bodies/cast.h"
#include "kernels/bodies/elementwise.h"
#include "kernels/bodies/reduce.h"
#include "kernels/bodies/softmax.h"
#include "kernels/bodies/transpose.h"
#include "kernels/cuda/kernel_parameters.h"

namespace lgpu::fake_cuda {
namespace {

std::uint64_t Address(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

template <typename Parameters>
const Parameters& As(const void* parameters) {
  return *static_cast<const Parameters*>(parameters);
}

/// Every thread of the grid in turn.
template <typename Body>
void ForThreads(const Grid& grid, Body body) {
  const std::uint64_t threads = grid.blocks * grid.threads;
  for (std::uint64_t i = 0; i < threads; ++i) body(code::Thread{i, threads});
}

std::vector<Touch> FillTouches(const void* parameters) {
  const auto& p = As<FillParameters>(parameters);
  return {{Address(p.to), p.count, true}};
}
void Fill(const void* parameters, const Grid&, const HostAddress& at) {
  const auto& p = As<FillParameters>(parameters);
  std::memset(at(p.to), p.value, p.count);
}

std::vector<Touch> CopyTouches(const void* parameters) {
  const auto& p = As<CopyParameters>(parameters);
  return {{Address(p.to), p.bytes, true}, {Address(p.from), p.bytes, false}};
}
void Copy(const void* parameters, const Grid&, const HostAddress& at) {
  const auto& p = As<CopyParameters>(parameters);
  std::memcpy(at(p.to), at(p.from), p.bytes);
}

template <typename T, typename Parameters>
std::vector<Touch> AddNTouches(const void* parameters) {
  const auto& p = As<Parameters>(parameters);
  const std::uint64_t bytes = p.packing.elements * sizeof(T);
  std::vector<Touch> touches = {{Address(p.output), bytes, true}};
  for (int i = 0; i < p.count && i < Parameters::kMost; ++i)
    touches.push_back({Address(p.inputs[i]), bytes, false});
  return touches;
}
template <typename T, typename Parameters>
void AddN(const void* parameters, const Grid& grid, const HostAddress& at) {
  Parameters p = As<Parameters>(parameters);
  p.output = at(p.output);
  for (int i = 0; i < p.count && i < Parameters::kMost; ++i) p.inputs[i] = at(p.inputs[i]);
  ForThreads(grid, [&p](code::Thread thread) { code::AddN<T>(p, thread); });
}

std::uint64_t BytesOf(code::CastType type) {
  switch (type) {
    case code::CastType::kHalf:
    case code::CastType::kBFloat16:
      return 2;
    case code::CastType::kDouble:
    case code::CastType::kInt64:
      return 8;
    default:
      return 4;
  }
}
template <typename From>
std::vector<Touch> CastTouches(const void* parameters) {
  const auto& p = As<code::CastParameters>(parameters);
  return {{Address(p.output), p.packing.elements * BytesOf(p.to), true},
          {Address(p.input), p.packing.elements * sizeof(From), false}};
}
template <typename From>
void Cast(const void* parameters, const Grid& grid, const HostAddress& at) {
  auto p = As<code::CastParameters>(parameters);
  p.output = at(p.output);
  p.input = at(p.input);
  ForThreads(grid, [&p](code::Thread thread) { code::CastFrom<From>(p, thread); });
}

template <typename T>
std::vector<Touch> ElementwiseTouches(const void* parameters) {
  const auto& p = As<code::ElementwiseParameters>(parameters);
  const auto extent = [&p](const std::uint64_t* strides, std::int32_t step) {
    std::uint64_t last = 0;
    if (p.rank == 0) last = step == 0 ? 0 : p.packing.elements - 1;
    for (int d = 0; d < p.rank; ++d) last += (p.dimensions[d] - 1) * strides[d];
    return (last + 1) * sizeof(T);
  };
  return {{Address(p.output), p.packing.elements * sizeof(T), true},
          {Address(p.a), extent(p.a_strides, p.a_step), false},
          {Address(p.b), extent(p.b_strides, p.b_step), false}};
}
template <typename T>
void Elementwise(const void* parameters, const Grid& grid, const HostAddress& at) {
  auto p = As<code::ElementwiseParameters>(parameters);
  p.output = at(p.output);
  p.a = at(p.a);
  p.b = at(p.b);
  ForThreads(grid, [&p](code::Thread thread) { code::ApplyElementwise<T>(p, thread); });
}

template <typename T>
std::vector<Touch> TransposeTouches(const void* parameters) {
  const auto& p = As<code::TransposeParameters>(parameters);
  return {{Address(p.output), p.elements * sizeof(T), true},
          {Address(p.input), p.elements * sizeof(T), false}};
}
template <typename T>
void Transpose(const void* parameters, const Grid& grid, const HostAddress& at) {
  using Sizes = code::TransposeTile<T>;
  auto p = As<code::TransposeParameters>(parameters);
  p.input = at(p.input);
  p.output = at(p.output);
  std::vector<T> shared(Sizes::kSize * Sizes::kPitch);
  for (std::uint64_t block = 0; block < grid.blocks; ++block) {
    for (std::uint64_t i = block; i < p.tiles; i += grid.blocks) {
      const code::Tile tile = code::TileNumber<T>(p, static_cast<std::uint32_t>(i));
      for (std::uint32_t t = 0; t < grid.threads; ++t) code::ReadTile<T>(p, tile, t, shared.data());
      for (std::uint32_t t = 0; t < grid.threads; ++t) code::WriteTile<T>(p, tile, t, shared.data());
    }
  }
}

/// shared[t] becomes the combination of what the threads t % lanes, t % lanes + lanes, ... have: as in
/// reduce.cu.
template <typename T, typename Combine>
void CombineRows(std::vector<T>& shared, std::size_t lanes, Combine combine) {
  for (std::size_t rows = shared.size() / lanes / 2; rows > 0; rows /= 2) {
    for (std::size_t t = 0; t < rows * lanes; ++t) shared[t] = combine(shared[t], shared[t + rows * lanes]);
  }
}

template <typename T>
std::vector<Touch> ReduceTouches(const void* parameters) {
  const auto& p = As<code::ReduceParameters>(parameters);
  std::vector<Touch> touches = {{Address(p.output), p.outputs * sizeof(T), true}};
  if (p.terms != 0) touches.push_back({Address(p.input), p.outputs * p.terms * sizeof(T), false});
  return touches;
}
template <typename T>
void Reduce(const void* parameters, const Grid&, const HostAddress& at) {
  auto p = As<code::ReduceParameters>(parameters);
  p.output = at(p.output);
  if (p.terms != 0) p.input = at(p.input);
  const auto lanes = static_cast<std::size_t>(p.lanes);
  std::vector<code::SumOf<T>> shared(code::kBlockThreads);
  for (std::uint64_t first = 0; first < p.outputs; first += lanes) {
    for (std::size_t t = 0; t < shared.size(); ++t) {
      const std::uint64_t output = first + t % lanes;
      shared[t] = output < p.outputs ? code::PartialSum<T>(p, output, t / lanes, shared.size() / lanes)
                                     : code::SumOf<T>{0};
    }
    CombineRows(shared, lanes, [](auto a, auto b) { return a + b; });
    for (std::size_t t = 0; t < lanes && first + t < p.outputs; ++t)
      code::WriteSum<T>(p, first + t, shared[t]);
  }
}

template <typename T>
std::vector<Touch> SoftmaxTouches(const void* parameters) {
  const auto& p = As<code::SoftmaxParameters>(parameters);
  const std::uint64_t label = p.wide_labels != 0 ? 8 : 4;
  return {{Address(p.logits), p.rows * p.classes * sizeof(T), false},
          {Address(p.labels), p.rows * label, false},
          {Address(p.loss), p.rows * sizeof(T), true},
          {Address(p.backprop), p.rows * p.classes * sizeof(T), true}};
}
template <typename T>
void Softmax(const void* parameters, const Grid&, const HostAddress& at) {
  auto p = As<code::SoftmaxParameters>(parameters);
  p.logits = at(p.logits);
  p.labels = at(p.labels);
  p.loss = at(p.loss);
  p.backprop = at(p.backprop);
  const auto lanes = static_cast<std::size_t>(p.lanes);
  std::vector<double> shared(lanes);
  for (std::uint64_t row = 0; row < p.rows; ++row) {
    for (std::size_t t = 0; t < lanes; ++t) shared[t] = code::PartialMax<T>(p, row, t, lanes);
    CombineRows(shared, 1, [](double a, double b) { return code::Larger(a, b); });
    const double most = shared[0];
    for (std::size_t t = 0; t < lanes; ++t) shared[t] = code::PartialExponentials<T>(p, row, most, t, lanes);
    CombineRows(shared, 1, [](double a, double b) { return a + b; });
    for (std::size_t t = 0; t < lanes; ++t) code::WriteSoftmax<T>(p, row, most, shared[0], t, lanes);
  }
}

#define FOR_FLOATS(KERNEL, ...)                                                                     \
  KERNEL("half", code::HalfBits, __VA_ARGS__), KERNEL("bfloat16", code::BFloat16Bits, __VA_ARGS__), \
      KERNEL("float", float, __VA_ARGS__), KERNEL("double", double, __VA_ARGS__)
#define FOR_NUMBERS(KERNEL, ...)                                                \
  FOR_FLOATS(KERNEL, __VA_ARGS__), KERNEL("int32", std::uint32_t, __VA_ARGS__), \
      KERNEL("int64", std::uint64_t, __VA_ARGS__)
#define ADD_N(name, type, prefix, parameters) \
  Emulation { prefix name, sizeof(parameters), AddNTouches<type, parameters>, AddN<type, parameters> }
#define CAST(name, type, prefix) \
  Emulation { prefix name, sizeof(code::CastParameters), CastTouches<type>, Cast<type> }
#define ELEMENTWISE(name, type, prefix) \
  Emulation { prefix name, sizeof(code::ElementwiseParameters), ElementwiseTouches<type>, Elementwise<type> }
#define REDUCE(name, type, prefix) \
  Emulation { prefix name, sizeof(code::ReduceParameters), ReduceTouches<type>, Reduce<type> }
#define SOFTMAX(name, type, prefix) \
  Emulation { prefix name, sizeof(code::SoftmaxParameters), SoftmaxTouches<type>, Softmax<type> }

const Emulation kEmulations[] = {
    {"lgpu_fill", sizeof(FillParameters), FillTouches, Fill},
    {"lgpu_copy", sizeof(CopyParameters), CopyTouches, Copy},
    FOR_NUMBERS(ADD_N, "lgpu_add_n_", code::AddNFew),
    FOR_NUMBERS(ADD_N, "lgpu_add_n_many_", code::AddNMany),
    FOR_FLOATS(CAST, "lgpu_cast_"),
    CAST("int32", std::int32_t, "lgpu_cast_"),
    CAST("int64", std::int64_t, "lgpu_cast_"),
    FOR_NUMBERS(ELEMENTWISE, "lgpu_elementwise_"),
    {"lgpu_transpose_2", sizeof(code::TransposeParameters), TransposeTouches<std::uint16_t>,
     Transpose<std::uint16_t>},
    {"lgpu_transpose_4", sizeof(code::TransposeParameters), TransposeTouches<std::uint32_t>,
     Transpose<std::uint32_t>},
    {"lgpu_transpose_8", sizeof(code::TransposeParameters), TransposeTouches<std::uint64_t>,
     Transpose<std::uint64_t>},
    FOR_NUMBERS(REDUCE, "lgpu_reduce_"),
    FOR_FLOATS(SOFTMAX, "lgpu_softmax_"),
};

}  // namespace

const Emulation* FindEmulation(std::string_view name) {
  for (const Emulation& emulation : kEmulations) {
    if (emulation.name == name) return &emulation;
  }
  return nullptr;
}

}  // namespace lgpu::fake_cuda
