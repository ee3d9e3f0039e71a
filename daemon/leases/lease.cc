#include "daemon/leases/lease.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lgpu/status.h"
#include "proto/wire/pages.h"

namespace lgpu::daemon {
namespace {

constexpr std::array<const char*, 24> kAdjectives = {"agile",  "amber", "bold",  "brave",  "bright", "calm",
                                                     "clever", "eager", "fair",  "gentle", "happy",  "jolly",
                                                     "keen",   "kind",  "light", "lucky",  "merry",  "noble",
                                                     "proud",  "quick", "quiet", "sunny",  "swift",  "wise"};
constexpr std::array<const char*, 24> kAnimals = {"badger", "beaver", "bison", "crane",  "deer",  "eagle",
                                                  "falcon", "finch",  "fox",   "gecko",  "hare",  "heron",
                                                  "ibis",   "koala",  "lynx",  "marten", "moose", "otter",
                                                  "owl",    "panda",  "raven", "seal",   "stork", "tapir"};
constexpr std::size_t kMaxNameBytes = 63;
constexpr int kMaxLabelBytes = 63;

std::string ListCards(const std::vector<Broker::CardInfo>& cards) {
  return absl::StrJoin(cards, ", ", [](std::string* out, const Broker::CardInfo& info) {
    absl::StrAppend(out, "GPU ", info.card.index, " ", info.card.device.uuid);
  });
}

absl::StatusOr<const Broker::CardInfo*> FindNamed(const std::string& uuid,
                                                  const std::vector<Broker::CardInfo>& cards) {
  const Broker::CardInfo* found = nullptr;
  for (const Broker::CardInfo& info : cards) {
    if (info.card.device.uuid == uuid) return &info;
    if (absl::StartsWith(info.card.device.uuid, uuid)) {
      if (found != nullptr) {
        return absl::InvalidArgumentError(
            absl::StrCat("\"", uuid, "\" means more than one GPU; write more of it: ", ListCards(cards)));
      }
      found = &info;
    }
  }
  if (found == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("no GPU \"", uuid, "\" is served here; there are: ", ListCards(cards)));
  }
  return found;
}

// The candidate with most room, less what this request has put on it already. Of candidates with the same
// room the caller's first one: CUDA_VISIBLE_DEVICES=3,1 prefers GPU 3.
absl::StatusOr<const Broker::CardInfo*> FindRoomiest(const v1::LogicalDeviceSpec& spec,
                                                     const std::vector<Broker::CardInfo>& cards,
                                                     const std::map<CardId, Bytes>& planned) {
  std::vector<const Broker::CardInfo*> candidates;
  if (spec.candidate_uuids().empty()) {
    for (const Broker::CardInfo& info : cards) candidates.push_back(&info);
  }
  for (const std::string& uuid : spec.candidate_uuids()) {
    const auto found = std::find_if(cards.begin(), cards.end(), [&uuid](const Broker::CardInfo& info) {
      return info.card.device.uuid == uuid;
    });
    if (found != cards.end()) candidates.push_back(&*found);
  }
  if (candidates.empty()) {
    return absl::NotFoundError(absl::StrCat("none of the GPUs that the program sees (",
                                            absl::StrJoin(spec.candidate_uuids(), ", "),
                                            ") is served here; there are: ", ListCards(cards)));
  }
  return Broker::ByRoom(std::move(candidates), planned).front();
}

}  // namespace

absl::Status CheckLabel(const std::string& label) {
  const bool printable = std::all_of(
      label.begin(), label.end(), [](char c) { return absl::ascii_isprint(static_cast<unsigned char>(c)); });
  if (label.size() > kMaxLabelBytes || !printable) {
    return absl::InvalidArgumentError(absl::StrCat("a device's name is at most ", kMaxLabelBytes,
                                                   " printable characters; this one has ", label.size(),
                                                   " bytes"));
  }
  if (absl::StartsWith(label, "=")) {
    return absl::InvalidArgumentError(
        absl::StrCat("a device cannot be named ", label,
                     ": programs that read tables take it for a formula; leave the '=' out"));
  }
  return absl::OkStatus();
}

absl::Status WasRemoved(const std::string& lease_name) {
  return absl::FailedPreconditionError(absl::StrCat("lease ", lease_name, " was removed"));
}

