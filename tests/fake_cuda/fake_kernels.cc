#include "tests/fake_cuda/fake_kernels.h"

#include <cstring>

#include "kernels/code/add_n.h"
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

#define FOR_FLOATS(KERNEL, ...)                                                                     \
  KERNEL("half", code::HalfBits, __VA_ARGS__), KERNEL("bfloat16", code::BFloat16Bits, __VA_ARGS__), \
      KERNEL("float", float, __VA_ARGS__), KERNEL("double", double, __VA_ARGS__)
#define FOR_NUMBERS(KERNEL, ...)                                                \
  FOR_FLOATS(KERNEL, __VA_ARGS__), KERNEL("int32", std::uint32_t, __VA_ARGS__), \
      KERNEL("int64", std::uint64_t, __VA_ARGS__)
#define ADD_N(name, type, prefix, parameters) \
  Emulation { prefix name, sizeof(parameters), AddNTouches<type, parameters>, AddN<type, parameters> }

const Emulation kEmulations[] = {
    {"lgpu_fill", sizeof(FillParameters), FillTouches, Fill},
    {"lgpu_copy", sizeof(CopyParameters), CopyTouches, Copy},
    FOR_NUMBERS(ADD_N, "lgpu_add_n_", code::AddNFew),
    FOR_NUMBERS(ADD_N, "lgpu_add_n_many_", code::AddNMany),
};

}  // namespace

const Emulation* FindEmulation(std::string_view name) {
  for (const Emulation& emulation : kEmulations) {
    if (emulation.name == name) return &emulation;
  }
  return nullptr;
}

}  // namespace lgpu::fake_cuda
