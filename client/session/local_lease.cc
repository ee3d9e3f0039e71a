#include "client/session/local_lease.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "allocator/broker/session_trims.h"
#include "allocator/broker/thread_waker.h"
#include "base/check.h"
#include "client/session/fork_guard.h"
#include "client/session/local_region_source.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

using Clock = std::chrono::steady_clock;

constexpr LeaseKey kTheLease{1};
// How often the backend is asked again about memory that it did not confirm.
constexpr std::chrono::milliseconds kUnconfirmedRetry{20};
// How long a resize waits for idle memory of the other devices.
constexpr std::chrono::seconds kResizePatience{2};

class MaintenanceWaker final : public Waker {
 public:
  explicit MaintenanceWaker(MaintenanceThread& maintenance) : maintenance_(maintenance) {}
  void Wake() const override { maintenance_.Wake(); }

 private:
  MaintenanceThread& maintenance_;
};

absl::Status ClosedError() { return absl::FailedPreconditionError("the Context is closed; open a new one"); }

}  // namespace

LocalLease::LocalLease(std::unique_ptr<DeviceBackend> backend, std::string name)
    : name_(std::move(name)), backend_(std::move(backend)), page_(std::make_unique<ClientPage>()) {
  page_->magic.store(ClientPage::kMagic, std::memory_order_relaxed);
}

absl::StatusOr<std::unique_ptr<Lease>> LocalLease::Open(std::unique_ptr<DeviceBackend> backend,
                                                        std::string name,
                                                        const std::vector<LogicalDeviceSpec>& specs) {
  std::unique_ptr<LocalLease> lease(new LocalLease(std::move(backend), std::move(name)));
  Broker::Options options{.cards = {},
                          .unconfirmed_waker = std::make_shared<MaintenanceWaker>(lease->maintenance_),
                          .tick_waker = std::make_shared<MaintenanceWaker>(lease->maintenance_),
                          .leaves_process = false};
  for (const PhysicalDevice& device : lease->backend_->devices()) {
    const int index = static_cast<int>(options.cards.size());
    options.cards.push_back({.index = index, .backend_device = index, .device = device});
  }
  LGPU_ASSIGN_OR_RETURN(lease->broker_, Broker::Create(*lease->backend_, lease->log_, options));
  lease->StartTicking();
  const std::vector<Broker::CardInfo> cards = lease->broker_->Cards();
  std::map<CardId, Bytes> planned;
  for (const LogicalDeviceSpec& spec : specs) LGPU_RETURN_IF_ERROR(lease->AddDevice(spec, cards, planned));
  return lease;
}

// The card with the most room that takes it; where none does, the error of the first says why.
absl::Status LocalLease::AddDevice(const LogicalDeviceSpec& spec, const std::vector<Broker::CardInfo>& cards,
                                   std::map<CardId, Bytes>& planned) {
  std::vector<const Broker::CardInfo*> candidates;
  for (const std::string& uuid : spec.cards) {
    const auto card = std::find_if(cards.begin(), cards.end(), [&](const Broker::CardInfo& info) {
      return info.card.device.uuid == uuid;
    });
    LGPU_CHECK(card != cards.end());
    candidates.push_back(&*card);
  }
  absl::Status first_error;
  for (const Broker::CardInfo* card : Broker::ByRoom(std::move(candidates), planned)) {
    const absl::Status added = AddDeviceOn(*card, spec);
    if (added.ok()) {
      Bytes& there = planned[card->id];
      there = SaturatingAdd(there, devices_.back().memory_limit);
      return added;
    }
    first_error.Update(added);
  }
  return first_error;
}

absl::Status LocalLease::AddDeviceOn(const Broker::CardInfo& card, const LogicalDeviceSpec& spec) {
  const int index = static_cast<int>(devices_.size());
  const Bytes limit = spec.limit.value_or(Broker::WholeCard(card));
  LGPU_ASSIGN_OR_RETURN(const LogicalId device,
                        broker_->AddDevice({.card = card.id,
                                            .limit = limit,
                                            .guarantee = spec.guarantee,
                                            .preallocate = spec.preallocate,
                                            .lease = kTheLease,
                                            .device_name = "/device:GPU:" + std::to_string(index),
                                            .owner = std::to_string(::getuid())}));
  auto entry = std::make_unique<Entry>();
  entry->session = SessionId{devices_.size() + 1};
  entry->limit = limit.count();
  absl::StatusOr<std::unique_ptr<LocalRegionSource>> source =
      LocalRegionSource::Create(*broker_, *backend_, entry->limit,
                                {.device = device,
                                 .lease = kTheLease,
                                 .session = entry->session,
                                 .backend_device = card.card.backend_device,
                                 .maintenance = &maintenance_});
  if (!source.ok()) {
    broker_->RemoveDevice(device);
    return source.status();
  }
  entry->source = *std::move(source);
  entries_.push_back(std::move(entry));
  devices_.push_back({.id = device,
                      .memory_limit = limit,
                      .guarantee = spec.preallocate ? limit : spec.guarantee,
                      .preallocated = spec.preallocate,
                      .card = card.card.device,
                      .lease_index = index,
                      .card_index = card.card.index,
                      .backend_device = card.card.backend_device});
  return absl::OkStatus();
}

