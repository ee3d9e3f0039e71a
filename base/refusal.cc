#include "lgpu/refusal.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <utility>

#include "absl/strings/cord.h"
#include "base/refusal_json.h"
#include "base/refusal_text.h"
#include "base/wrapped_text.h"
#include "lgpu/refusal_json.h"

namespace lgpu {
namespace {

constexpr std::string_view kPayloadUrl = "type.lgpu/lgpu.Refusal";
constexpr std::size_t kMostHoldersShown = 8;
constexpr std::size_t kFewestColumns = 30;  // for remarks: a longer label has its remark below it

// Names come from programs; one with a line break must not forge a line of its own.
std::string OneLine(std::string_view text) {
  std::string line(text);
  std::replace_if(
      line.begin(), line.end(), [](unsigned char c) { return c < ' ' || c == 127; }, ' ');
  return line;
}

// All sizes from 1 MiB on in MiB, so that a column of them compares at a glance.
std::string ColumnBytes(Bytes amount) {
  constexpr int kShift = 20;
  if (amount.count() >> kShift == 0) return FormatBytesCut(amount);
  const std::uint64_t rest = amount.count() & ((std::uint64_t{1} << kShift) - 1);
  const std::string hundredths = std::to_string(100 + ((rest * 100) >> kShift));
  return std::to_string(amount.count() >> kShift) + "." + hundredths.substr(1) + "MiB";
}

// A Table lines up a label, a size and a remark.
class Table {
 public:
  void Add(std::string label, Bytes amount, std::string remark = "") {
    label_width_ = std::max(label_width_, CharacterCount(label));
    std::string number = ColumnBytes(amount);
    number_width_ = std::max(number_width_, number.size());
    rows_.push_back({std::move(label), std::move(number), std::move(remark)});
  }
  void AppendTo(std::string& text) const {
    for (const Row& row : rows_) {
      text.append("\n  ").append(row.label).append(label_width_ - CharacterCount(row.label) + 2, ' ');
      text.append(number_width_ - row.number.size(), ' ').append(row.number);
      if (row.remark.empty()) continue;
      const std::size_t column = 2 + label_width_ + 2 + number_width_ + 3;
      if (column + kFewestColumns <= kTextColumns) {
        AppendWrapped(text.append("   "), row.remark, column, column);
      } else {
        AppendWrapped(text.append("\n      "), row.remark, 6, 6);
      }
    }
  }

