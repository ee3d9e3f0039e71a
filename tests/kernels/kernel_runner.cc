#include "tests/kernels/kernel_runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

namespace lgpu::testing {

namespace {

constexpr std::size_t kGuard = 256;
constexpr std::byte kPoison{0xff};  // NaN in every floating type

std::size_t BytesOf(const TensorSpec& spec) {
  return static_cast<std::size_t>(spec.shape.elements()) * ElementBytes(spec.dtype);
}

std::unique_ptr<KernelRunner>& TheRunner() {
  static std::unique_ptr<KernelRunner> runner;
  return runner;
}

class RunnerEnvironment final : public ::testing::Environment {
 public:
  void TearDown() override { TheRunner().reset(); }
};
[[maybe_unused]] const ::testing::Environment* const kEnvironment =
    ::testing::AddGlobalTestEnvironment(new RunnerEnvironment);  // googletest owns it

}  // namespace

KernelRunner& ThisRunner() {
  if (TheRunner() == nullptr) TheRunner() = MakeRunner();
  return *TheRunner();
}

std::vector<std::vector<std::byte>> RunInArena(KernelRunner& runner, const Kernel& kernel,
                                               std::span<const TensorView> inputs,
                                               std::span<const TensorSpec> outputs,
                                               const OpAttributes& attributes,
                                               std::span<const std::size_t> shifts) {
  struct Place {
    std::size_t offset, bytes;
  };
  std::vector<Place> places;
  std::size_t end = kGuard;
  const auto place = [&](const TensorSpec& spec) {
    const std::size_t shift = shifts[std::min(places.size(), shifts.size() - 1)];
    places.push_back({end + shift, BytesOf(spec)});
    end += (shift + BytesOf(spec) + kGuard + 255) / 256 * 256;
  };
  for (const TensorView& input : inputs) place(input.spec);
  for (const TensorSpec& output : outputs) place(output);
  const std::span<std::byte> arena = runner.arena();
  EXPECT_LE(end, arena.size()) << "the test's tensors do not fit into the arena";
  if (end > arena.size()) return {};

  std::vector<std::byte> image(end, kPoison);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (places[i].bytes != 0) std::memcpy(image.data() + places[i].offset, inputs[i].data, places[i].bytes);
  }
  absl::Status status = runner.CopyIn(arena.data(), image);
  std::vector<TensorView> views;
  for (std::size_t i = 0; i < places.size(); ++i) {
    const TensorSpec& spec = i < inputs.size() ? inputs[i].spec : outputs[i - inputs.size()];
    // As a tensor without elements has it.
    views.push_back({places[i].bytes == 0 ? nullptr : arena.data() + places[i].offset, spec});
  }
  const std::span<const TensorView> all(views);
  status.Update(
      kernel.run(all.first(inputs.size()), all.subspan(inputs.size()), attributes, runner.launcher()));
  std::vector<std::byte> after(end);
  status.Update(runner.CopyOut(after, arena.data()));
  EXPECT_TRUE(status.ok()) << status;

  std::vector<std::vector<std::byte>> results;
  for (std::size_t i = inputs.size(); i < places.size(); ++i) {
    const auto first = after.begin() + static_cast<std::ptrdiff_t>(places[i].offset);
    const auto last = first + static_cast<std::ptrdiff_t>(places[i].bytes);
    results.emplace_back(first, last);
    std::copy_n(image.begin() + static_cast<std::ptrdiff_t>(places[i].offset), places[i].bytes, first);
  }
  EXPECT_TRUE(after == image) << "the kernel wrote beside its output";
  return results;
}

}  // namespace lgpu::testing
