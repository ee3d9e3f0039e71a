#include <optional>
#include <string_view>

#include "client/runtime/c_handles.h"
#include "lgpu/refusal.h"

namespace {

std::optional<std::uint64_t> Count(const std::optional<lgpu::Bytes>& bytes) {
  return bytes ? std::optional(bytes->count()) : std::nullopt;
}

std::optional<std::uint64_t> NumberOf(const lgpu::Refusal& refusal, std::string_view name) {
  if (name == "asked_bytes") return refusal.asked.count();
  if (name == "limit_bytes") return Count(refusal.limit);
  if (name == "used_bytes") return Count(refusal.used);
  if (name == "held_bytes") return Count(refusal.held);
  if (name == "peak_used_bytes") return Count(refusal.peak_used);
  if (name == "live_blocks") return refusal.live_blocks;
  if (name == "largest_free_block_bytes") return Count(refusal.largest_free_block);
  if (name == "card_total_bytes") return Count(refusal.card_total);
  if (name == "card_free_bytes") return Count(refusal.card_free);
  if (name == "coming_back_bytes") return Count(refusal.coming_back);
  if (name == "waited_ms" && refusal.waited) return static_cast<std::uint64_t>(refusal.waited->count());
  return std::nullopt;
}

}  // namespace

const lgpu_refusal* lgpu_status_refusal(const lgpu_status* status) {
  if (status == nullptr) return nullptr;
  if (!status->refusal) {
    const std::optional<lgpu::Refusal> refusal = lgpu::GetRefusal(status->status);
    if (!refusal) return nullptr;
    status->refusal = lgpu_refusal{*refusal};
  }
  return &*status->refusal;
}
const char* lgpu_refusal_reason(const lgpu_refusal* refusal) {
  // The names are literals.
  return refusal == nullptr ? "" : lgpu::RefusalReasonName(refusal->refusal.reason).data();
}
const char* lgpu_refusal_text(const lgpu_refusal* refusal, const char* name) {
  if (refusal == nullptr || name == nullptr) return nullptr;
  const std::string_view asked = name;
  if (asked == "device") return refusal->refusal.device.c_str();
  if (asked == "lease") return refusal->refusal.lease.c_str();
  if (asked == "what") return refusal->refusal.what.c_str();
  if (asked == "card") return refusal->refusal.card.c_str();
  return nullptr;
}
int lgpu_refusal_number(const lgpu_refusal* refusal, const char* name, uint64_t* value) {
  if (refusal == nullptr || name == nullptr) return 0;
  const std::optional<std::uint64_t> number = NumberOf(refusal->refusal, name);
  if (number && value != nullptr) *value = *number;
  return number ? 1 : 0;
}
size_t lgpu_refusal_holder_count(const lgpu_refusal* refusal) {
  return refusal == nullptr ? 0 : refusal->refusal.holders.size();
}
int lgpu_refusal_holder_at(const lgpu_refusal* refusal, size_t index, lgpu_refusal_holder* holder) {
  if (holder == nullptr || index >= lgpu_refusal_holder_count(refusal)) return 0;
  const lgpu::Refusal::Holder& found = refusal->refusal.holders[index];
  *holder = {.lease = found.lease.c_str(),
             .owner = found.owner.c_str(),
             .pid = found.pid,
             .device = found.device.c_str(),
             .held = found.held.count(),
             .guarantee = found.guarantee.count()};
  return 1;
}
size_t lgpu_refusal_owner_count(const lgpu_refusal* refusal) {
  return refusal == nullptr ? 0 : refusal->refusal.owners.size();
}
int lgpu_refusal_owner_at(const lgpu_refusal* refusal, size_t index, lgpu_refusal_owner* owner) {
  if (owner == nullptr || index >= lgpu_refusal_owner_count(refusal)) return 0;
  const lgpu::Refusal::Owner& found = refusal->refusal.owners[index];
  *owner = {.op = found.op.c_str(), .bytes = found.bytes.count(), .blocks = found.blocks};
  return 1;
}
size_t lgpu_refusal_advice_count(const lgpu_refusal* refusal) {
  return refusal == nullptr ? 0 : refusal->refusal.advice.size();
}
const char* lgpu_refusal_advice_at(const lgpu_refusal* refusal, size_t index) {
  return index >= lgpu_refusal_advice_count(refusal) ? nullptr : refusal->refusal.advice[index].c_str();
}
