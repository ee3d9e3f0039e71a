#include "daemon/server/charged_kinds.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <string>
#include <string_view>

#include "lgpu/v1/session.pb.h"

namespace lgpu::daemon {
namespace {

std::string KindName(int kind) {
  if (!v1::ChargeKind_IsValid(kind)) return "other";
  std::string name = v1::ChargeKind_Name(kind);
  name.erase(0, std::string_view("CHARGE_KIND_").size());
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return name;
}

}  // namespace

std::vector<v1::ChargedKind> ChargedByKind(const std::vector<Broker::Charged>& charges,
                                           const SessionState& session) {
  std::map<std::string, Bytes> by_kind;
  for (const Broker::Charged& charge : charges) {
    Bytes untold = charge.used;
    if (session.has_charge_words() && charge.index < SharedCharges::kMaxCards) {
      const CardCharges& words = session.client_page()->charges.cards[charge.index];
      for (std::size_t i = 0; i < CardCharges::kKinds; ++i) {
        const Bytes part = std::min(Bytes(words.by_kind[i].load(std::memory_order_relaxed)), untold);
        if (part.is_zero()) continue;
        by_kind[KindName(static_cast<int>(i) + 1)] += part;
        untold -= part;
      }
    }
    if (!untold.is_zero()) by_kind["other"] += untold;
  }
  std::vector<v1::ChargedKind> kinds;
  for (const auto& [kind, bytes] : by_kind) {
    v1::ChargedKind& entry = kinds.emplace_back();
    entry.set_kind(kind);
    entry.set_bytes(bytes.count());
  }
  return kinds;
}

}  // namespace lgpu::daemon
