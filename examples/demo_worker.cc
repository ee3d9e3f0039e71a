// A program that scripts/demo runs several times at once on one GPU: it multiplies and adds matrices on a
// logical device of its own, compares every result with a reference that it computes itself, and keeps
// results until it holds most of its limit. With --until-refused it goes on to the limit, and succeeds if it
// is refused there.

#include <lgpu/lgpu.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <string>
#include <vector>

namespace {

constexpr std::int64_t kSize = 512;
constexpr std::size_t kElements = kSize * kSize;

struct Arguments {
  std::string mode = "growth";
  std::string memory = "256MiB";
  std::string device;  // a physical one; empty: any
  std::string name = "demo";
  double seconds = 2;
  std::string until;  // a file: work ends when it exists, or after `seconds`
  bool until_refused = false;
};

// Small whole numbers: sums of their products are exact in float, in whatever order they are added.
std::vector<float> Numbers(std::uint32_t seed) {
  std::vector<float> numbers(kElements);
  for (float& number : numbers) {
    seed = seed * 1664525u + 1013904223u;
    number = static_cast<float>(static_cast<int>(seed >> 29) - 4);
  }
  return numbers;
}

// 2 * a * b
std::vector<float> Reference(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> result(kElements, 0.0f);
  for (std::size_t i = 0; i < kSize; ++i) {
    for (std::size_t k = 0; k < kSize; ++k) {
      for (std::size_t j = 0; j < kSize; ++j) {
        result[i * kSize + j] += 2 * a[i * kSize + k] * b[k * kSize + j];
      }
    }
  }
  return result;
}

class Worker {
 public:
  Worker(const Arguments& arguments, lgpu::Context context)
      : arguments_(arguments), context_(std::move(context)) {}

  absl::Status Run() {
    const lgpu::LogicalDeviceInfo& device = context_.logical_devices().front();
    const std::vector<float> host_a = Numbers(1);
    const std::vector<float> host_b = Numbers(static_cast<std::uint32_t>(::getpid()));
    reference_ = Reference(host_a, host_b);
    const lgpu::Shape shape{kSize, kSize};
    LGPU_ASSIGN_OR_RETURN(a_, context_.Constant<float>(shape, host_a));
    LGPU_ASSIGN_OR_RETURN(b_, context_.Constant<float>(shape, host_b));
    LGPU_RETURN_IF_ERROR(Step());
    std::printf("%s: pid %d, lease %s, %s on %s %s, limit %s, %s\n", arguments_.name.c_str(), ::getpid(),
                context_.lease().c_str(), device.name.c_str(), device.card_name.c_str(),
                device.pci_bus_id.c_str(), lgpu::FormatBytes(device.memory_limit).c_str(),
                arguments_.mode.c_str());
    std::fflush(stdout);
    LGPU_RETURN_IF_ERROR(arguments_.until_refused ? GoToTheLimit(device.memory_limit)
                                                  : WorkFor(arguments_.seconds, device.memory_limit));
    LGPU_ASSIGN_OR_RETURN(const lgpu::MemoryInfo memory, context_.GetMemoryInfo("GPU:0"));
    std::printf("%s: %d matmuls and %d add_n, every value as in the reference; peak %s of %s\n",
                arguments_.name.c_str(), steps_, steps_, lgpu::FormatBytes(memory.peak).c_str(),
                lgpu::FormatBytes(device.memory_limit).c_str());
    kept_.clear();
    a_ = {};
    b_ = {};
    return context_.Close();
  }

 private:
  bool Told() const { return !arguments_.until.empty() && ::access(arguments_.until.c_str(), F_OK) == 0; }

  absl::Status Step() {
    LGPU_ASSIGN_OR_RETURN(const lgpu::Tensor product, lgpu::MatMul(a_, b_));
    LGPU_ASSIGN_OR_RETURN(lgpu::Tensor sum, lgpu::AddN({product, product}));
    LGPU_ASSIGN_OR_RETURN(const std::vector<float> values, sum.ToVector<float>());
    if (values != reference_) return absl::InternalError("a result differs from the reference");
    kept_.push_back(std::move(sum));
    ++steps_;
    return absl::OkStatus();
  }

  absl::Status WorkFor(double seconds, lgpu::Bytes limit) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (std::chrono::steady_clock::now() < end && !Told()) {
      LGPU_RETURN_IF_ERROR(Step());
      if (kept_.size() * kept_.front().bytes().count() > limit.count() / 4 * 3) kept_.pop_front();
    }
    return absl::OkStatus();
  }

  absl::Status GoToTheLimit(lgpu::Bytes limit) {
    for (;;) {
      const absl::Status status = Step();
      if (status.ok()) continue;
      if (!absl::IsResourceExhausted(status)) return status;
      LGPU_ASSIGN_OR_RETURN(const lgpu::MemoryInfo memory, context_.GetMemoryInfo("GPU:0"));
      // A step needs two blocks, the product and its sum; either may be the one that did not fit.
      if (memory.current > limit || memory.current + lgpu::Bytes(2 * kElements * sizeof(float)) <= limit) {
        return absl::InternalError("refused with " + lgpu::FormatBytes(memory.current) +
                                   " in use: " + std::string(status.message()));
      }
      std::printf("%s: refused, as it should be:\n%s\n", arguments_.name.c_str(),
                  std::string(status.message()).c_str());
      return absl::OkStatus();
    }
  }

  const Arguments arguments_;
  lgpu::Context context_;
  lgpu::Tensor a_;
  lgpu::Tensor b_;
  std::vector<float> reference_;
  std::deque<lgpu::Tensor> kept_;
  int steps_ = 0;
};

absl::Status Run(const Arguments& arguments) {
  LGPU_ASSIGN_OR_RETURN(const lgpu::Bytes memory, lgpu::ParseBytes(arguments.memory));
  const bool preallocate = arguments.mode == "preallocate";
  LGPU_ASSIGN_OR_RETURN(
      lgpu::Context context,
      lgpu::Context::Create({.logical_devices = {{.memory_limit = memory,
                                                  .mode = preallocate ? lgpu::MemoryMode::kPreallocate
                                                                      : lgpu::MemoryMode::kGrowth,
                                                  .physical_device = arguments.device}},
                             .lease_name = arguments.name,
                             .allocation_timeout = std::chrono::seconds(2)}));
  return Worker(arguments, std::move(context)).Run();
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Works on one logical GPU and checks the results.");
  app.add_option("--mode", arguments.mode)->check(CLI::IsMember({"growth", "preallocate"}));
  app.add_option("--memory", arguments.memory, "Limit of the logical device");
  app.add_option("--device", arguments.device, "Physical device: an index or a uuid");
  app.add_option("--name", arguments.name, "Name of the lease");
  app.add_option("--seconds", arguments.seconds, "How long to work");
  app.add_option("--until", arguments.until, "End earlier, when this file exists");
  app.add_flag("--until-refused", arguments.until_refused, "Take memory until the limit refuses more");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = Run(arguments);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s: error: %s\n", arguments.name.c_str(), std::string(status.message()).c_str());
  return 1;
}
