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

absl::Status SaxpyOnGpu(const Driver& driver, float a, std::byte* x, std::byte* y, void* stream) {
  void* module = nullptr;
  void* kernel = nullptr;
  LGPU_RETURN_IF_ERROR(driver.Call("cuModuleLoadData", &module, static_cast<const void*>(kSaxpy)));
  LGPU_RETURN_IF_ERROR(driver.Call("cuModuleGetFunction", &kernel, module, "saxpy"));
  unsigned n = kElements;
  void* parameters[] = {&a, &x, &y, &n};
  return driver.Call("cuLaunchKernel", kernel, kElements / 256, 1U, 1U, 256U, 1U, 1U, 0U, stream,
                     static_cast<void**>(parameters), static_cast<void**>(nullptr));
}

absl::Status Run() {
  LGPU_ASSIGN_OR_RETURN(const LogicalMemory memory, LogicalMemory::Open({.memory_limit = 64_MiB}));
  const bool simulated = memory.cuda_device() < 0;
  const Driver driver;
  void* stream = nullptr;
  if (!simulated) {
    LGPU_ASSIGN_OR_RETURN(stream, MakeStream(driver, memory.cuda_device()));
  }
  constexpr Bytes kBytes(kElements * sizeof(float));
  LGPU_ASSIGN_OR_RETURN(const Block x, memory.Allocate(kBytes, {.stream = stream, .tag = "x"}));
  LGPU_ASSIGN_OR_RETURN(const Block y, memory.Allocate(kBytes, {.stream = stream, .tag = "y"}));

  std::vector<float> values(kElements);
  if (simulated) {
    auto* const xs = reinterpret_cast<float*>(x.address);
    auto* const ys = reinterpret_cast<float*>(y.address);
    std::fill_n(xs, kElements, 3.0F);
    std::fill_n(ys, kElements, 1.0F);
    for (unsigned i = 0; i < kElements; ++i) ys[i] += 2 * xs[i];
    values.assign(ys, ys + kElements);
  } else {
    const auto to = [](const Block& block) { return reinterpret_cast<std::uintptr_t>(block.address); };
    const std::vector<float> threes(kElements, 3.0F);
    const std::vector<float> ones(kElements, 1.0F);
    LGPU_RETURN_IF_ERROR(driver.Call("cuMemcpyHtoDAsync_v2", to(x), static_cast<const void*>(threes.data()),
                                     kBytes.count(), stream));
    LGPU_RETURN_IF_ERROR(driver.Call("cuMemcpyHtoDAsync_v2", to(y), static_cast<const void*>(ones.data()),
                                     kBytes.count(), stream));
    LGPU_RETURN_IF_ERROR(SaxpyOnGpu(driver, 2, x.address, y.address, stream));
    LGPU_RETURN_IF_ERROR(driver.Call("cuMemcpyDtoHAsync_v2", static_cast<void*>(values.data()), to(y),
                                     kBytes.count(), stream));
    LGPU_RETURN_IF_ERROR(driver.Call("cuStreamSynchronize", stream));
  }
  std::cout << "y = 2 x + y: " << values.front() << " to " << values.back() << "\n";

  const absl::Status refused = memory.Allocate(60_MiB, {.stream = stream, .tag = "too much"}).status();
  if (const std::optional<Refusal> refusal = GetRefusal(refused)) {
    std::cout << "refused: " << RefusalReasonName(refusal->reason) << ", " << refusal->asked << " asked, "
              << refusal->used.value_or(Bytes()) << " used of " << refusal->limit.value_or(Bytes()) << "\n";
  }
  std::cout << "not closed: " << memory.Close().message() << "\n";
  LGPU_RETURN_IF_ERROR(memory.Free(x, stream));
  LGPU_RETURN_IF_ERROR(memory.Free(y, stream));
  return memory.Close();
}

}  // namespace

int main() {
  const absl::Status status = Run();
  if (!status.ok()) std::cerr << "08_own_kernel: " << status.message() << "\n";
  return status.ok() ? 0 : 1;
}
