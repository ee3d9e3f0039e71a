#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/refusal_fields.h"
#include "client/runtime/c_handles.h"
#include "lgpu/refusal.h"

namespace {

std::optional<std::uint64_t> Number(lgpu::Bytes amount) { return amount.count(); }
std::optional<std::uint64_t> Number(std::uint64_t number) { return number; }
std::optional<std::uint64_t> Number(std::chrono::milliseconds time) {
  return static_cast<std::uint64_t>(time.count());
}
template <typename T>
std::optional<std::uint64_t> Number(const std::optional<T>& known) {
  return known ? Number(*known) : std::nullopt;
}
template <typename T>
std::optional<std::uint64_t> Number(const T&) {
  return std::nullopt;  // not a number
}

const char* Text(const std::string& text) { return text.c_str(); }
template <typename T>
const char* Text(const T&) {
  return nullptr;  // not a text
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
#define LGPU_FIND(member, field) \
  if (asked == #field) return Text(refusal->refusal.member);
  LGPU_REFUSAL_FIELDS(LGPU_FIND)
#undef LGPU_FIND
  return nullptr;
}
int lgpu_refusal_number(const lgpu_refusal* refusal, const char* name, uint64_t* value) {
  if (refusal == nullptr || name == nullptr) return 0;
  const std::string_view asked = name;
  std::optional<std::uint64_t> number;
#define LGPU_FIND(member, field) \
  if (asked == #field) number = Number(refusal->refusal.member);
  LGPU_REFUSAL_FIELDS(LGPU_FIND)
#undef LGPU_FIND
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
