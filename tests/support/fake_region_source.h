#ifndef LGPU_TESTS_SUPPORT_FAKE_REGION_SOURCE_H_
#define LGPU_TESTS_SUPPORT_FAKE_REGION_SOURCE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "allocator/device/device_memory.h"
#include "base/mutex.h"
#include "lgpu/region_source.h"
#include "tests/support/failing_backend.h"

namespace lgpu {

/// A FakeUpstream is a test's view of a FakeRegionSource that a Pool owns, and sets its faults. Thread-safe.
struct FakeUpstream {
  std::atomic<std::uint64_t> limit{0};
  /// The card gives no more than this, also below the limit.
  std::atomic<std::uint64_t> card{~std::uint64_t{0}};
  std::atomic<std::uint64_t> granted{0};  // bytes that are granted and not returned
  std::atomic<std::uint64_t> mapped{0};   // bytes
  std::atomic<std::uint64_t> waits{0};    // refusals that a source with neighbours would have waited with
  FaultPlan faults;                       // every call of the source counts
  std::function<void()> on_its_way{};     // called when a Grow ahead of demand is about to give its chunks
  std::function<void()> on_limit{};       // called when the pool asks for the limit
};

/// A RegionSource of its own process without any daemon: chunks are created on a backend, up to a limit.
class FakeRegionSource final : public RegionSource {
 public:
  struct Options {
    Bytes limit{};
    Bytes reserved{};                             // zero: eight times the limit
    Bytes chunk = Bytes(std::uint64_t{2} << 20);  // a Grow answers in chunks of this, and one smaller
    bool no_smaller = false;                      // except that it has no smaller one
    std::shared_ptr<FakeUpstream> upstream{};     // null: one of its own
  };
  /// `backend` outlives the source.
  static absl::StatusOr<std::unique_ptr<FakeRegionSource>> Make(DeviceMemory& backend,
                                                                const Options& options);
  ~FakeRegionSource() override;

  std::byte* base() const override { return base_; }
  Bytes reserved() const override { return options_.reserved; }
  Bytes granularity() const override { return backend_.devices()[0].granularity; }
  Bytes limit() const override {
    if (upstream_->on_limit) upstream_->on_limit();
    return Bytes(upstream_->limit);
  }
  absl::StatusOr<std::vector<Chunk>> Grow(const GrowRequest& request) override;
  absl::Status Map(std::span<const ChunkPlacement> placements) override;
  absl::Status Unmap(std::span<const ChunkId> chunks) override;
  absl::Status Return(std::span<const ChunkId> chunks) override;

 private:
  struct Held {
    MemoryHandle memory;
    Bytes bytes;
    std::byte* address = nullptr;  // null: not mapped
  };
  FakeRegionSource(DeviceMemory& backend, const Options& options, std::byte* base);
  absl::StatusOr<Held> Find(ChunkId id, bool mapped);
  void SetAddress(ChunkId id, std::byte* address);
  absl::Status SetAccessByRuns(std::span<const ChunkPlacement> placements);

  DeviceMemory& backend_;
  const Options options_;
  const std::shared_ptr<FakeUpstream> upstream_;
  std::byte* const base_;
  Mutex mutex_;
  std::uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::unordered_map<ChunkId, Held> chunks_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lgpu

#endif  // LGPU_TESTS_SUPPORT_FAKE_REGION_SOURCE_H_
