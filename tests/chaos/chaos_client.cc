// A program of the public API that makes random calls until its stdin says "settle": then it answers with one
// line and does nothing until "go". Every tensor has one value all over, which it checks.
//
// usage: chaos_client SEED

#include <lgpu/lgpu.h>
#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace {

using lgpu::Bytes;
using lgpu::Context;
using lgpu::Tensor;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
// The lease of several programs: the living ones keep it, also after its maker's death.
constexpr char kShared[] = "shared";

struct Filled {
  Tensor tensor;
  float value = 0;
  std::size_t count = 0;
};

class Client {
 public:
  explicit Client(std::uint64_t seed) : random_(seed) {}

  void Step() {
    if (!context_) {
      Open();
      return;
    }
    ++steps_;
    const int dice = Roll(100);
    if (dice < 40) {
      Allocate();
    } else if (dice < 65) {
      Free();
    } else if (dice < 80) {
      Check();
    } else if (dice < 92) {
      Work();
    } else if (dice < 96) {
      (void)context_->Trim();
    } else if (dice < 98) {
      Resize();
    } else {
      Close();
    }
  }

  std::string Summary() {
    CheckAll();
    return "settled " + std::to_string(steps_) + " " + std::to_string(refused_) + " " +
           std::to_string(lost_) + " " + std::to_string(wrong_) +
           (last_error_.empty() ? "" : " " + last_error_);
  }

 private:
  int Roll(int sides) { return static_cast<int>(random_() % static_cast<std::uint64_t>(sides)); }

  void Count(const absl::Status& status) {
    if (status.ok()) return;
    ++refused_;
    // UNAVAILABLE passes; a session that is lost although its process lives does not.
    if (absl::IsResourceExhausted(status) || absl::IsUnavailable(status)) return;
    ++lost_;
    last_error_ = std::string(status.message());
    for (char& c : last_error_) {
      if (c == '\n') c = ' ';
    }
    tensors_.clear();
    context_.reset();
  }

  void Open() {
    lgpu::ContextOptions options;
    options.allocation_timeout = std::chrono::milliseconds(Roll(3) == 0 ? 0 : 500);
    lgpu::LogicalDeviceOptions device;
    device.memory_limit = Bytes(static_cast<std::uint64_t>(16 + 8 * Roll(12)) * kMiB);
    if (Roll(5) == 0) device.mode = lgpu::MemoryMode::kPreallocate;
    options.logical_devices = {device};
    const bool is_shared = Roll(4) == 0;
    if (is_shared) options.lease_name = kShared;
    absl::StatusOr<Context> context = Context::Create(options);
    if (is_shared && absl::IsAlreadyExists(context.status())) {
      options.logical_devices.clear();
      options.lease_name.clear();
      options.lease = kShared;
      context = Context::Create(options);
    }
    if (context.ok()) {
      context_ = *std::move(context);
    } else {
      ++refused_;
      ::usleep(2000);
    }
  }

  void Allocate() {
    const std::uint64_t bytes =
        Roll(4) == 0 ? 1024u << Roll(4) : static_cast<std::uint64_t>(1 + Roll(12)) * kMiB;
    Filled filled{.tensor = {}, .value = static_cast<float>(1 + Roll(1000)), .count = bytes / sizeof(float)};
    const std::vector<float> values(filled.count, filled.value);
    absl::StatusOr<Tensor> tensor = context_->Constant<float>(
        lgpu::Shape{static_cast<std::int64_t>(filled.count)}, std::span<const float>(values));
    Count(tensor.status());
    if (!tensor.ok()) return;
    filled.tensor = *std::move(tensor);
    tensors_.push_back(std::move(filled));
  }

  void Free() {
    if (tensors_.empty()) return;
    std::swap(tensors_[static_cast<std::size_t>(Roll(static_cast<int>(tensors_.size())))], tensors_.back());
    tensors_.pop_back();
  }

  void CheckOne(const Filled& filled) {
    const auto values = filled.tensor.ToVector<float>();
    bool right = values.ok() && values->size() == filled.count;
    for (std::size_t i = 0; right && i < filled.count; ++i) right = (*values)[i] == filled.value;
    if (!right) {
      ++wrong_;
      last_error_ = values.ok() ? "a tensor has other values than were written"
                                : std::string(values.status().message());
    }
  }

  void Check() {
    if (!tensors_.empty()) {
      CheckOne(tensors_[static_cast<std::size_t>(Roll(static_cast<int>(tensors_.size())))]);
    }
  }
  void CheckAll() {
    for (const Filled& filled : tensors_) CheckOne(filled);
  }

  void Work() {
    const auto product = [&]() -> absl::StatusOr<std::vector<float>> {
      LGPU_ASSIGN_OR_RETURN(const Tensor a, context_->Constant<float>({{1, 2, 3}, {4, 5, 6}}));
      LGPU_ASSIGN_OR_RETURN(const Tensor b, context_->Constant<float>({{1, 2}, {3, 4}, {5, 6}}));
      LGPU_ASSIGN_OR_RETURN(const Tensor c, lgpu::MatMul(a, b));
      return c.ToVector<float>();
    }();
    Count(product.status());
    if (product.ok() && *product != std::vector<float>{22, 28, 49, 64}) ++wrong_;
  }

  void Resize() {
    const Bytes limit(static_cast<std::uint64_t>(16 + 8 * Roll(12)) * kMiB);
    const absl::Status status = context_->ResizeDevice("GPU:0", {.memory_limit = limit});
    if (!status.ok()) ++refused_;
  }

  void Close() {
    tensors_.clear();
    if (Roll(2) == 0) (void)context_->Close();
    context_.reset();
  }

  std::mt19937_64 random_;
  std::optional<Context> context_;
  std::vector<Filled> tensors_;
  std::uint64_t steps_ = 0, refused_ = 0, lost_ = 0, wrong_ = 0;
  std::string last_error_;
};

bool HasInput() {
  pollfd polled = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  return ::poll(&polled, 1, 0) == 1;
}

// Byte by byte: HasInput would not see bytes that a stream has buffered.
bool ReadLine(std::string& line) {
  line.clear();
  char c = 0;
  while (::read(STDIN_FILENO, &c, 1) == 1) {
    if (c == '\n') return true;
    line += c;
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  Client client(argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1);
  std::string line;
  while (true) {
    if (!HasInput()) {
      client.Step();
      continue;
    }
    if (!ReadLine(line)) return 0;
    if (line != "settle") continue;
    std::cout << client.Summary() << std::endl;
    if (!ReadLine(line)) return 0;
  }
}
