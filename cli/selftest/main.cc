// lgpu-selftest: a program of the library, which `lgpu verify` and `lgpu doctor` start. Not for people.
//
//   lgpu-selftest fill             fills every logical device of LGPU_LEASE until it is refused: a line of
//                                  JSON for each, then it waits for a line before it lets go
//   lgpu-selftest driver BYTES...  tries to take more than so much of each GPU from the CUDA driver: a line
//                                  for every kind of call, as above
//   lgpu-selftest check BYTES      a lease of its own with this limit: a MatMul on the GPU and on the CPU,
//                                  and an allocation that must be refused; one line of JSON

#include <dlfcn.h>
#include <lgpu/lgpu.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/refusal_text.h"
#include "cli/selftest/driver_attempts.h"

namespace {

using lgpu::Bytes;
using lgpu::Context;
using lgpu::Tensor;
using nlohmann::json;

constexpr std::uint64_t kSmallest = 512;
constexpr std::uint64_t kLargest = std::uint64_t{1} << 30;

void Say(const json& line) {
  std::cout << line.dump(-1, ' ', false, json::error_handler_t::replace) << std::endl;
}

json ErrorToJson(const absl::Status& status) {
  json result = {{"code", absl::StatusCodeToString(status.code())},
                 {"message", std::string(status.message())}};
  if (const std::optional<lgpu::Refusal> refusal = lgpu::GetRefusal(status)) {
    result["message"] = lgpu::RefusalHeadline(*refusal) + lgpu::RefusalDetails(*refusal);
    result["reason"] = std::string(lgpu::RefusalReasonName(refusal->reason));
  }
  return result;
}

/// Zeros to copy from, which take no memory of the machine.
class Zeros {
 public:
  explicit Zeros(std::uint64_t bytes)
      : bytes_(bytes),
        base_(::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~Zeros() {
    if (base_ != MAP_FAILED) ::munmap(base_, bytes_);
  }
  Zeros(const Zeros&) = delete;
  Zeros& operator=(const Zeros&) = delete;
  bool ok() const { return base_ != MAP_FAILED; }
  std::span<const float> floats(std::uint64_t bytes) const {
    return {static_cast<const float*>(base_), bytes / sizeof(float)};
  }

 private:
  const std::uint64_t bytes_;
  void* const base_;
};

/// Half as large after every refusal, so that at the end not even the smallest block fits.
absl::StatusOr<json> Fill(const Context& context, const std::string& name, std::vector<Tensor>& blocks) {
  LGPU_ASSIGN_OR_RETURN(const lgpu::MemoryStats before, context.GetMemoryStats(name));
  std::uint64_t size = std::clamp(before.limit.count() / 4 / kSmallest * kSmallest, kSmallest, kLargest);
  const Zeros zeros(size);
  if (!zeros.ok()) return absl::ResourceExhaustedError("no address range to copy zeros from");
  const lgpu::DeviceScope scope(context, name);
  absl::Status refused;
  while (size >= kSmallest) {
    const auto count = static_cast<std::int64_t>(size / sizeof(float));
    absl::StatusOr<Tensor> block = context.Constant<float>(lgpu::Shape{count}, zeros.floats(size));
    if (block.ok()) {
      blocks.push_back(*std::move(block));
    } else if (absl::IsResourceExhausted(block.status())) {
      refused = block.status();
      size = size / 2 / kSmallest * kSmallest;
    } else {
      return block.status();
    }
  }
  LGPU_ASSIGN_OR_RETURN(const lgpu::MemoryStats stats, context.GetMemoryStats(name));
  return json{{"device", name},
              {"limit_bytes", stats.limit.count()},
              {"used_bytes", stats.used.count()},
              {"allocated_bytes", (stats.used - before.used).count()},
              {"held_bytes", stats.held.count()},
              {"blocks", blocks.size()},
              {"refused", ErrorToJson(refused)}};
}

absl::Status FillAll() {
  LGPU_ASSIGN_OR_RETURN(Context context, Context::Create({.log_device_placement = false,
                                                          .soft_device_placement = false,
                                                          .allocation_timeout = {}}));
  for (const lgpu::LogicalDeviceInfo& device : context.logical_devices()) {
    std::vector<Tensor> blocks;
    LGPU_ASSIGN_OR_RETURN(const json line, Fill(context, device.name, blocks));
    Say(line);
    std::string go_on;
    if (!std::getline(std::cin, go_on)) break;
    blocks.clear();
    LGPU_RETURN_IF_ERROR(context.Trim().status());
  }
  return context.Close();
}

absl::StatusOr<std::vector<float>> MultiplyOn(const Context& context, const char* device,
                                              std::string& placed) {
  const lgpu::DeviceScope scope(context, device);
  LGPU_ASSIGN_OR_RETURN(const Tensor a, context.Constant<float>({{1, 2, 3}, {4, 5, 6}}));
  LGPU_ASSIGN_OR_RETURN(const Tensor b, context.Constant<float>({{1, 2}, {3, 4}, {5, 6}}));
  LGPU_ASSIGN_OR_RETURN(const Tensor c, lgpu::MatMul(a, b));
  placed = c.device();
  return c.ToVector<float>();
}

/// The core type that OpenBLAS has chosen; empty where MatMul has not loaded it.
std::string OpenBlasCore() {
  void* const library = ::dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (library == nullptr) return "";
  const auto core_name = reinterpret_cast<char* (*)()>(::dlsym(library, "openblas_get_corename"));
  const std::string name = core_name == nullptr ? "" : core_name();
  ::dlclose(library);
  return name;
}

absl::Status Check(std::uint64_t limit) {
  // Without kernels for GPUs MatMul runs on the CPU, and the answer says so.
  LGPU_ASSIGN_OR_RETURN(Context context, Context::Create({.logical_devices = {{.memory_limit = Bytes(limit)}},
                                                          .log_device_placement = false,
                                                          .soft_device_placement = LGPU_HAS_GPU_KERNELS == 0,
                                                          .allocation_timeout = std::chrono::seconds(2)}));
  std::string on_gpu;
  std::string on_cpu;
  LGPU_ASSIGN_OR_RETURN(const std::vector<float> gpu, MultiplyOn(context, "/GPU:0", on_gpu));
  LGPU_ASSIGN_OR_RETURN(const std::vector<float> cpu, MultiplyOn(context, "/CPU:0", on_cpu));
  const std::uint64_t too_much = limit + (std::uint64_t{1} << 20);
  const Zeros zeros(too_much);
  const lgpu::DeviceScope scope(context, "/GPU:0");
  const auto count = static_cast<std::int64_t>(too_much / sizeof(float));
  const absl::Status refused = context.Constant<float>(lgpu::Shape{count}, zeros.floats(too_much)).status();
  const bool agree = gpu == cpu && gpu == std::vector<float>{22, 28, 49, 64};
  LGPU_RETURN_IF_ERROR(context.Close());
  Say({{"gpu", on_gpu},
       {"cpu", on_cpu},
       {"agree", agree},
       {"openblas_core", OpenBlasCore()},
       {"asked_bytes", too_much},
       {"refused", ErrorToJson(refused)}});
  return absl::OkStatus();
}

absl::Status TryDriver(const std::vector<std::uint64_t>& limits) {
  LGPU_RETURN_IF_ERROR(lgpu::selftest::TryDriver(limits, [](const json& attempt) {
    Say(attempt);
    std::string go_on;
    return static_cast<bool>(std::getline(std::cin, go_on));
  }));
  Say({{"done", true}});
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string verb = argc > 1 ? argv[1] : "";
  absl::Status status =
      absl::InvalidArgumentError("lgpu-selftest is started by `lgpu verify` and `lgpu doctor`");
  if (verb == "fill") status = FillAll();
  if (verb == "driver") {
    std::vector<std::uint64_t> limits;
    for (int i = 2; i < argc; ++i) limits.push_back(std::strtoull(argv[i], nullptr, 10));
    status = TryDriver(limits);
  }
  if (verb == "check" && argc > 2) status = Check(std::strtoull(argv[2], nullptr, 10));
  if (status.ok()) return 0;
  Say({{"error", ErrorToJson(status)}});
  return 1;
}
