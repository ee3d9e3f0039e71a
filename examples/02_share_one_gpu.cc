// Two programs share one GPU with nothing but the defaults: each gets a logical device on the same card that
// grows on demand, and both hold memory at the same time. This program starts itself a second time and waits.

#include <lgpu/lgpu.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <iostream>
#include <string>
#include <string_view>
#include <vector>

using namespace lgpu;

namespace {

constexpr std::string_view kSecond = "--second";

// Multiplies a matrix of ones with itself, and says on which card and how much memory that took.
absl::Status Work(Context& gpu, const char* who) {
  constexpr std::int64_t kSize = 512;
  const std::vector<float> ones(kSize * kSize, 1);
  LGPU_ASSIGN_OR_RETURN(Tensor a, gpu.Constant<float>({kSize, kSize}, ones));
  LGPU_ASSIGN_OR_RETURN(Tensor product, MatMul(a, a));
  LGPU_ASSIGN_OR_RETURN(const std::vector<float> values, product.ToVector<float>());
  for (const float value : values) {
    if (value != kSize) return absl::InternalError("the product is wrong");
  }
  LGPU_ASSIGN_OR_RETURN(const MemoryInfo memory, gpu.GetMemoryInfo("GPU:0"));
  const LogicalDeviceInfo& device = gpu.logical_devices().at(0);
  std::cout << who + (" program: " + FormatBytes(memory.current)) + " in use on " + device.name + ", card " +
                   device.card_uuid + "\n"
            << std::flush;
  return absl::OkStatus();
}

// Starts this program again, which works while this one holds its memory; waits for it.
absl::Status RunSecond(const char* program) {
  std::string path = program;
  std::string argument(kSecond);
  char* const arguments[] = {path.data(), argument.data(), nullptr};
  pid_t pid = 0;
  if (const int error = posix_spawn(&pid, program, nullptr, nullptr, arguments, environ); error != 0) {
    return absl::InternalError("posix_spawn failed with " + std::to_string(error));
  }
  int state = 0;
  if (waitpid(pid, &state, 0) != pid || state != 0) return absl::InternalError("the second program failed");
  return absl::OkStatus();
}

absl::Status Run(const char* program, bool second) {
  LGPU_ASSIGN_OR_RETURN(Context gpu, Context::Create({}));
  LGPU_ASSIGN_OR_RETURN(Tensor kept, gpu.Constant<float>({1 << 20}, std::vector<float>(1 << 20)));
  LGPU_RETURN_IF_ERROR(Work(gpu, second ? "second" : "first"));
  return second ? absl::OkStatus() : RunSecond(program);
}

}  // namespace

int main(int argc, char** argv) {
  const bool second = argc > 1 && argv[1] == kSecond;
  if (const absl::Status status = Run("/proc/self/exe", second); !status.ok()) {
    std::cerr << "02_share_one_gpu: " << status.message() << "\n";
    return 1;
  }
  return 0;
}
