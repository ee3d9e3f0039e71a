#include "tests/fake_cuda/fake_kernels.h"

#include <cstring>

#include "kernels/cuda/kernel_parameters.h"

namespace lgpu::fake_cuda {
namespace {

std::uint64_t Address(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

template <typename Parameters>
const Parameters& As(const void* parameters) {
  return *static_cast<const Parameters*>(parameters);
}

std::vector<Touch> FillTouches(const void* parameters) {
  const auto& p = As<FillParameters>(parameters);
  return {{Address(p.to), p.count, true}};
}
void Fill(const void* parameters, const std::function<char*(const void*)>& at) {
  const auto& p = As<FillParameters>(parameters);
  std::memset(at(p.to), p.value, p.count);
}

std::vector<Touch> CopyTouches(const void* parameters) {
  const auto& p = As<CopyParameters>(parameters);
  return {{Address(p.to), p.bytes, true}, {Address(p.from), p.bytes, false}};
}
void Copy(const void* parameters, const std::function<char*(const void*)>& at) {
  const auto& p = As<CopyParameters>(parameters);
  std::memcpy(at(p.to), at(p.from), p.bytes);
}

std::vector<Touch> AddNTouches(const void* parameters) {
  const auto& p = As<AddNParameters>(parameters);
  std::vector<Touch> touches = {{Address(p.output), p.elements * sizeof(float), true}};
  for (int i = 0; i < p.count && i < AddNParameters::kMaxInputs; ++i) {
    touches.push_back({Address(p.inputs[i]), p.elements * sizeof(float), false});
  }
  return touches;
}
void AddN(const void* parameters, const std::function<char*(const void*)>& at) {
  const auto& p = As<AddNParameters>(parameters);
  auto* const output = reinterpret_cast<float*>(at(p.output));
  const float* inputs[AddNParameters::kMaxInputs] = {};
  for (int i = 0; i < p.count; ++i) inputs[i] = reinterpret_cast<const float*>(at(p.inputs[i]));
  for (std::uint64_t e = 0; e < p.elements; ++e) {
    float sum = p.accumulate != 0 ? output[e] : inputs[0][e];
    for (int i = p.accumulate != 0 ? 0 : 1; i < p.count; ++i) sum += inputs[i][e];
    output[e] = sum;
  }
}

constexpr Emulation kEmulations[] = {
    {"lgpu_fill", sizeof(FillParameters), FillTouches, Fill},
    {"lgpu_copy", sizeof(CopyParameters), CopyTouches, Copy},
    {"lgpu_add_n_float", sizeof(AddNParameters), AddNTouches, AddN},
};

}  // namespace

const Emulation* FindEmulation(std::string_view name) {
  for (const Emulation& emulation : kEmulations) {
    if (emulation.name == name) return &emulation;
  }
  return nullptr;
}

}  // namespace lgpu::fake_cuda
