// A kernel of your own on memory inside a limit: y = 2 x + y. On a real GPU the CUDA driver compiles the
// kernel and runs it on a stream of this program's; on a simulated one a plain loop does the same.

#include <dlfcn.h>
#include <lgpu/memory.h>
#include <lgpu/status.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

using namespace lgpu;

namespace {

constexpr unsigned kElements = 1 << 20;

constexpr char kSaxpy[] = R"(
.version 6.0
.target sm_50
.address_size 64
.visible .entry saxpy(.param .f32 a, .param .u64 x, .param .u64 y, .param .u32 n)
{
  .reg .pred %p<2>;
  .reg .f32 %f<4>;
  .reg .b32 %r<6>;
  .reg .b64 %rd<6>;
  ld.param.f32 %f1, [a];
  ld.param.u64 %rd1, [x];
  ld.param.u64 %rd2, [y];
  ld.param.u32 %r1, [n];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.s32 %r5, %r2, %r3, %r4;
  setp.ge.u32 %p1, %r5, %r1;
  @%p1 bra DONE;
  cvta.to.global.u64 %rd1, %rd1;
  cvta.to.global.u64 %rd2, %rd2;
  mul.wide.u32 %rd3, %r5, 4;
  add.s64 %rd4, %rd1, %rd3;
  add.s64 %rd5, %rd2, %rd3;
  ld.global.f32 %f2, [%rd4];
  ld.global.f32 %f3, [%rd5];
  fma.rn.f32 %f3, %f1, %f2, %f3;
  st.global.f32 [%rd5], %f3;
DONE:
  ret;
}
)";

// The calls of the driver that this program makes. Programs with the toolkit include <cuda.h> instead.
class Driver {
 public:
  Driver() : library_(dlopen("libcuda.so.1", RTLD_NOW)) {}

  template <typename... Arguments>
  absl::Status Call(const char* name, Arguments... arguments) const {
    void* const found = library_ == nullptr ? nullptr : dlsym(library_, name);
    if (found == nullptr) return absl::NotFoundError(std::string("the CUDA driver has no ") + name);
    const int result = reinterpret_cast<int (*)(Arguments...)>(found)(arguments...);
    return result == 0 ? absl::OkStatus()
                       : absl::InternalError(std::string(name) + " gave " + std::to_string(result));
  }

 private:
  void* const library_;
};

// The device's primary context, current on this thread, and a stream of the program's own.
absl::StatusOr<void*> MakeStream(const Driver& driver, int device) {
  void* context = nullptr;
  void* stream = nullptr;
  LGPU_RETURN_IF_ERROR(driver.Call("cuDevicePrimaryCtxRetain", &context, device));
  LGPU_RETURN_IF_ERROR(driver.Call("cuCtxSetCurrent", context));
  LGPU_RETURN_IF_ERROR(driver.Call("cuStreamCreate", &stream, 1U));
  return stream;
}

absl::StatusOr<std::vector<float>> SaxpyOnGpu(const Driver& driver, std::byte* x, std::byte* y,
                                              void* stream) {
  constexpr std::size_t kBytes = kElements * sizeof(float);
  std::vector<float> values(kElements, 3);
  const auto to_device = [&](std::byte* to) {
    return driver.Call("cuMemcpyHtoDAsync_v2", reinterpret_cast<std::uintptr_t>(to),
                       static_cast<const void*>(values.data()), kBytes, stream);
  };
  LGPU_RETURN_IF_ERROR(to_device(x));
  LGPU_RETURN_IF_ERROR(driver.Call("cuStreamSynchronize", stream));
  std::fill(values.begin(), values.end(), 1.0F);
  LGPU_RETURN_IF_ERROR(to_device(y));

  void* module = nullptr;
  void* kernel = nullptr;
  LGPU_RETURN_IF_ERROR(driver.Call("cuModuleLoadData", &module, static_cast<const void*>(kSaxpy)));
  LGPU_RETURN_IF_ERROR(driver.Call("cuModuleGetFunction", &kernel, module, "saxpy"));
  float a = 2;
  unsigned n = kElements;
  void* parameters[] = {&a, &x, &y, &n};
  LGPU_RETURN_IF_ERROR(driver.Call("cuLaunchKernel", kernel, kElements / 256, 1U, 1U, 256U, 1U, 1U, 0U,
                                   stream, static_cast<void**>(parameters), static_cast<void**>(nullptr)));

  LGPU_RETURN_IF_ERROR(driver.Call("cuMemcpyDtoHAsync_v2", static_cast<void*>(values.data()),
                                   reinterpret_cast<std::uintptr_t>(y), kBytes, stream));
  LGPU_RETURN_IF_ERROR(driver.Call("cuStreamSynchronize", stream));
  LGPU_RETURN_IF_ERROR(driver.Call("cuModuleUnload", module));
  return values;
}

