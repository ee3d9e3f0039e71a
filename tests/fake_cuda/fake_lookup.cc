// How programs find the calls of the fake driver: by name and version. driver_names.txt has them all; the
// build makes a table of it, with the answer 801 (not supported) for calls that the fake does not have.

#include <algorithm>
#include <cstring>
#include <string_view>

#include "tests/fake_cuda/fake_calls.h"

struct FakeName {
  const char* name;
  int version;
  void* call;
  void* per_thread;  // of the twin for per-thread default streams, or null
};
extern "C" const FakeName kFakeNames[];
extern "C" const unsigned long kFakeNameCount;
// Of the fake that is a newer driver alone.
extern "C" __attribute__((weak)) void* LgpuFakeLaterCall(const char* name, int version, cuuint64_t flags);

namespace {

int DriverVersion() {
  int version = 0;
  cuDriverGetVersion(&version);
  return version;
}

// The newest form that a program of this version knows; sorted by name and version. A driver has no call that
// is newer than itself.
CUdriverProcAddressQueryResult Find(const char* called, int asked, cuuint64_t flags, void** found) {
  *found = LgpuFakeLaterCall != nullptr ? LgpuFakeLaterCall(called, asked, flags) : nullptr;
  if (*found != nullptr) return CU_GET_PROC_ADDRESS_SUCCESS;
  const std::string_view name = called;
  const int version = std::min(asked, DriverVersion());
  bool is_known = false;
  for (unsigned long i = 0; i < kFakeNameCount; ++i) {
    const FakeName& entry = kFakeNames[i];
    if (name != entry.name) continue;
    is_known = true;
    if (entry.version > version) break;
    const bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
    *found = per_thread && entry.per_thread != nullptr ? entry.per_thread : entry.call;
  }
  if (*found != nullptr) return CU_GET_PROC_ADDRESS_SUCCESS;
  return is_known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
}

}  // namespace

FAKE_EXPORT CUresult cuGetProcAddress_v2(const char* name, void** found, int version, cuuint64_t flags,
                                         CUdriverProcAddressQueryResult* status) {
  if (name == nullptr || found == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUdriverProcAddressQueryResult result = Find(name, version, flags, found);
  if (status != nullptr) *status = result;
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuGetProcAddress(const char* name, void** found, int version, cuuint64_t flags) {
  if (name == nullptr || found == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return Find(name, version, flags, found) == CU_GET_PROC_ADDRESS_SUCCESS ? CUDA_SUCCESS
                                                                          : CUDA_ERROR_NOT_FOUND;
}

// The driver's private tables are not documented, and the fake has none.
FAKE_EXPORT CUresult cuGetExportTable(const void** table, const CUuuid*) {
  *table = nullptr;
  return CUDA_ERROR_NOT_FOUND;
}