Holdings HoldingsOf(const std::vector<PlannedDevice>& plan) {
  Holdings sum{.memory_limit = Bytes(), .guarantee = Bytes(), .leases = 1};
  for (const PlannedDevice& device : plan) {
    const Bytes chunk = device.card.device.granularity;
    sum.memory_limit = SaturatingAdd(sum.memory_limit, RoundUp(device.limit, chunk));
    sum.guarantee = SaturatingAdd(sum.guarantee, RoundUp(device.guarantee, chunk));
  }
  return sum;
}

absl::StatusOr<std::vector<PlannedDevice>> PlanDevices(const v1::CreateLeaseRequest& request,
                                                       const std::vector<Broker::CardInfo>& cards) {
  if (request.devices().empty() || request.devices_size() > StatsPage::kMaxDevices) {
    return absl::InvalidArgumentError(absl::StrCat("a lease has 1 to ", StatsPage::kMaxDevices,
                                                   " logical devices, not ", request.devices_size()));
  }
  std::vector<PlannedDevice> plan;
  std::map<CardId, Bytes> planned;
  for (const v1::LogicalDeviceSpec& spec : request.devices()) {
    LGPU_RETURN_IF_ERROR(CheckLabel(spec.name()));
    LGPU_ASSIGN_OR_RETURN(const Broker::CardInfo* const card, spec.card_uuid().empty()
                                                                  ? FindRoomiest(spec, cards, planned)
                                                                  : FindNamed(spec.card_uuid(), cards));
    PlannedDevice device;
    device.card_id = card->id;
    device.card = card->card;
    device.preallocate = spec.mode() == v1::LogicalDeviceSpec::MODE_PREALLOCATE;
    device.name = spec.name();
    const Bytes most = Broker::WholeCard(*card);
    device.whole_card = spec.memory_limit_bytes() == 0;
    device.limit = device.whole_card ? most : Bytes(spec.memory_limit_bytes());
    if (device.limit > most) {
      return absl::InvalidArgumentError(absl::StrCat(FormatBytes(device.limit), " can never fit: GPU ",
                                                     card->card.index, " has ", FormatBytes(card->view.total),
                                                     ", of which ", FormatBytesCut(most), " can be given"));
    }
    device.guarantee = device.preallocate ? device.limit : Bytes(spec.guarantee_bytes());
    if (device.guarantee > device.limit) {
      return absl::InvalidArgumentError(absl::StrCat("a guarantee of ", FormatBytes(device.guarantee),
                                                     " is above the memory_limit of ",
                                                     FormatBytes(device.limit)));
    }
    planned[card->id] = SaturatingAdd(planned[card->id], device.limit);
    plan.push_back(std::move(device));
  }
  return plan;
}

namespace {

/// Each of the `devices` without a limit of its own gets at most an equal share of `left`.
void ShareOut(Bytes left, std::size_t devices, std::vector<PlannedDevice>& plan) {
  for (PlannedDevice& device : plan) {
    if (!device.whole_card) continue;
    const Bytes share = RoundDown(Bytes(left.count() / devices), device.card.device.granularity);
    if (share.is_zero() || (!device.preallocate && share < device.guarantee) || share >= device.limit) {
      continue;
    }
    device.limit = share;
    if (device.preallocate) device.guarantee = share;
  }
}

}  // namespace

void ShrinkToCap(const CapConfig& cap, const Holdings& has, std::vector<PlannedDevice>& plan) {
  Holdings said = has;
  std::vector<PlannedDevice> given;
  std::copy_if(plan.begin(), plan.end(), std::back_inserter(given),
               [](const PlannedDevice& device) { return !device.whole_card; });
  said += HoldingsOf(given);
  const std::size_t open = plan.size() - given.size();
  if (open == 0) return;
  if (cap.memory_limit) ShareOut(SaturatingSub(*cap.memory_limit, said.memory_limit), open, plan);
  const bool sets_aside = std::any_of(plan.begin(), plan.end(), [](const PlannedDevice& device) {
    return device.whole_card && device.preallocate;
  });
  if (cap.guarantee && sets_aside) ShareOut(SaturatingSub(*cap.guarantee, said.guarantee), open, plan);
}

