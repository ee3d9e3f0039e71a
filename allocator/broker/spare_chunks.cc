#include "allocator/broker/spare_chunks.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/broker/chunk_sizes.h"
#include "base/check.h"

namespace lgpu {

SpareChunks::Made SpareChunks::Make(Order order) {
  int backend_device = 0;
  {
    BrokerLock lock(core_);
    const BrokerCard& card = core_.tables.cards.at(core_.tables.CardOf(order.device));
    if (order.sizes.empty()) order.sizes = ChunkSizesForPreallocation(card.device, order.bytes);
    backend_device = card.backend_device;
  }
  const MadeChunks created = CreateInTime(backend_device, order.sizes, order.deadline);
  BrokerLock lock(core_);
  const CardId card = core_.tables.CardOf(order.device);
  Made made = Register(order, created);
  core_.tables.ForgetIfEmpty(order.device);
  core_.scheduler.Serve(card);
  return made;
}

MadeChunks SpareChunks::CreateInTime(int backend_device, const std::vector<Bytes>& sizes,
                                     Broker::TimePoint deadline) {
  MadeChunks created = CreateChunks(core_.backend, backend_device, sizes);
  while (absl::IsResourceExhausted(created.status) && core_.now() < deadline) {
    {
      BrokerLock lock(core_);
      if (core_.tables.stopping || core_.tables.Leaving().is_zero()) break;
      core_.tables.freed.WaitUntil(core_.mutex,
                                   std::min(deadline, core_.now() + BrokerTables::kBackendRetry));
    }
    MadeChunks rest =
        CreateChunks(core_.backend, backend_device, std::span(sizes).subspan(created.chunks.size()));
    std::move(rest.chunks.begin(), rest.chunks.end(), std::back_inserter(created.chunks));
    created.status = std::move(rest.status);
  }
  return created;
}

SpareChunks::Made SpareChunks::Register(const Order& order, const MadeChunks& created) {
  std::vector<ChunkId> chunks;
  Bytes sum;
  for (const MadeChunk& chunk : created.chunks) {
    chunks.push_back(core_.chunks.Register(order.device, SessionId(), chunk));
    sum += chunk.bytes;
  }
  if (created.status.ok()) {
    const DeviceEntry& device = core_.tables.devices.at(order.device);
    absl::Status status;
    if (device.removed) {
      // While they were made; RemoveDevice did not find them.
      status = absl::FailedPreconditionError(
          absl::StrCat("lease ", device.spec.lease_name, " has ended; create another one"));
    }
    return {std::move(status), core_.chunks.TakeExcessSpare(order.device)};  // the limit may be lower now
  }
  core_.chunks.RefundCharge(order.device, order.bytes - sum);
  absl::Status status = created.status;
  if (absl::IsResourceExhausted(status)) {
    const RefusalCause cause = RefusalCause::OfBackend(status, order.bytes);
    status = RefusalStatus(core_.refusals.OfDevice(order.device, cause));
  }
  // These and no others: spare chunks from before stay.
  core_.chunks.StartLeaving(chunks);
  if (order.size_before) {
    // Before waiting requests are looked at: none is served from a limit that does not stay. It cannot fail:
    // the smaller size takes nothing of the card.
    LGPU_CHECK(core_.tables.ledger.Resize(order.device, *order.size_before).ok());
    const std::vector<ChunkId> excess = core_.chunks.TakeExcessSpare(order.device);
    chunks.insert(chunks.end(), excess.begin(), excess.end());
  }
  return {std::move(status), std::move(chunks)};
}

SpareChunks::Made SpareChunks::MakeMissing(LogicalId logical) {
  Bytes charged;
  {
    BrokerLock lock(core_);
    const auto device = core_.tables.devices.find(logical);
    if (device == core_.tables.devices.end() || !device->second.spec.preallocate || device->second.removed ||
        core_.now() < device->second.last_charge + BrokerTables::kBallastRest) {
      return {};
    }
    charged = core_.chunks.ChargeLack(logical);
  }
  return charged.is_zero() ? Made() : Make({.device = logical, .bytes = charged, .deadline = core_.now()});
}

}  // namespace lgpu
