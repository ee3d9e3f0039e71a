// Measures kernels beside the hardware's own rates, in the same run: on a GPU, if there is one, AddN, Cast,
// Transpose, Sum, Mean and softmax beside a copy on the device, MatMul beside bare cuBLASLt, and the host's
// time of small ops beside a bare launch; then on the CPU AddN, Cast and Transpose beside a copy of as many
// bytes. Each row takes turns with its baseline, and shows medians.
//   kernels_bench [--quick] [--needs-gpu]
//     --quick: small sizes, to see that it runs; the figures mean nothing
//     --needs-gpu: no GPU is a failure

#include "bench/kernels_bench.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/wide.h"
#include "kernels/registry.h"

namespace lgpu::bench {

namespace {

double Median(std::vector<double>& values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

/// Memory that was touched, aligned as that of tensors is.
class Memory {
 public:
  explicit Memory(std::size_t bytes)
      : size_(bytes), data_(static_cast<std::byte*>(::operator new(bytes, kAlign))) {
    // Small floats, halves and whole numbers alike: nothing is slow because it is subnormal.
    for (std::size_t i = 0; i < bytes; ++i) {
      data_.get()[i] = static_cast<std::byte>(i % 2 == 0 ? i / 2 % 64 : 0x3c);
    }
  }
  std::byte* data() const { return data_.get(); }
  std::size_t size() const { return size_; }

 private:
  static constexpr std::align_val_t kAlign{64};
  struct Free {
    void operator()(std::byte* data) const { ::operator delete(data, kAlign); }
  };
  std::size_t size_;
  std::unique_ptr<std::byte, Free> data_;
};

struct CpuRow {
  std::string name;
  const Op& op;
  DType from, to;
  int inputs;
};

void MeasureTranspose(const Options& options) {
  const std::int64_t size = options.quick ? 128 : 4096;
  const KernelRegistry registry = KernelRegistry::ForSimulatedDevices({});
  Heading("CPU, one thread, beside a copy of as many bytes", "GB/s");
  for (const DType dtype : {DType::kFloat16, DType::kFloat32, DType::kFloat64}) {
    const Shape shapes[] = {Shape{size, size}, Shape{8, size / 8, size}, Shape{size, 3 * size / 4}};
    for (const Shape& shape : shapes) {
      const std::size_t bytes = static_cast<std::size_t>(shape.elements()) * ElementBytes(dtype);
      const Memory from(bytes);
      const Memory to(bytes);
      const bool batch = shape.rank() == 3;
      const TensorView input{from.data(), {dtype, shape}};
      const Shape turned = batch ? Shape{shape[0], shape[2], shape[1]} : Shape{shape[1], shape[0]};
      const TensorView output{to.data(), {dtype, turned}};
      OpAttributes attributes{.axes = {.all = true}};
      if (batch) attributes.axes = {.values = {0, 2, 1}, .count = 3};
      const Kernel* const kernel = registry.Find(TransposeOp(), DeviceType::kCpu, dtype);
      CpuLauncher launcher;
      const auto ours = [&] {
        (void)kernel->run({&input, 1}, {&output, 1}, attributes, launcher);
        Keep(to.data());
      };
      const auto bare = [&] {
        std::memcpy(to.data(), from.data(), bytes);
        Keep(to.data());
      };
      const Pair seconds = Compare(options, ours, bare);
      const double gigabytes = 2 * static_cast<double>(bytes) / 1e9;
      Row("Transpose of " + std::string(DTypeName(dtype)) + " " + shape.ToString(), gigabytes / seconds.ours,
          gigabytes / seconds.bare, seconds.bare / seconds.ours);
    }
  }
}

/// Reads all inputs and writes as much as one of them, past the caches: the bytes of an AddN, in its
/// directions.
#if defined(__x86_64__)
LGPU_WIDE void Touch(const std::vector<TensorView>& inputs, const Memory& output) {
  constexpr std::size_t kLine = 64;
  const auto at = [](const std::byte* data) {
    return static_cast<const __m256i*>(static_cast<const void*>(data));
  };
  for (std::size_t i = 0; i + kLine <= output.size(); i += kLine) {
    __m256i low = _mm256_setzero_si256();
    __m256i high = low;
    for (const TensorView& input : inputs) {
      low = _mm256_or_si256(low, _mm256_load_si256(at(input.data + i)));
      high = _mm256_or_si256(high, _mm256_load_si256(at(input.data + i + kLine / 2)));
    }
    auto* const to = static_cast<__m256i*>(static_cast<void*>(output.data() + i));
    _mm256_stream_si256(to, low);
    _mm256_stream_si256(to + 1, high);
  }
  _mm_sfence();
}
#else
void Touch(const std::vector<TensorView>&, const Memory&) {}
#endif

void MeasureCpu(const Options& options) {
  const std::int64_t elements = options.quick ? 10'000 : 16 << 20;
  std::vector<CpuRow> rows;
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64}) {
    for (const int inputs : {2, 8}) {
      rows.push_back({"AddN of " + std::to_string(inputs) + " " + std::string(DTypeName(dtype)), AddNOp(),
                      dtype, dtype, inputs});
    }
  }
  const std::pair<DType, DType> casts[] = {
      {DType::kFloat32, DType::kFloat16},  {DType::kFloat16, DType::kFloat32},
      {DType::kFloat32, DType::kBFloat16}, {DType::kBFloat16, DType::kFloat32},
      {DType::kFloat32, DType::kFloat64},  {DType::kInt32, DType::kFloat32},
      {DType::kFloat32, DType::kInt32}};
  for (const auto& [from, to] : casts) {
    rows.push_back({"Cast " + std::string(DTypeName(from)) + " to " + std::string(DTypeName(to)), CastOp(),
                    from, to, 1});
  }
  const KernelRegistry registry = KernelRegistry::ForSimulatedDevices({});
  Heading("CPU, one thread, beside a copy of as many bytes", "GB/s");
  for (const CpuRow& row : rows) {
    const std::size_t in_bytes = static_cast<std::size_t>(elements) * ElementBytes(row.from);
    const std::size_t out_bytes = static_cast<std::size_t>(elements) * ElementBytes(row.to);
    const Shape shape{elements};
    std::vector<Memory> memory;
    std::vector<TensorView> inputs;
    for (int i = 0; i < row.inputs; ++i) {
      memory.emplace_back(in_bytes);
      inputs.push_back({memory.back().data(), {row.from, shape}});
    }
    const Memory output(out_bytes);
    const TensorView written{output.data(), {row.to, shape}};
    const std::size_t bytes = in_bytes * static_cast<std::size_t>(row.inputs) + out_bytes;
    const Memory from(bytes / 2);
    const Memory to(bytes / 2);
    const Kernel* const kernel = registry.Find(row.op, DeviceType::kCpu, row.from);
    CpuLauncher launcher;
    const auto ours = [&] {
      (void)kernel->run(inputs, {&written, 1}, {.cast_to = row.to}, launcher);
      Keep(output.data());
    };
    const auto bare = [&] {
      std::memcpy(to.data(), from.data(), from.size());
      Keep(to.data());
    };
    const Pair seconds = Compare(options, ours, bare);
    const double gigabytes = static_cast<double>(bytes) / 1e9;
    Row(row.name, gigabytes / seconds.ours, gigabytes / seconds.bare, seconds.bare / seconds.ours);
    if (row.inputs == 1 || !cpu::HasWide()) continue;
    const auto touch = [&] { Touch(inputs, output); };
    const Pair streams = Compare(options, ours, touch);
    Row("  beside reading as many and writing one", gigabytes / streams.ours, gigabytes / streams.bare,
        streams.bare / streams.ours);
  }
}

}  // namespace

