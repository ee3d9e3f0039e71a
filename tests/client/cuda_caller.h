#ifndef LGPU_TESTS_CLIENT_CUDA_CALLER_H_
#define LGPU_TESTS_CLIENT_CUDA_CALLER_H_

#include <gtest/gtest.h>

#include <mutex>
#include <utility>
#include <vector>

#include "allocator/device/cuda/cuda_driver.h"
#include "lgpu/pool.h"

namespace lgpu::testing {

/// A CudaCaller makes a program's own calls of the driver: streams and copies in the primary context. It
/// knows nothing of lgpu. Thread-safe. Its streams stay until all tests are over.
class CudaCaller {
 public:
  explicit CudaCaller(int cuda_device) : driver_(*CudaDriver::Open()) {
    CUdevice device = 0;
    EXPECT_GE(cuda_device, 0);
    EXPECT_EQ(driver_.DeviceGet(&device, cuda_device), CUDA_SUCCESS);
    EXPECT_EQ(driver_.DevicePrimaryCtxRetain(&context_, device), CUDA_SUCCESS);
    [[maybe_unused]] static const auto* const cleanup = ::testing::AddGlobalTestEnvironment(new Cleanup);
    const std::lock_guard lock(mutex_);
    devices_.push_back(device);
  }

  void* MakeStream() {
    const Current current(*this);
    CUstream stream = nullptr;
    EXPECT_EQ(driver_.StreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
    const std::lock_guard lock(mutex_);
    streams_.emplace_back(context_, stream);
    return stream;
  }
  void Write(const Block& block, std::uint8_t value, void* stream) {
    const Current current(*this);
    const std::vector<std::uint8_t> data(block.bytes.count(), value);
    EXPECT_EQ(
        driver_.MemcpyHtoDAsync(Address(block), data.data(), data.size(), static_cast<CUstream>(stream)),
        CUDA_SUCCESS);
    EXPECT_EQ(driver_.StreamSynchronize(static_cast<CUstream>(stream)), CUDA_SUCCESS);
  }
  std::uint8_t ReadLast(const Block& block, void* stream) {
    const Current current(*this);
    std::uint8_t last = 0;
    EXPECT_EQ(driver_.MemcpyDtoHAsync(&last, Address(block) + block.bytes.count() - 1, 1,
                                      static_cast<CUstream>(stream)),
              CUDA_SUCCESS);
    EXPECT_EQ(driver_.StreamSynchronize(static_cast<CUstream>(stream)), CUDA_SUCCESS);
    return last;
  }

 private:
  // Gives everything back when no LogicalMemory uses it any more.
  class Cleanup final : public ::testing::Environment {
   public:
    void TearDown() override {
      const CudaDriver driver = *CudaDriver::Open();
      const std::lock_guard lock(mutex_);
      for (const auto& [context, stream] : streams_) {
        CUcontext previous = nullptr;
        EXPECT_EQ(driver.CtxPushCurrent(context), CUDA_SUCCESS);
        EXPECT_EQ(driver.StreamDestroy(stream), CUDA_SUCCESS);
        EXPECT_EQ(driver.CtxPopCurrent(&previous), CUDA_SUCCESS);
      }
      for (const CUdevice device : devices_) EXPECT_EQ(driver.DevicePrimaryCtxRelease(device), CUDA_SUCCESS);
    }
  };
  static inline std::mutex mutex_;
  static inline std::vector<std::pair<CUcontext, CUstream>> streams_;
  static inline std::vector<CUdevice> devices_;

  // The context is the calling thread's current one.
  class Current {
   public:
    explicit Current(const CudaCaller& caller) : caller_(caller) {
      EXPECT_EQ(caller.driver_.CtxPushCurrent(caller.context_), CUDA_SUCCESS);
    }
    ~Current() {
      CUcontext context = nullptr;
      caller_.driver_.CtxPopCurrent(&context);
    }
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

   private:
    const CudaCaller& caller_;
  };
  static CUdeviceptr Address(const Block& block) { return reinterpret_cast<CUdeviceptr>(block.address); }

  const CudaDriver driver_;
  CUcontext context_ = nullptr;
};

}  // namespace lgpu::testing

#endif  // LGPU_TESTS_CLIENT_CUDA_CALLER_H_
