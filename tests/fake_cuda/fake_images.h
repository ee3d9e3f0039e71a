#ifndef LGPU_TESTS_FAKE_CUDA_FAKE_IMAGES_H_
#define LGPU_TESTS_FAKE_CUDA_FAKE_IMAGES_H_

#include <cuda.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "tests/fake_cuda/fake_state.h"

namespace lgpu::fake_cuda {

/// The argument of cuModuleLoadData: a fat binary, machine code, or PTX, of the length that it states.
std::string_view ImageAt(const void* image);
/// Whether a driver of the machine's version takes it for the card.
CUresult CheckImage(const State& state, const Card& card, std::string_view image);
/// The bytes of each variable of the device in machine code or PTX, by name.
std::map<std::string, std::uint64_t> GlobalsOf(std::string_view image);
bool HasKernel(std::string_view image, std::string_view name);

}  // namespace lgpu::fake_cuda

#endif  // LGPU_TESTS_FAKE_CUDA_FAKE_IMAGES_H_
