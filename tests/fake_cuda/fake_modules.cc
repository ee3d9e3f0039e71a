// The calls of the fake driver on modules, libraries and the linker. A context's first module takes
// Card::module_bytes, code takes no other memory of the card, and variables do.

#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "tests/fake_cuda/fake_blocks.h"
#include "tests/fake_cuda/fake_calls.h"
#include "tests/fake_cuda/fake_images.h"
#include "tests/fake_cuda/fake_kernels.h"

namespace lgpu::fake_cuda {
namespace {

Module* FindModule(Process& process, const void* handle) {
  const auto module = process.modules.find(static_cast<Module*>(const_cast<void*>(handle)));
  return module == process.modules.end() ? nullptr : module->second.get();
}

CUresult PlaceCode(Process& process, Context& context) {
  const std::uint64_t bytes = process.file->state().cards[context.card].module_bytes;
  if (bytes == 0 || context.code != nullptr) return CUDA_SUCCESS;
  return NewAllocation(process, context.card, bytes, StateFile::Kind::kContext, &context.code);
}

CUresult PlaceGlobals(Process& process, Module& module, Context* context) {
  module.context = context->owner();
  for (const auto& [name, bytes] : GlobalsOf(module.image)) {
    CUdeviceptr address = 0;
    if (const CUresult cut = module.context->blocks->Allocate(process, bytes, &address);
        cut != CUDA_SUCCESS) {
      return cut;
    }
    module.globals[name] = {address, bytes};
  }
  return CUDA_SUCCESS;
}

void Unload(Process& process, Module& module) {
  for (const auto& [name, place] : module.globals) module.context->blocks->Free(place.first, place.second);
  if (!module.globals.empty()) module.context->blocks->Trim(process, 0);
  process.modules.erase(&module);
}

CUresult Load(CUmodule* handle, const void* image, bool is_library) {
  FAKE_ENTER_CONTEXT(is_library ? "cuLibraryLoadData" : "cuModuleLoadData");
  if (image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const State& state = process.file->state();
  auto made = std::make_unique<Module>();
  made->image = ImageAt(image);
  made->is_library = is_library;
  if (const CUresult checked = CheckImage(state, state.cards[context->card], made->image);
      checked != CUDA_SUCCESS) {
    return checked;
  }
  if (const CUresult placed = PlaceCode(process, *context->owner()); placed != CUDA_SUCCESS) return placed;
  Module& module = *made;
  process.modules.emplace(made.get(), std::move(made));
  if (const CUresult placed = PlaceGlobals(process, module, context); placed != CUDA_SUCCESS) {
    Unload(process, module);
    return placed;
  }
  *handle = reinterpret_cast<CUmodule>(&module);
  return CUDA_SUCCESS;
}

CUresult LoadFile(CUmodule* handle, const char* path, bool is_library) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
  const std::string image{std::istreambuf_iterator<char>(file), {}};
  return image.size() < 64 ? CUDA_ERROR_INVALID_IMAGE : Load(handle, image.c_str(), is_library);
}

CUresult UnloadHandle(const void* handle) {
  FAKE_ENTER("cuModuleUnload");
  Module* const module = FindModule(process, handle);
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Unload(process, *module);
  return CUDA_SUCCESS;
}

CUresult GetFunction(Function** function, const void* handle, const char* name) {
  FAKE_ENTER("cuModuleGetFunction");
  Module* const module = FindModule(process, handle);
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (!HasKernel(module->image, name)) return CUDA_ERROR_NOT_FOUND;
  std::unique_ptr<Function>& made = module->functions[name];
  if (made == nullptr) made = std::make_unique<Function>(Function{FindEmulation(name), module, name, {}});
  *function = made.get();
  return CUDA_SUCCESS;
}

CUresult GetGlobal(CUdeviceptr* address, std::size_t* bytes, const void* handle, const char* name) {
  FAKE_ENTER("cuModuleGetGlobal");
  Module* const module = FindModule(process, handle);
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const auto global = module->globals.find(name);
  if (global == module->globals.end()) return CUDA_ERROR_NOT_FOUND;
  if (address != nullptr) *address = global->second.first;
  if (bytes != nullptr) *bytes = global->second.second;
  return CUDA_SUCCESS;
}

/// The linker passes the first image on that it got.
struct Link {
  std::string image;
};

}  // namespace
}  // namespace lgpu::fake_cuda

using namespace lgpu::fake_cuda;

FAKE_EXPORT CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  return Load(module, image, false);
}
FAKE_EXPORT CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, CUjit_option*,
                                        void**) {
  return Load(module, image, false);
}
FAKE_EXPORT CUresult cuModuleLoadFatBinary(CUmodule* module, const void* image) {
  return Load(module, image, false);
}
FAKE_EXPORT CUresult cuModuleLoad(CUmodule* module, const char* path) {
  return LoadFile(module, path, false);
}
FAKE_EXPORT CUresult cuModuleUnload(CUmodule module) { return UnloadHandle(module); }
FAKE_EXPORT CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  return GetFunction(reinterpret_cast<Function**>(function), module, name);
}
FAKE_EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr* address, std::size_t* bytes, CUmodule module,
                                          const char* name) {
  return GetGlobal(address, bytes, module, name);
}
FAKE_EXPORT CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  *mode = CU_MODULE_EAGER_LOADING;
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuLibraryLoadData(CUlibrary* library, const void* image, CUjit_option*, void**, unsigned,
                                       CUlibraryOption*, void**, unsigned) {
  return Load(reinterpret_cast<CUmodule*>(library), image, true);
}
FAKE_EXPORT CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* path, CUjit_option*, void**,
                                           unsigned, CUlibraryOption*, void**, unsigned) {
  return LoadFile(reinterpret_cast<CUmodule*>(library), path, true);
}
FAKE_EXPORT CUresult cuLibraryUnload(CUlibrary library) { return UnloadHandle(library); }
FAKE_EXPORT CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  return GetFunction(reinterpret_cast<Function**>(kernel), library, name);
}
FAKE_EXPORT CUresult cuLibraryGetModule(CUmodule* module, CUlibrary library) {
  *module = reinterpret_cast<CUmodule>(library);
  return CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuLibraryGetGlobal(CUdeviceptr* address, std::size_t* bytes, CUlibrary library,
                                        const char* name) {
  return GetGlobal(address, bytes, library, name);
}
FAKE_EXPORT CUresult cuLibraryGetManaged(CUdeviceptr*, std::size_t*, CUlibrary, const char*) {
  return CUDA_ERROR_NOT_FOUND;
}

FAKE_EXPORT CUresult cuLinkCreate_v2(unsigned, CUjit_option*, void**, CUlinkState* state) {
  *state = reinterpret_cast<CUlinkState>(new Link);
  return CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType, void* data, std::size_t size,
                                      const char*, unsigned, CUjit_option*, void**) {
  std::string& image = reinterpret_cast<Link*>(state)->image;
  if (image.empty()) image.assign(static_cast<const char*>(data), size);
  return CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuLinkComplete(CUlinkState state, void** image, std::size_t* size) {
  std::string& linked = reinterpret_cast<Link*>(state)->image;
  if (linked.empty()) return CUDA_ERROR_INVALID_VALUE;
  *image = linked.data();
  if (size != nullptr) *size = linked.size();
  return CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuLinkDestroy(CUlinkState state) {
  delete reinterpret_cast<Link*>(state);
  return CUDA_SUCCESS;
}
