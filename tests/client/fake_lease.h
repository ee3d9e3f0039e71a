#ifndef LGPU_TESTS_CLIENT_FAKE_LEASE_H_
#define LGPU_TESTS_CLIENT_FAKE_LEASE_H_

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "allocator/device/simulated/simulated_backend.h"
#include "client/session/lease.h"
#include "client/session/region.h"
#include "kernels/text.h"
#include "lgpu/refusal.h"
#include "lgpu/status.h"

namespace lgpu::testing {

/// A source of chunks that the test's own backend makes, up to a limit of its own.
class FakeSource final : public RegionSource {
 public:
  FakeSource(DeviceMemory& backend, int card, Bytes limit)
      : limit_(limit), region_(*Region::Reserve(backend, card, Bytes(2 << 20), limit)) {}
  ~FakeSource() override {
    for (const Region::Held& held : region_->TakeAll()) region_->backend().Release(held.memory).IgnoreError();
  }

  std::byte* base() const override { return region_->base(); }
  Bytes reserved() const override { return region_->reserved(); }
  Bytes granularity() const override { return region_->granularity(); }
  Bytes limit() const override { return limit_; }
  absl::StatusOr<std::vector<Chunk>> Grow(const GrowRequest& request) override {
    const std::lock_guard lock(mutex_);
    if (held_ + request.at_least > RoundUp(limit_, granularity())) {
      Refusal refusal;
      refusal.reason = RefusalReason::kLimit;
      refusal.asked = request.at_least;
      refusal.limit = limit_;
      return RefusalStatus(refusal);
    }
    std::vector<Chunk> chunks;
    for (Bytes got; got < request.at_least; got += granularity()) {
      LGPU_ASSIGN_OR_RETURN(const MemoryHandle memory,
                            region_->backend().Create(region_->device(), granularity()));
      chunks.push_back({ChunkId{next_++}, granularity()});
      LGPU_RETURN_IF_ERROR(region_->Add({chunks.back(), memory}));
      held_ += granularity();
    }
    return chunks;
  }
  absl::Status Map(std::span<const ChunkPlacement> placements) override { return region_->Map(placements); }
  absl::Status Unmap(std::span<const ChunkId> chunks) override { return region_->Unmap(chunks); }
  absl::Status Return(std::span<const ChunkId> chunks) override {
    LGPU_ASSIGN_OR_RETURN(const std::vector<Region::Held> taken, region_->Take(chunks));
    const std::lock_guard lock(mutex_);
    for (const Region::Held& held : taken) {
      held_ -= held.chunk.bytes;
      LGPU_RETURN_IF_ERROR(region_->backend().Release(held.memory));
    }
    return absl::OkStatus();
  }

 private:
  const Bytes limit_;
  const std::unique_ptr<Region> region_;
  std::mutex mutex_;
  Bytes held_;
  std::uint64_t next_ = 1;
};

/// The settings and records of a FakeLease, which a test may read after its Context is gone.
struct FakeLeaseLog {
  int closes = 0;
  absl::Status close_status;         // of the next Close
  std::vector<std::string> resizes;  // GPU:LIMIT:GUARANTEE

  struct Answer {
    TrimId id;
    bool pending = false;
  };
  std::mutex mutex;
  std::vector<TrimOrder> trims;  // to be taken
  std::vector<Answer> answers;
  std::vector<wire::Snapshot> questions;  // to be taken
  std::vector<absl::Status> sends;        // the results of the next attempts to send a page; then OK
  std::vector<wire::SnapshotPage> pages;  // that were sent
  std::vector<std::string> order;         // "trim", "page", "failed page"
};

struct FakeLeaseOptions {
  int cards = 1;
  int devices_per_card = 2;
  Bytes limit = Bytes(std::uint64_t{64} << 20);
  bool asynchronous = false;
};

/// A Lease over simulated cards of its own: all that is above client/session/lease.h, and nothing below.
class FakeLease final : public Lease {
 public:
  FakeLease(const FakeLeaseOptions& options, std::shared_ptr<FakeLeaseLog> log)
      : options_(options), log_(std::move(log)), page_(std::make_unique<ClientPage>()) {
    std::vector<PhysicalDevice> cards;
    for (int i = 0; i < options.cards; ++i) {
      cards.push_back(SimulatedDevice(i, Bytes(std::uint64_t{1} << 30), "fake"));
    }
    backend_ = MakeSimulatedBackend({.devices = cards, .asynchronous = options.asynchronous});
    for (int i = 0; i < options.cards * options.devices_per_card; ++i) {
      const int card = i / options.devices_per_card;
      devices_.push_back({.id = LogicalId{static_cast<std::uint64_t>(i) + 1},
                          .memory_limit = options.limit,
                          .card = cards[static_cast<std::size_t>(card)],
                          .lease_index = i,
                          .card_index = card,
                          .backend_device = card});
    }
  }

  const std::string& id() const override { return name_; }
  const std::string& name() const override { return name_; }
  const std::vector<LeasedDevice>& devices() const override { return devices_; }
  DeviceBackend& backend() override { return *backend_; }
  std::unique_ptr<RegionSource> TakeSource(int i) override {
    return std::make_unique<FakeSource>(*backend_, devices_.at(static_cast<std::size_t>(i)).backend_device,
                                        options_.limit);
  }
  void StartMaintenance(Maintenance::Task task) override { maintenance_.Start(std::move(task)); }
  void WakeMaintenance() override { maintenance_.Wake(); }
  void StopMaintenance() override { maintenance_.Stop(); }
  std::vector<TrimOrder> TakeTrims() override {
    const std::lock_guard lock(log_->mutex);
    return std::exchange(log_->trims, {});
  }
  void AnswerTrim(const TrimOrder& order, bool pending) override {
    const std::lock_guard lock(log_->mutex);
    log_->answers.push_back({order.id, pending});
    log_->order.push_back("trim");
  }
  std::vector<wire::Snapshot> TakeSnapshots() override {
    const std::lock_guard lock(log_->mutex);
    return std::exchange(log_->questions, {});
  }
  absl::Status AnswerSnapshot(const wire::SnapshotPage& page) override {
    const std::lock_guard lock(log_->mutex);
    absl::Status sent;
    if (!log_->sends.empty()) {
      sent = log_->sends.front();
      log_->sends.erase(log_->sends.begin());
    }
    log_->order.push_back(sent.ok() ? "page" : "failed page");
    if (sent.ok()) log_->pages.push_back(page);
    return sent;
  }
  ClientPage& page() override { return *page_; }
  absl::Status Resize(int i, Bytes limit, std::optional<Bytes> guarantee) override {
    log_->resizes.push_back(Cat(i, ":", FormatBytes(limit), ":", guarantee ? FormatBytes(*guarantee) : "-"));
    return absl::OkStatus();
  }
  absl::Status Close() override {
    ++log_->closes;
    return std::exchange(log_->close_status, absl::OkStatus());
  }
  absl::Status status() const override { return absl::OkStatus(); }

 private:
  const FakeLeaseOptions options_;
  const std::shared_ptr<FakeLeaseLog> log_;
  const std::string name_ = "fake";
  MaintenanceThread maintenance_;
  const std::unique_ptr<ClientPage> page_;
  std::unique_ptr<DeviceBackend> backend_;
  std::vector<LeasedDevice> devices_;
};

}  // namespace lgpu::testing

#endif  // LGPU_TESTS_CLIENT_FAKE_LEASE_H_