std::vector<float> SaxpyByLoop(std::byte* x, std::byte* y) {
  auto* const xs = reinterpret_cast<float*>(x);
  auto* const ys = reinterpret_cast<float*>(y);
  std::fill_n(xs, kElements, 3.0F);
  std::fill_n(ys, kElements, 1.0F);
  for (unsigned i = 0; i < kElements; ++i) ys[i] += 2 * xs[i];
  return {ys, ys + kElements};
}

absl::Status Compute(const LogicalMemory& memory, const Driver& driver, void* stream) {
  constexpr Bytes kBytes(kElements * sizeof(float));
  LGPU_ASSIGN_OR_RETURN(const Block x, memory.Allocate(kBytes, {.stream = stream, .tag = "x"}));
  LGPU_ASSIGN_OR_RETURN(const Block y, memory.Allocate(kBytes, {.stream = stream, .tag = "y"}));
  std::vector<float> values;
  if (memory.cuda_device() < 0) {
    values = SaxpyByLoop(x.address, y.address);
  } else {
    LGPU_ASSIGN_OR_RETURN(values, SaxpyOnGpu(driver, x.address, y.address, stream));
  }
  std::cout << "y = 2 x + y: " << values.front() << " to " << values.back() << "\n";

  const absl::Status refused = memory.Allocate(60_MiB, {.stream = stream, .tag = "too much"}).status();
  if (const std::optional<Refusal> refusal = GetRefusal(refused)) {
    std::cout << "refused: " << RefusalReasonName(refusal->reason) << ", " << refusal->asked << " asked, "
              << refusal->used.value_or(Bytes()) << " used of " << refusal->limit.value_or(Bytes()) << "\n";
  }
  std::cout << "not closed: " << memory.Close().message() << "\n";
  LGPU_RETURN_IF_ERROR(memory.Free(x, stream));
  return memory.Free(y, stream);
}

absl::Status Run() {
  LGPU_ASSIGN_OR_RETURN(const LogicalMemory memory, LogicalMemory::Open({.memory_limit = 64_MiB}));
  const Driver driver;
  const int device = memory.cuda_device();
  if (device < 0) {
    LGPU_RETURN_IF_ERROR(Compute(memory, driver, nullptr));
    return memory.Close();
  }
  LGPU_ASSIGN_OR_RETURN(void* const stream, MakeStream(driver, device));
  LGPU_RETURN_IF_ERROR(Compute(memory, driver, stream));
  LGPU_RETURN_IF_ERROR(memory.ForgetStream(stream));  // before it goes
  LGPU_RETURN_IF_ERROR(driver.Call("cuStreamDestroy_v2", stream));
  LGPU_RETURN_IF_ERROR(memory.Close());
  return driver.Call("cuDevicePrimaryCtxRelease_v2", device);
}

}  // namespace

int main() {
  const absl::Status status = Run();
  if (!status.ok()) std::cerr << "08_own_kernel: " << status.message() << "\n";
  return status.ok() ? 0 : 1;
}