void LocalLease::StartMaintenance(Maintenance::Task task) {
  maintenance_.Start([this, task = std::move(task)](Maintenance::TimePoint now) {
    const bool confirmed = broker_->RetryUnconfirmed();
    std::optional<Maintenance::TimePoint> next = task(now);
    if (!confirmed) next = std::min(next.value_or(Maintenance::TimePoint::max()), now + kUnconfirmedRetry);
    // Last: what the task did may have answered a request.
    const std::optional<Maintenance::TimePoint> tick = broker_->Tick();
    if (tick) next = std::min(next.value_or(Maintenance::TimePoint::max()), *tick);
    return next;
  });
}

void LocalLease::StopMaintenance() {
  maintenance_.Stop();
  StartTicking();  // requests of other threads may wait
}

void LocalLease::StartTicking() {
  maintenance_.Start([this](Maintenance::TimePoint /*now*/) { return broker_->Tick(); });
}

std::vector<TrimOrder> LocalLease::TakeTrims() {
  std::vector<TrimOrder> orders;
  for (const std::unique_ptr<Entry>& entry : entries_) {
    const std::vector<TrimOrder> more = broker_->trims().TakeOrders(entry->session);
    orders.insert(orders.end(), more.begin(), more.end());
  }
  return orders;
}

void LocalLease::AnswerTrim(const TrimOrder& order, bool pending) {
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    // The broker forgets its orders to a session that ends.
    if (devices_[i].id == order.device) {
      broker_->trims().Answer(entries_[i]->session, order.id, pending).IgnoreError();
    }
  }
}

absl::Status LocalLease::Resize(int i, Bytes limit, std::optional<Bytes> guarantee) {
  if (epoch_.IsForked()) return ForkedError();
  {
    MutexLock lock(mutex_);
    while (resizing_) resized_.Wait(mutex_);
    if (closed_) return ClosedError();
    resizing_ = true;
  }
  const absl::Status status = ResizeNow(static_cast<std::size_t>(i), limit, guarantee);
  MutexLock lock(mutex_);
  resizing_ = false;
  resized_.NotifyAll();
  return status;
}

absl::Status LocalLease::ResizeNow(std::size_t i, Bytes limit, std::optional<Bytes> guarantee) {
  Entry& entry = *entries_.at(i);
  const LogicalId device = devices_[i].id;
  const Broker::DeviceInfo now = *broker_->Find(device);
  if (limit == kWholeCard) {
    const Bytes granularity = devices_[i].card.granularity;
    limit = RoundDown(devices_[i].card.total, granularity);  // there is no reserve here
    // The guarantee of a preallocated device cannot take another device's memory.
    if (devices_[i].preallocated) limit = RoundDown(std::min(limit, now.limit + now.card_free), granularity);
  }
  LGPU_RETURN_IF_ERROR(ResizeDeviceInTime(*broker_, device, limit,
                                          guarantee.value_or(std::min(now.guarantee, limit)),
                                          Clock::now() + kResizePatience));
  entry.limit.store(limit.count(), std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::Status LocalLease::Close() {
  if (epoch_.IsForked()) return ForkedError();
  {
    MutexLock lock(mutex_);
    while (resizing_) resized_.Wait(mutex_);
    if (closed_) return absl::OkStatus();
    closed_ = true;
  }
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    entries_[i]->source.reset();
    broker_->RemoveDevice(devices_[i].id);
  }
  broker_->RetryUnconfirmed();
  LGPU_RETURN_IF_ERROR(broker_->CheckInvariants());
  for (const Broker::CardInfo& card : broker_->Cards()) {
    if (!card.view.held.is_zero()) {
      return absl::InternalError(FormatBytes(card.view.held) + " are still held");
    }
  }
  return absl::OkStatus();
}

absl::Status LocalLease::status() const {
  if (epoch_.IsForked()) return ForkedError();
  MutexLock lock(mutex_);
  return closed_ ? ClosedError() : absl::OkStatus();
}

}  // namespace lgpu
