#include <atomic>
#include <cstdint>
#include <utility>

#include "allocator/device/simulated/simulated_stream.h"
#include "allocator/device/stream_timer.h"

namespace lgpu {
namespace {

using Clock = std::chrono::steady_clock;

class SimulatedTimer final : public StreamTimer {
 public:
  explicit SimulatedTimer(std::shared_ptr<SimulatedStream> stream) : stream_(std::move(stream)) {
    Mark(&Marks::start);
  }
  absl::Status Stop() override {
    Mark(&Marks::end);
    return absl::OkStatus();
  }
  absl::StatusOr<std::optional<std::chrono::nanoseconds>> Elapsed() override {
    const std::int64_t end = marks_->end.load(std::memory_order_acquire);
    if (end == 0) return std::nullopt;
    return std::chrono::nanoseconds(end - marks_->start.load(std::memory_order_relaxed));
  }

 private:
  // Queued work may run after the timer is destroyed, so it shares these.
  struct Marks {
    std::atomic<std::int64_t> start{0};
    std::atomic<std::int64_t> end{0};
  };
  void Mark(std::atomic<std::int64_t> Marks::*which) {
    const auto mark = [marks = marks_, which] {
      const std::chrono::nanoseconds now = Clock::now().time_since_epoch();
      ((*marks).*which).store(now.count(), std::memory_order_release);
    };
    if (stream_ == nullptr) {
      mark();
    } else {
      stream_->Queue(mark);
    }
  }

  const std::shared_ptr<SimulatedStream> stream_;
  const std::shared_ptr<Marks> marks_ = std::make_shared<Marks>();
};

}  // namespace

std::unique_ptr<StreamTimer> StartSimulatedTimer(std::shared_ptr<SimulatedStream> stream) {
  return std::make_unique<SimulatedTimer>(std::move(stream));
}

}  // namespace lgpu