absl::Status CheckFitsEmptyCards(const v1::CreateLeaseRequest& request,
                                 const std::vector<PlannedDevice>& plan,
                                 std::vector<Broker::CardInfo> cards) {
  for (Broker::CardInfo& card : cards) {
    card.view.held = card.view.overhead = card.view.foreign = Bytes();
    card.view.promised = card.view.reserve;
  }
  LGPU_ASSIGN_OR_RETURN(const std::vector<PlannedDevice> placed, PlanDevices(request, cards));
  std::map<CardId, Bytes> set_aside;
  for (std::size_t i = 0; i < plan.size(); ++i) {
    Bytes& sum = set_aside[placed[i].card_id];
    sum = SaturatingAdd(sum, RoundUp(plan[i].guarantee, plan[i].card.device.granularity));
  }
  for (const Broker::CardInfo& card : cards) {
    const Bytes most = Broker::WholeCard(card);
    if (const auto sum = set_aside.find(card.id); sum != set_aside.end() && sum->second > most) {
      return absl::InvalidArgumentError(absl::StrCat(plan.size(), " logical devices can never fit: they set ",
                                                     FormatBytes(sum->second), " aside on GPU ",
                                                     card.card.index, ", of which ", FormatBytesCut(most),
                                                     " can be given; ask for less, or for growth"));
    }
  }
  return absl::OkStatus();
}

Broker::Preemptible FromProto(v1::Preemptible preemptible) {
  switch (preemptible) {
    case v1::PREEMPTIBLE_IDLE:
      return Broker::Preemptible::kIdle;
    case v1::PREEMPTIBLE_ALWAYS:
      return Broker::Preemptible::kAlways;
    default:
      return Broker::Preemptible::kNever;
  }
}

v1::Preemptible ToProto(Broker::Preemptible preemptible) {
  switch (preemptible) {
    case Broker::Preemptible::kIdle:
      return v1::PREEMPTIBLE_IDLE;
    case Broker::Preemptible::kAlways:
      return v1::PREEMPTIBLE_ALWAYS;
    case Broker::Preemptible::kNever:
      break;
  }
  return v1::PREEMPTIBLE_NEVER;
}

std::optional<UseTime> WhenPreempted(const Lease& lease) {
  if (!lease.suspended || lease.suspended->preempted_at_boottime_ns() == 0) return std::nullopt;
  return UseTime(lease.suspended->preempted_at_boottime_ns());
}

std::string DefaultLeaseName(std::uint64_t number) {
  const std::string name = absl::StrCat(kAdjectives[number % kAdjectives.size()], "-",
                                        kAnimals[number / kAdjectives.size() % kAnimals.size()]);
  const std::uint64_t round = number / (kAdjectives.size() * kAnimals.size());
  return round == 0 ? name : absl::StrCat(name, "-", round + 1);
}

absl::Status CheckLeaseName(const std::string& name) {
  const bool characters = std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
  });
  if (name.empty() || name.size() > kMaxNameBytes || !characters) {
    return absl::InvalidArgumentError(absl::StrCat("a lease's name is 1 to ", kMaxNameBytes,
                                                   " letters, digits, '-', '_' or '.'; this one has ",
                                                   name.size(), " bytes"));
  }
  if (name.front() == '-') {
    return absl::InvalidArgumentError(
        absl::StrCat("a lease cannot be named ", name, ": the command line would read it as a flag"));
  }
  if (name == "." || name == "..") {
    return absl::InvalidArgumentError(
        absl::StrCat("a lease cannot be named ", name, ": the word names a directory; choose another name"));
  }
  // Words that name a lease or a GPU must not be taken for the other kind.
  const bool is_number = std::all_of(
      name.begin(), name.end(), [](char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)); });
  if (is_number || absl::StartsWith(name, "l-") || absl::StartsWithIgnoreCase(name, "gpu-") ||
      absl::StartsWithIgnoreCase(name, "mig-")) {
    return absl::InvalidArgumentError(
        absl::StrCat("a lease cannot be named ", name,
                     ": numbers, \"l-...\", \"gpu-...\" and \"mig-...\" name GPUs and leases by themselves"));
  }
  return absl::OkStatus();
}

}  // namespace lgpu::daemon
