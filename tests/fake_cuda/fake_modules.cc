// The calls of the fake driver on modules. It takes what a driver of its version would take: machine code
// whose ELF is not too new, for the card's architecture, and PTX whose version it knows.

#include <elf.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "tests/fake_cuda/fake_calls.h"
#include "tests/fake_cuda/fake_kernels.h"

namespace lgpu::fake_cuda {
namespace {

constexpr std::uint32_t kFatBinary = 0xba55ed50;
constexpr std::string_view kVersion = "\n.version ", kTarget = "\n.target sm_";

/// A fat binary that was not compressed: magic, version and length of the header, then length of the rest.
std::string_view FatBinary(const char* image) {
  std::uint16_t header = 0;
  std::uint64_t rest = 0;
  std::memcpy(&header, image + 6, sizeof(header));
  std::memcpy(&rest, image + 8, sizeof(rest));
  return {image, header + rest};
}

/// Machine code for an architecture runs on later ones of the same generation.
bool RunsOn(const Card& card, int architecture) {
  return architecture / 10 == card.compute_major && architecture % 10 <= card.compute_minor;
}

CUresult LoadMachineCode(const State& state, const Card& card, std::string_view image) {
  constexpr unsigned char kAbiOf13 = 8;
  CUresult result = CUDA_ERROR_NO_BINARY_FOR_GPU;
  for (std::size_t at = image.find(ELFMAG); at != image.npos; at = image.find(ELFMAG, at + 1)) {
    Elf64_Ehdr header{};
    if (image.size() - at < sizeof(header)) break;
    std::memcpy(&header, image.data() + at, sizeof(header));
    if (header.e_machine != EM_CUDA) continue;
    const unsigned char abi = header.e_ident[EI_ABIVERSION];
    const auto architecture =
        static_cast<int>((abi >= kAbiOf13 ? header.e_flags >> 8 : header.e_flags) & 0xff);
    if (!RunsOn(card, architecture)) continue;
    if (abi < kAbiOf13 || state.driver_version >= 13000) return CUDA_SUCCESS;
    result = static_cast<CUresult>(state.too_new_image.load());
  }
  return result;
}

// The PTX that came with CUDA 11.x is 7.x, that of 12.0 to 12.5 is 8.x, that of 13.0 is 9.0.
int NewestPtx(int driver_version) {
  const int minor = driver_version % 1000 / 10;
  const int generation = driver_version / 1000 - 4;
  return generation * 10 + (generation == 8 ? std::min(minor, 5) : minor);
}

CUresult LoadPtx(const State& state, const Card& card, std::string_view text) {
  const std::size_t version = text.find(kVersion);
  const std::size_t target = text.find(kTarget);
  if (version == text.npos || target == text.npos) return CUDA_ERROR_INVALID_IMAGE;
  const char* const number = text.data() + version + kVersion.size();
  if ((number[0] - '0') * 10 + number[2] - '0' > NewestPtx(state.driver_version)) {
    return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
  }
  const int architecture = std::atoi(text.data() + target + kTarget.size());
  return architecture > card.compute_major * 10 + card.compute_minor ? CUDA_ERROR_INVALID_PTX : CUDA_SUCCESS;
}

}  // namespace
}  // namespace lgpu::fake_cuda

using namespace lgpu::fake_cuda;

FAKE_EXPORT CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  FAKE_ENTER("cuModuleLoadData");
  Context* context = nullptr;
  if (const CUresult current = process.CurrentContext(&context, "cuModuleLoadData");
      current != CUDA_SUCCESS) {
    return current;
  }
  std::uint32_t magic = 0;
  std::memcpy(&magic, image, sizeof(magic));
  const auto* const data = static_cast<const char*>(image);
  const State& state = process.file->state();
  const Card& card = state.cards[context->card];
  // A text is read to the zero that ends it.
  const std::string_view code = magic == kFatBinary ? FatBinary(data) : std::string_view(data);
  const CUresult loaded =
      magic == kFatBinary ? LoadMachineCode(state, card, code) : LoadPtx(state, card, code);
  if (loaded != CUDA_SUCCESS) return loaded;
  auto made = std::make_unique<Module>();
  made->context = context;
  made->image = code;
  *module = reinterpret_cast<CUmodule>(made.get());
  process.modules.emplace(made.get(), std::move(made));
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuModuleUnload(CUmodule handle) {
  FAKE_ENTER("cuModuleUnload");
  return process.modules.erase(reinterpret_cast<Module*>(handle)) == 1 ? CUDA_SUCCESS
                                                                       : CUDA_ERROR_INVALID_HANDLE;
}

FAKE_EXPORT CUresult cuModuleGetFunction(CUfunction* function, CUmodule handle, const char* name) {
  FAKE_ENTER("cuModuleGetFunction");
  const auto module = process.modules.find(reinterpret_cast<Module*>(handle));
  if (module == process.modules.end()) return CUDA_ERROR_INVALID_HANDLE;
  const Emulation* const emulation = FindEmulation(name);
  const std::string_view image = module->second->image;
  if (emulation == nullptr || image.find(name) == image.npos) {
    return CUDA_ERROR_NOT_FOUND;
  }
  std::unique_ptr<Function>& made = module->second->functions[name];
  if (made == nullptr) made = std::make_unique<Function>(Function{emulation});
  *function = reinterpret_cast<CUfunction>(made.get());
  return CUDA_SUCCESS;
}
