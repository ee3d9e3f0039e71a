#include "tools/gpu_probe/green_context.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"

namespace lgpu::gpu_probe {

#if CUDA_VERSION >= 12050
namespace {

template <typename Function>
bool Find(const char* name, Function** found) {
  static_assert(sizeof(Function*) == sizeof(void*));
  *found = reinterpret_cast<Function*>(::dlsym(::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), name));
  return *found != nullptr;
}

struct Calls {
  decltype(::cuDeviceGetDevResource)* get_resource = nullptr;
  decltype(::cuDevSmResourceSplitByCount)* split = nullptr;
  decltype(::cuDevResourceGenerateDesc)* describe = nullptr;
  decltype(::cuGreenCtxCreate)* create = nullptr;
  decltype(::cuCtxFromGreenCtx)* convert = nullptr;
  decltype(::cuGreenCtxStreamCreate)* create_stream = nullptr;

  bool FindAll() {
    return Find("cuDeviceGetDevResource", &get_resource) && Find("cuDevSmResourceSplitByCount", &split) &&
           Find("cuDevResourceGenerateDesc", &describe) && Find("cuGreenCtxCreate", &create) &&
           Find("cuCtxFromGreenCtx", &convert) && Find("cuGreenCtxStreamCreate", &create_stream);
  }
};

}  // namespace

std::string MakeGreenContext(unsigned multiprocessors, GreenContext& made) {
  Calls calls;
  if (!calls.FindAll()) return "this driver has no green contexts";
  CUdevResource all{};
  CUdevResource part{};
  CUdevResource rest{};
  CUdevResourceDesc description = nullptr;
  CUgreenCtx green = nullptr;
  unsigned parts = 1;
  const char* call = "cuDeviceGetDevResource";
  CUresult result = calls.get_resource(0, &all, CU_DEV_RESOURCE_TYPE_SM);
  const auto then = [&](const char* name, auto next) {
    if (result != CUDA_SUCCESS) return;
    call = name;
    result = next();
  };
  then("cuDevSmResourceSplitByCount",
       [&] { return calls.split(&part, &parts, &all, &rest, 0, multiprocessors); });
  then("cuDevResourceGenerateDesc", [&] { return calls.describe(&description, &part, 1); });
  then("cuGreenCtxCreate", [&] { return calls.create(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM); });
  then("cuCtxFromGreenCtx", [&] { return calls.convert(&made.context, green); });
  then("cuGreenCtxStreamCreate",
       [&] { return calls.create_stream(&made.stream, green, CU_STREAM_NON_BLOCKING, 0); });
  made.multiprocessors = part.sm.smCount;
  return result == CUDA_SUCCESS ? "" : absl::StrCat(call, " gave ", static_cast<int>(result));
}
#else
std::string MakeGreenContext(unsigned /*multiprocessors*/, GreenContext& /*made*/) {
  return "this gpu_probe was built with a CUDA toolkit without green contexts";
}
#endif

}  // namespace lgpu::gpu_probe
