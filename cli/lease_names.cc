#include "cli/lease_names.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/output.h"

namespace lgpu::cli {

absl::StatusOr<const v1::LeaseStats*> FindLease(const v1::StatsSnapshot& snapshot, const std::string& text,
                                                std::uint32_t uid) {
  std::vector<const v1::LeaseStats*> named;
  const v1::LeaseStats* managed = nullptr;
  const v1::LeaseStats* own = nullptr;
  for (const v1::LeaseStats& lease : snapshot.leases()) {
    if (lease.id() == text) return &lease;
    const bool with_owner = absl::StrCat(lease.owner(), "/", lease.name()) == text ||
                            absl::StrCat(lease.owner_uid(), "/", lease.name()) == text;
    if (lease.name() != text && !with_owner) continue;
    if (lease.has_management()) managed = &lease;
    if (own == nullptr && lease.name() == text && lease.owner_uid() == uid) own = &lease;
    named.push_back(&lease);
  }
  if (managed != nullptr) return managed;
  if (own != nullptr) return own;
  if (named.empty()) return nullptr;
  if (named.size() == 1) return named.front();
  const auto full_name = [](std::string* out, const v1::LeaseStats* lease) {
    absl::StrAppend(out, FormatOwner(lease->owner(), lease->owner_uid()), "/", Printable(lease->name()));
  };
  return absl::InvalidArgumentError(absl::StrCat(named.size(), " users have a lease named ", Printable(text),
                                                 "\ntry: one of ", absl::StrJoin(named, ", ", full_name)));
}

}  // namespace lgpu::cli