void Keep(const void* data) { asm volatile("" : : "r"(data) : "memory"); }

void Heading(const std::string& title, const std::string& unit) {
  std::printf("\n%-44s %12s %12s %8s\n", title.c_str(), ("lgpu " + unit).c_str(), ("bare " + unit).c_str(),
              "ratio");
}

void Row(const std::string& name, double ours, double bare, double ratio) {
  std::printf("%-44s %12.3f %12.3f %8.3f\n", name.c_str(), ours, bare, ratio);
  std::fflush(stdout);
}

Pair Compare(const Options& options, const std::function<void()>& ours, const std::function<void()>& bare) {
  const int rounds = options.quick ? 3 : 15;
  std::vector<double> of_ours;
  std::vector<double> of_bare;
  ours();
  bare();
  for (int i = 0; i < rounds; ++i) {
    of_bare.push_back(Seconds(bare));
    of_ours.push_back(Seconds(ours));
  }
  return {Median(of_ours), Median(of_bare)};
}

}  // namespace lgpu::bench

int main(int argc, char** argv) {
  lgpu::bench::Options options;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--quick") == 0) {
      options.quick = true;
    } else if (std::strcmp(argv[i], "--needs-gpu") == 0) {
      options.needs_gpu = true;
    } else {
      std::fprintf(stderr, "usage: kernels_bench [--quick] [--needs-gpu]\n");
      return 2;
    }
  }
  const bool good = lgpu::bench::MeasureGpu(options);
  lgpu::bench::MeasureCpu(options);
  lgpu::bench::MeasureTranspose(options);
  return good ? 0 : 1;
}
