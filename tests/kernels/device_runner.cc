#include "tests/kernels/device_runner.h"

#include <utility>

#include "base/check.h"

namespace lgpu::testing {

namespace {

constexpr Bytes kArena = Bytes(std::uint64_t{64} << 20);
constexpr std::uint64_t kWorkspace = std::uint64_t{32} << 20;  // of it

class DeviceRunner final : public KernelRunner, public Launcher {
 public:
  DeviceRunner(std::unique_ptr<DeviceBackend> backend, KernelRegistry registry,
               std::unique_ptr<MatMulLibrary> matmul)
      : registry_(std::move(registry)), backend_(std::move(backend)), matmul_(std::move(matmul)) {
    const auto memory = backend_->Create(0, kArena);
    LGPU_CHECK(memory.ok());
    memory_ = *memory;
    const auto base = backend_->Reserve(0, kArena);
    LGPU_CHECK(base.ok());
    base_ = *base;
    const auto stream = backend_->CreateStream(0, 0);
    LGPU_CHECK(stream.ok());
    stream_ = *stream;
    LGPU_CHECK(backend_->Map(base_, memory_).ok());
    LGPU_CHECK(backend_->SetAccess(base_, kArena).ok());
  }
  ~DeviceRunner() override {
    if (matmul_ != nullptr) {
      const absl::Status closed = backend_->CallLibrary(stream_, [this](void*) {
        matmul_.reset();
        return absl::OkStatus();
      });
      LGPU_CHECK(closed.ok());
    }
    LGPU_CHECK(backend_->DestroyStream(stream_).ok());
    LGPU_CHECK(backend_->Unmap(base_).ok());
    LGPU_CHECK(backend_->Unreserve(base_, kArena).ok());
    LGPU_CHECK(backend_->Release(memory_).ok());
  }

  DeviceType type() const override { return DeviceType::kGpu; }
  const KernelRegistry& registry() const override { return registry_; }
  Launcher& launcher() override { return *this; }
  // The machine may not have the library.
  bool CanRun(const Kernel& kernel) override {
    return !kernel.needs_library || CallLibrary([this](const LibraryCall& call) {
                                      return call.matmul->Open(call, {base_ + kArena.count() - kWorkspace,
                                                                      MatMulLibrary::kScratchBytes});
                                    }).ok();
  }
  std::span<std::byte> arena() override { return {base_, kArena.count() - kWorkspace}; }
  absl::Status CopyIn(std::byte* to, std::span<const std::byte> from) override {
    return backend_->CopyToDevice(stream_, to, from.data(), Bytes(from.size()));
  }
  absl::Status CopyOut(std::span<std::byte> to, const std::byte* from) override {
    return backend_->CopyToHost(stream_, to.data(), from, Bytes(to.size()));
  }
  absl::Status Launch(const KernelLaunch& launch) override { return backend_->Launch(stream_, launch); }
  absl::Status CallLibrary(absl::FunctionRef<absl::Status(const LibraryCall&)> call) override {
    return backend_->CallLibrary(stream_, [&](void* stream) {
      return call(
          {.stream = stream,
           .matmul = matmul_.get(),
           .workspace_bytes = kWorkspace,
           .with_workspace = [this](std::uint64_t at_least, auto queue) -> std::optional<absl::Status> {
             if (at_least > kWorkspace) return std::nullopt;
             return queue({base_ + kArena.count() - kWorkspace, kWorkspace});
           }});
    });
  }
  absl::Status WithScratch(Bytes bytes,
                           absl::FunctionRef<absl::Status(std::span<std::byte> scratch)> launch) override {
    return launch(bytes <= Bytes(kWorkspace)
                      ? std::span<std::byte>(base_ + kArena.count() - kWorkspace, bytes.count())
                      : std::span<std::byte>());
  }

 private:
  const KernelRegistry registry_;
  const std::unique_ptr<DeviceBackend> backend_;
  std::unique_ptr<MatMulLibrary> matmul_;
  MemoryHandle memory_;
  std::byte* base_ = nullptr;
  StreamHandle stream_;
};

}  // namespace

std::unique_ptr<KernelRunner> MakeDeviceRunner(std::unique_ptr<DeviceBackend> backend,
                                               KernelRegistry registry,
                                               std::unique_ptr<MatMulLibrary> matmul) {
  return std::make_unique<DeviceRunner>(std::move(backend), std::move(registry), std::move(matmul));
}

}  // namespace lgpu::testing
