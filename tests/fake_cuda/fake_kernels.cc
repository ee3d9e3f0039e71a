#include "tests/fake_cuda/fake_kernels.h"

#include <type_traits>

#include "tests/fake_cuda/emulated_grid.h"

// The source of the kernels, which nvcc compiles for GPUs.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-compare"
#include "kernels/cuda/add_n.cu"
#include "kernels/cuda/cast.cu"
#include "kernels/cuda/elementwise.cu"
#include "kernels/cuda/memory.cu"
#include "kernels/cuda/reduce.cu"
#include "kernels/cuda/transpose.cu"
#pragma GCC diagnostic pop

namespace lgpu::fake_cuda {
namespace {

// ---- the memory that a launch touches: `visit(pointer, bytes, writes)` for every pointer of a parameter
// block. The types are those of its input and its output.

template <typename From, typename To, typename Visit>
void Pointers(FillParameters& p, Visit visit) {
  visit(p.to, p.count, true);
}

template <typename From, typename To, typename Visit>
void Pointers(CopyParameters& p, Visit visit) {
  visit(p.to, p.bytes, true);
  visit(p.from, p.bytes, false);
}

template <typename From, typename To, int most, typename Visit>
void Pointers(code::AddNParameters<most>& p, Visit visit) {
  const std::uint64_t bytes = p.packing.elements * sizeof(To);
  visit(p.output, bytes, true);
  for (int i = 0; i < p.count && i < most; ++i) visit(p.inputs[i], bytes, false);
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
template <typename From, typename To, typename Visit>
void Pointers(code::CastParameters& p, Visit visit) {
  visit(p.output, p.packing.elements * BytesOf(p.to), true);
  visit(p.input, p.packing.elements * sizeof(From), false);
}

template <typename From, typename To, typename Visit>
void Pointers(code::ElementwiseParameters& p, Visit visit) {
  const auto extent = [&p](const std::uint64_t* strides, std::int32_t step) {
    std::uint64_t last = 0;
    if (p.rank == 0) last = step == 0 ? 0 : p.packing.elements - 1;
    for (int d = 0; d < p.rank; ++d) last += (p.dimensions[d] - 1) * strides[d];
    return (last + 1) * sizeof(From);
  };
  visit(p.output, p.packing.elements * sizeof(To), true);
  visit(p.a, extent(p.a_strides, p.a_step), false);
  visit(p.b, extent(p.b_strides, p.b_step), false);
}

template <typename From, typename To, typename Visit>
void Pointers(code::TransposeParameters& p, Visit visit) {
  visit(p.output, p.elements * sizeof(To), true);
  visit(p.input, p.elements * sizeof(From), false);
}

template <typename From, typename To, typename Visit>
void Pointers(code::ReduceParameters& p, Visit visit) {
  if (p.partials == nullptr) {
    visit(p.output, p.outputs * sizeof(To), true);
  } else {
    visit(p.partials, p.splits * p.outputs * sizeof(code::SumOf<To>), true);
  }
  visit(p.input, p.outputs * p.terms * sizeof(From), false);
}

template <typename From, typename To, typename Visit>
void Pointers(code::SoftmaxParameters& p, Visit visit) {
  const std::uint64_t label = p.wide_labels != 0 ? 8 : 4;
  visit(p.logits, p.rows * p.classes * sizeof(From), false);
  visit(p.labels, p.rows * label, false);
  visit(p.loss, p.rows * sizeof(To), true);
  visit(p.backprop, p.rows * p.classes * sizeof(To), true);
}

template <typename From, typename To, typename Parameters>
std::vector<Touch> Touches(const void* parameters) {
  Parameters p = *static_cast<const Parameters*>(parameters);
  std::vector<Touch> touches;
  Pointers<From, To>(p, [&](auto* pointer, std::uint64_t bytes, bool writes) {
    if (bytes != 0) touches.push_back({reinterpret_cast<std::uint64_t>(pointer), bytes, writes});
  });
  return touches;
}

template <typename From, typename To, typename Parameters, void (*kernel)(Parameters), Barriers barriers>
bool Run(const void* parameters, const Grid& grid, const HostAddress& at) {
  Parameters p = *static_cast<const Parameters*>(parameters);
  Pointers<From, To>(p, [&](auto*& pointer, std::uint64_t bytes, bool) {
    using Pointer = std::remove_reference_t<decltype(pointer)>;
    if (bytes != 0) pointer = reinterpret_cast<Pointer>(at(pointer));
  });
  return RunGrid(grid, barriers, [&p] { kernel(p); });
}

#define KERNEL_OF(name, parameters, from, to, barriers)                                           \
  Emulation {                                                                                     \
#name, sizeof(parameters), Touches < from, to, parameters>, Run < from, to, parameters, name, \
        Barriers::barriers>                                                                       \
  }
// The types of their elements are those of launch.cuh.
#define ADD_N(name, type)                                         \
  KERNEL_OF(lgpu_add_n_##name, code::AddNFew, type, type, kNone), \
      KERNEL_OF(lgpu_add_n_many_##name, code::AddNMany, type, type, kNone),
#define CAST(name, type) KERNEL_OF(lgpu_cast_##name, code::CastParameters, type, type, kNone),
#define ELEMENTWISE(name, type) \
  KERNEL_OF(lgpu_elementwise_##name, code::ElementwiseParameters, type, type, kNone),
#define REDUCE(name, type) KERNEL_OF(lgpu_reduce_##name, code::ReduceParameters, type, type, kSome),
#define PARTIALS(name, type) \
  KERNEL_OF(lgpu_reduce_partials_##name, code::ReduceParameters, code::SumOf<type>, type, kSome),
#define SOFTMAX(name, type) KERNEL_OF(lgpu_softmax_##name, code::SoftmaxParameters, type, type, kSome),
#define TRANSPOSE(bytes, type) KERNEL_OF(lgpu_transpose_##bytes, code::TransposeParameters, type, type, kSome)

const Emulation kEmulations[] = {
    KERNEL_OF(lgpu_fill, FillParameters, std::uint8_t, std::uint8_t, kNone),
    KERNEL_OF(lgpu_copy, CopyParameters, std::uint8_t, std::uint8_t, kNone),
    // clang-format off
    LGPU_FOR_NUMBERS(ADD_N)
    LGPU_FOR_FLOATS(CAST)
    CAST(int32, std::int32_t)
    CAST(int64, std::int64_t)
    LGPU_FOR_NUMBERS(ELEMENTWISE)
    LGPU_FOR_NUMBERS(REDUCE)
    PARTIALS(half, code::HalfBits)
    PARTIALS(bfloat16, code::BFloat16Bits)
    PARTIALS(float, float)
    PARTIALS(int32, std::uint32_t)
    LGPU_FOR_FLOATS(SOFTMAX)
    // clang-format on
    TRANSPOSE(2, std::uint16_t),
    TRANSPOSE(4, std::uint32_t),
    TRANSPOSE(8, std::uint64_t),
};

}  // namespace

const Emulation* FindEmulation(std::string_view name) {
  for (const Emulation& emulation : kEmulations) {
    if (emulation.name == name) return &emulation;
  }
  return nullptr;
}

}  // namespace lgpu::fake_cuda
