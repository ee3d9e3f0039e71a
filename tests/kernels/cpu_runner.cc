#include "kernels/cpu/cpu_kernels.h"
#include "tests/kernels/kernel_runner.h"

namespace lgpu::testing {

namespace {

class CpuRunner final : public KernelRunner {
 public:
  DeviceType type() const override { return DeviceType::kCpu; }
  const KernelRegistry& registry() const override { return registry_; }
  Launcher& launcher() override { return launcher_; }
  std::span<std::byte> arena() override {
    const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(memory_.data()) % 256;
    return std::span(memory_).subspan(256 - misaligned, memory_.size() - 256);
  }
  absl::Status CopyIn(std::byte* to, std::span<const std::byte> from) override {
    std::copy(from.begin(), from.end(), to);
    return absl::OkStatus();
  }
  absl::Status CopyOut(std::span<std::byte> to, const std::byte* from) override {
    std::copy_n(from, to.size(), to.begin());
    return absl::OkStatus();
  }

 private:
  const KernelRegistry registry_ = KernelRegistry::ForSimulatedDevices({});
  CpuLauncher launcher_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(std::size_t{32} << 20);
};

}  // namespace

std::unique_ptr<KernelRunner> MakeRunner() { return std::make_unique<CpuRunner>(); }

}  // namespace lgpu::testing
