// Measures how fast a Context's tensors go to host memory and come back: Suspend and Resume on a simulated
// GPU, end to end, the page faults of new memory included. Beside each, in the same run and in turns, its
// bare counterpart with as many threads (one): the same bytes are copied into ordinary memory that is new,
// and into memory of a new file in memory, as the simulated GPU has.
//
// usage: suspension_bench [ROUNDS]

#include <lgpu/lgpu.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace lgpu::bench {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr int kTensors = 32;
constexpr Bytes kTensor = 16_MiB;
constexpr Bytes kAll = kTensor * kTensors;
constexpr double kGoal = 0.8;

/// GiB/s of the best round.
struct Rate {
  double best = 0;
  void Note(SteadyClock::duration took) {
    const double seconds = std::chrono::duration<double>(took).count();
    best = std::max(best, static_cast<double>(kAll.count()) / (1 << 30) / seconds);
  }
};

template <typename Call>
SteadyClock::duration TimeOf(const Call& call) {
  const auto begin = SteadyClock::now();
  call();
  return SteadyClock::now() - begin;
}

/// New memory of kAll, private and of large pages, or of a file in memory.
class Memory {
 public:
  enum class Kind { kOrdinary, kFile };
  explicit Memory(Kind kind) {
    const int fd = kind == Kind::kFile ? ::memfd_create("bench", MFD_CLOEXEC) : -1;
    if (kind == Kind::kFile && ::ftruncate(fd, static_cast<off_t>(kAll.count())) != 0) std::abort();
    const int flags = kind == Kind::kFile ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    memory_ = ::mmap(nullptr, kAll.count(), PROT_READ | PROT_WRITE, flags, fd, 0);
    if (memory_ == MAP_FAILED) std::abort();
    if (kind == Kind::kOrdinary) (void)::madvise(memory_, kAll.count(), MADV_HUGEPAGE);
    if (fd >= 0) ::close(fd);
  }
  ~Memory() { ::munmap(memory_, kAll.count()); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  void* get() const { return memory_; }

 private:
  void* memory_;
};

std::unique_ptr<Memory> MovedTo(Memory::Kind kind, std::unique_ptr<Memory> from) {
  auto to = std::make_unique<Memory>(kind);
  std::memcpy(to->get(), from->get(), kAll.count());
  return to;
}

absl::Status Run(int rounds) {
  LGPU_ASSIGN_OR_RETURN(const Context context, Context::Create({.endpoint = "local:1x2GiB"}));
  std::vector<Tensor> tensors;
  const std::vector<float> values(kTensor.count() / sizeof(float), 1.5F);
  for (int i = 0; i < kTensors; ++i) {
    LGPU_ASSIGN_OR_RETURN(Tensor tensor, context.Constant<float>(values));
    tensors.push_back(std::move(tensor));
  }
  auto on_gpu = std::make_unique<Memory>(Memory::Kind::kFile);
  std::memset(on_gpu->get(), 7, kAll.count());
  Rate out, bare_out, back, bare_back;
  for (int i = 0; i < rounds; ++i) {
    absl::Status status;
    out.Note(TimeOf([&] { status = context.Suspend(); }));
    LGPU_RETURN_IF_ERROR(status);
    back.Note(TimeOf([&] { status = context.Resume(); }));
    LGPU_RETURN_IF_ERROR(status);
    std::unique_ptr<Memory> on_host;
    bare_out.Note(TimeOf([&] { on_host = MovedTo(Memory::Kind::kOrdinary, std::move(on_gpu)); }));
    bare_back.Note(TimeOf([&] { on_gpu = MovedTo(Memory::Kind::kFile, std::move(on_host)); }));
  }
  const auto print = [](const char* what, const Rate& rate, const Rate& bare) {
    std::printf("  %-22s %6.2f GiB/s   bare %6.2f GiB/s   %.2f of it (goal: at least %.1f)\n", what,
                rate.best, bare.best, rate.best / bare.best, kGoal);
  };
  std::printf("%s of tensors, best of %d rounds\n", FormatBytes(kAll).c_str(), rounds);
  print("to host memory", out, bare_out);
  print("back", back, bare_back);
  return absl::OkStatus();
}

}  // namespace
}  // namespace lgpu::bench

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 7;
  const absl::Status status = lgpu::bench::Run(std::max(rounds, 1));
  if (status.ok()) return 0;
  std::fprintf(stderr, "suspension_bench: %s\n", std::string(status.message()).c_str());
  return 1;
}
