#include "client/session/local_lease.h"

#include <algorithm>

#include "client/session/fork_guard.h"
#include "client/session/local_region_source.h"
#include "lgpu/status.h"

namespace lgpu {

LocalLease::LocalLease(std::unique_ptr<DeviceBackend> backend, std::string name)
    : name_(std::move(name)), backend_(std::move(backend)), page_(std::make_unique<ClientPage>()) {
  page_->magic.store(ClientPage::kMagic, std::memory_order_relaxed);
}

absl::StatusOr<std::unique_ptr<Lease>> LocalLease::Open(std::unique_ptr<DeviceBackend> backend,
                                                        std::string name, const std::vector<Spec>& specs) {
  std::unique_ptr<LocalLease> lease(new LocalLease(std::move(backend), std::move(name)));
  LGPU_ASSIGN_OR_RETURN(lease->broker_, LocalBroker::Create(*lease->backend_, &lease->maintenance_));
  for (const Spec& spec : specs) LGPU_RETURN_IF_ERROR(lease->AddDevice(spec));
  return lease;
}

// The first card that takes it; where none does, the error of the first says why.
absl::Status LocalLease::AddDevice(const Spec& spec) {
  const std::vector<PhysicalDevice>& cards = backend_->devices();
  absl::Status first_error;
  for (const std::string& uuid : spec.cards) {
    const auto card =
        std::find_if(cards.begin(), cards.end(), [&](const PhysicalDevice& c) { return c.uuid == uuid; });
    LocalBroker::DeviceSpec wanted;
    wanted.card = static_cast<int>(card - cards.begin());
    wanted.limit = spec.limit.is_zero() ? card->total : spec.limit;
    wanted.guarantee = spec.guarantee;
    wanted.preallocate = spec.preallocate;
    wanted.index = static_cast<int>(devices_.size());
    absl::StatusOr<LogicalId> device = broker_->AddDevice(wanted);
    if (!device.ok()) {
      first_error.Update(device.status());
      continue;
    }
    LGPU_ASSIGN_OR_RETURN(std::unique_ptr<RegionSource> source,
                          LocalRegionSource::Create(*broker_, *device, *backend_, wanted.card));
    sources_.push_back(std::move(source));
    logical_ids_.push_back(*device);
    devices_.push_back({.memory_limit = wanted.limit,
                        .guarantee = spec.preallocate ? wanted.limit : spec.guarantee,
                        .preallocated = spec.preallocate,
                        .card = *card,
                        .card_index = wanted.card,
                        .backend_device = wanted.card});
    return absl::OkStatus();
  }
  return first_error;
}

std::vector<Lease::TrimOrder> LocalLease::TakeTrims() {
  std::vector<TrimOrder> orders;
  for (const LocalBroker::TrimOrder& order : broker_->TakeTrims()) {
    orders.push_back({.id = order.id.value, .device = order.index, .bytes = order.bytes});
  }
  return orders;
}

absl::Status LocalLease::Resize(int i, Bytes limit, std::optional<Bytes> guarantee) {
  if (epoch_.IsForked()) return ForkedError();
  const auto at = static_cast<std::size_t>(i);
  const Bytes total = devices_.at(at).card.total;  // there is no reserve here
  return broker_->Resize(logical_ids_[at], limit == kWholeCard ? total : limit, guarantee);
}

absl::Status LocalLease::Close() {
  if (epoch_.IsForked()) return ForkedError();
  sources_.clear();
  {
    MutexLock lock(mutex_);
    if (closed_) return absl::OkStatus();
    closed_ = true;
  }
  return broker_->CheckAllReturned();
}

absl::Status LocalLease::status() const {
  if (epoch_.IsForked()) return ForkedError();
  MutexLock lock(mutex_);
  return closed_ ? absl::FailedPreconditionError("the Context is closed; open a new one") : absl::OkStatus();
}

}  // namespace lgpu
