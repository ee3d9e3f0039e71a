#include "allocator/broker/spare_chunks.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/broker/chunk_sizes.h"
#include "base/check.h"

namespace lgpu {

std::optional<SpareChunks::Made> SpareChunks::Make(Order& order) {
  int backend_device = 0;
  {
    BrokerLock lock(core_);
    const BrokerCard& card = core_.tables.cards.at(core_.tables.CardOf(order.device));
    if (order.sizes.empty()) order.sizes = ChunkSizesForPreallocation(card.device, order.bytes);
    backend_device = card.backend_device;
  }
  MadeChunks more =
      CreateChunks(core_.backend, backend_device, std::span(order.sizes).subspan(order.made.chunks.size()));
  std::move(more.chunks.begin(), more.chunks.end(), std::back_inserter(order.made.chunks));
  order.made.status = std::move(more.status);
  BrokerLock lock(core_);
  if (absl::IsResourceExhausted(order.made.status) && core_.now() < order.deadline &&
      !core_.waiting.stopping && !core_.tables.Leaving().is_zero()) {
    return std::nullopt;
  }
  const CardId card = core_.tables.CardOf(order.device);
  Made made = Register(order, order.made);
  core_.tables.ForgetIfEmpty(order.device);
  core_.scheduler.Serve(card);
  return made;
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
  core_.chunks.Unbook(order.device, order.bytes - sum);
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
  Bytes booked;
  {
    BrokerLock lock(core_);
    const auto device = core_.tables.devices.find(logical);
    if (device == core_.tables.devices.end() || !device->second.spec.preallocate || device->second.removed ||
        core_.now() < device->second.last_charge + BrokerTables::kBallastRest) {
      return {};
    }
    booked = core_.chunks.BookLack(logical);
  }
  if (booked.is_zero()) return {};
  Order order{.device = logical, .bytes = booked, .deadline = core_.now()};
  return *Make(order);  // its time is over: it is not made again later
}

}  // namespace lgpu