 private:
  struct Row {
    std::string label, number, remark;
  };
  std::vector<Row> rows_;
  std::size_t label_width_ = 9;  // "asked for"
  std::size_t number_width_ = 0;
};

std::string CardName(const Refusal& refusal) {
  constexpr std::size_t kMost = 48;  // characters
  if (refusal.card.empty()) return "the card";
  std::string name = OneLine(refusal.card);
  if (CharacterCount(name) > kMost) name = name.substr(0, LineEnd(name, kMost - 3)) + "...";
  return name;
}

// The event, and the word that leads on to its place.
std::pair<std::string, std::string_view> HeadlineStart(const Refusal& refusal) {
  switch (refusal.reason) {
    case RefusalReason::kLimit:
      return {"memory limit reached", " on "};
    case RefusalReason::kCard:
      return {"not enough memory on " + CardName(refusal), " for "};
    case RefusalReason::kAddressRange:
      return {"reserved address range used up", " on "};
    case RefusalReason::kMapCount:
      return {"too many memory mappings (vm.max_map_count)", " on "};
    case RefusalReason::kDeadlock:
      if (refusal.holders.empty()) return {"no other lease holds memory of " + CardName(refusal), " for "};
      return {"all holders of " + CardName(refusal) + " wait for each other; refused", " for "};
    case RefusalReason::kBackend:
      return {"driver or machine had less memory than expected", " on "};
    case RefusalReason::kDescriptors:
      return {"file descriptors used up (RLIMIT_NOFILE)", " on "};
    case RefusalReason::kUnspecified:
      break;
  }
  return {"memory refused", " on "};
}

void AppendPart(std::string& remark, std::string_view part) {
  if (!remark.empty()) remark.append(", ");
  remark.append(part);
}

std::string UseRemark(const Refusal& refusal) {
  std::string remark = "by this program";
  if (refusal.live_blocks) {
    AppendPart(remark,
               std::to_string(*refusal.live_blocks) + (*refusal.live_blocks == 1 ? " block" : " blocks"));
  }
  if (refusal.peak_used) AppendPart(remark, "peak " + ColumnBytes(*refusal.peak_used));
  return remark;
}

std::string HolderRemark(const Refusal::Holder& holder) {
  std::string remark = holder.device.empty() ? "" : OneLine(holder.device);
  if (!holder.lease.empty()) remark += (remark.empty() ? "lease " : " of lease ") + OneLine(holder.lease);
  std::string who = holder.owner.empty() ? "" : "user " + OneLine(holder.owner);
  AppendPart(who, holder.pid > 0 ? "pid " + std::to_string(holder.pid) : "no process now");
  remark += (remark.empty() ? "" : " ") + ("(" + who + ")");
  if (!holder.guarantee.is_zero()) remark += ", guaranteed " + ColumnBytes(holder.guarantee);
  remark += IdleRemark(holder);
  return remark;
}

void AddCardRows(const Refusal& refusal, Table& table) {
  if (refusal.card_free) {
    std::string remark = "not promised to anyone";
    if (refusal.card_total) remark = "of " + ColumnBytes(*refusal.card_total) + ", " + remark;
    if (refusal.reason == RefusalReason::kLimit) remark += "; other leases are not affected";
    table.Add(CardName(refusal), *refusal.card_free, std::move(remark));
  } else if (refusal.card_total) {
    table.Add(CardName(refusal), *refusal.card_total, "in all");
  }
  std::size_t shown = 0;
  Bytes rest;
  for (const Refusal::Holder& holder : refusal.holders) {
    // A holder without held memory takes room by its promise.
    if (shown++ < kMostHoldersShown) {
      table.Add(holder.held.is_zero() ? "promised" : "held by",
                holder.held.is_zero() ? holder.guarantee : holder.held, HolderRemark(holder));
    } else {
      rest = SaturatingAdd(rest, std::max(holder.held, holder.guarantee));
    }
  }
  if (shown > kMostHoldersShown) {
    table.Add("held by", rest, std::to_string(shown - kMostHoldersShown) + " more");
  }
}

void AddOwnerRows(const Refusal& refusal, Table& table) {
  for (std::size_t i = 0; i < std::min(refusal.owners.size(), kMostHoldersShown); ++i) {
    const Refusal::Owner& owner = refusal.owners[i];
    std::string remark = owner.op.empty() ? "unnamed" : "op " + OneLine(owner.op);
    AppendPart(remark, std::to_string(owner.blocks) + (owner.blocks == 1 ? " block" : " blocks"));
    table.Add("used by", owner.bytes, std::move(remark));
  }
}

// A command behind a colon moves to a line of its own before it is broken, so that it can be copied.
void AppendAdvice(std::string& text, std::string_view advice) {
  constexpr std::size_t kColumn = 7, kIndent = 9;
  const std::size_t colon = advice.find(": ");
  if (colon != std::string_view::npos && CharacterCount(advice) > kTextColumns - kColumn) {
    const std::string_view lead = advice.substr(0, colon + 1), rest = advice.substr(colon + 2);
    if (CharacterCount(lead) <= kTextColumns - kColumn && CharacterCount(rest) <= kTextColumns - kIndent) {
      text.append(lead).append("\n").append(kIndent, ' ').append(rest);
      return;
    }
  }
  AppendWrapped(text, advice, kColumn, kIndent);
}

}  // namespace

std::string_view RefusalReasonName(RefusalReason reason) {
  switch (reason) {
    case RefusalReason::kLimit:
      return "limit";
    case RefusalReason::kCard:
      return "card";
    case RefusalReason::kAddressRange:
      return "address range";
    case RefusalReason::kMapCount:
      return "map count";
    case RefusalReason::kDeadlock:
      return "deadlock";
    case RefusalReason::kBackend:
      return "backend";
    case RefusalReason::kDescriptors:
      return "descriptors";
    case RefusalReason::kUnspecified:
      break;
  }
  return "unspecified";
}

std::string IdleRemark(const Refusal::Holder& holder) {
  using namespace std::chrono_literals;
  // A lease that used its GPU a moment ago is at work.
  if (!holder.idle || *holder.idle < 30s) return "";
  const std::chrono::milliseconds time = *holder.idle;
  if (time < 120s) return ", idle " + std::to_string(time / 1s) + " s";
  if (time < 120min) return ", idle " + std::to_string(time / 1min) + " min";
  return ", idle " + (time < 48h ? std::to_string(time / 1h) + " h" : std::to_string(time / 24h) + " d");
}

std::string RefusalHeadline(const Refusal& refusal) {
  auto [line, link] = HeadlineStart(refusal);
  if (!refusal.device.empty()) line.append(link).append(OneLine(refusal.device));
  if (!refusal.lease.empty()) {
    line.append(refusal.device.empty() ? " for lease " : " of lease ").append(OneLine(refusal.lease));
  }
  return line;
}

std::string RefusalDetails(const Refusal& refusal) {
  std::string text;
  Table table;
  table.Add("asked for", refusal.asked, OneLine(refusal.what));
  if (refusal.limit) table.Add("limit", *refusal.limit);
  if (refusal.used) table.Add("used", *refusal.used, UseRemark(refusal));
  AddOwnerRows(refusal, table);
  if (refusal.held) table.Add("held", *refusal.held, "of the limit, in chunks or charged");
  if (refusal.coming_back) {
    table.Add("returning", *refusal.coming_back, "given back, but not confirmed free yet");
  }
  AddCardRows(refusal, table);
  table.AppendTo(text);
  if (refusal.waited) {
    text.append("\n  waited ").append(std::to_string(std::max<std::int64_t>(refusal.waited->count(), 0)));
    text.append(" ms for memory to come back");
  }
  for (std::size_t i = 0; i < refusal.advice.size(); ++i) {
    AppendAdvice(text.append(i == 0 ? "\n  try: " : "\n       "), OneLine(refusal.advice[i]));
  }
  return text;
}

std::string FormatRefusal(const Refusal& refusal) {
  std::string text;
  AppendWrapped(text, RefusalHeadline(refusal), 0, 4);
  return text + RefusalDetails(refusal);
}

absl::Status RefusalStatus(const Refusal& refusal) {
  absl::Status status = absl::ResourceExhaustedError(FormatRefusal(refusal));
  status.SetPayload(absl::string_view(kPayloadUrl.data(), kPayloadUrl.size()),
                    absl::Cord(RefusalJson(refusal)));
  return status;
}

std::optional<Refusal> GetRefusal(const absl::Status& status) {
  const absl::optional<absl::Cord> payload =
      status.GetPayload(absl::string_view(kPayloadUrl.data(), kPayloadUrl.size()));
  if (!payload) return std::nullopt;
  return RefusalFromJson(nlohmann::json::parse(std::string(*payload), nullptr, false));
}

std::string StatusHeadline(const absl::Status& status) {
  if (const std::optional<Refusal> refusal = GetRefusal(status)) return RefusalHeadline(*refusal);
  return std::string(status.message().substr(0, status.message().find('\n')));
}

}  // namespace lgpu
