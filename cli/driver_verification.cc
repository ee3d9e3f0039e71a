#include "cli/driver_verification.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/driver_shim.h"
#include "cli/helper_process.h"
#include "lgpu/bytes.h"
#include "lgpu/status.h"

namespace lgpu::cli {
namespace {

// One kind of call, on a large GPU.
constexpr std::chrono::minutes kAttemptPatience{5};
// By the driver's own count, beyond the limit: what it takes for itself at the first use of a call.
constexpr std::uint64_t kDriverSlack = std::uint64_t{8} << 20;
constexpr int kOutOfMemory = 2;  // CUDA_ERROR_OUT_OF_MEMORY

std::string Size(std::uint64_t bytes) { return FormatBytes(Bytes(bytes)); }

absl::StatusOr<SpawnOptions::Environment> HelperEnvironment(const v1::Lease& lease,
                                                            const Connection& connection) {
  if (!HasRealGpu(lease)) {
    return absl::FailedPreconditionError(
        absl::StrCat("lease ", Printable(lease.name()),
                     " is on simulated GPUs, which no CUDA driver serves\ntry: lgpu verify --lease ",
                     Printable(lease.name())));
  }
  LGPU_ASSIGN_OR_RETURN(LeaseEnvironment environment,
                        EnvironmentOf(lease, connection.runtime_dir(), [](const std::string& name) {
                          const char* const value = std::getenv(name.c_str());
                          return value == nullptr ? std::nullopt : std::optional<std::string>(value);
                        }));
  if (!environment.has_shim) {
    return absl::FailedPreconditionError(absl::StrCat(
        "programs started from here would not be limited: ",
        environment.notes.empty() ? "they have no shim" : environment.notes.front(), "\ntry: lgpu doctor"));
  }
  environment.variables["LGPU_MEMORY_WAIT_MS"] = "0";
  return environment.variables;
}

/// The lease's GPUs, in the order of CUDA_VISIBLE_DEVICES.
std::vector<DriverVerdict> CardsOf(const v1::Lease& lease) {
  std::vector<DriverVerdict> cards;
  for (const v1::LogicalDevice& device : lease.devices()) {
    auto card = std::find_if(cards.begin(), cards.end(), [&](const DriverVerdict& known) {
      return known.card_uuid == device.card_uuid();
    });
    if (card == cards.end()) card = cards.insert(cards.end(), {.card_uuid = device.card_uuid()});
    card->limit_bytes += device.memory_limit_bytes();
  }
  return cards;
}

absl::StatusOr<std::uint64_t> HeldBytes(Connection& connection, const v1::Lease& lease,
                                        const std::string& card_uuid) {
  LGPU_ASSIGN_OR_RETURN(const v1::StatsSnapshot snapshot, connection.Call(kGetStats, v1::GetStatsRequest()));
  std::uint64_t held = 0;
  for (const v1::LeaseStats& stats : snapshot.leases()) {
    if (stats.id() != lease.id()) continue;
    for (const v1::LogicalDevice& device : lease.devices()) {
      for (const auto& figures : stats.devices()) {
        if (device.card_uuid() == card_uuid && figures.name() == device.name()) held += figures.held_bytes();
      }
    }
    return held;
  }
  return absl::NotFoundError(absl::StrCat("lease ", lease.id(), " has ended meanwhile"));
}

}  // namespace

std::uint64_t DriverVerdict::most_bytes() const {
  std::uint64_t most = 0;
  for (const DriverAttempt& attempt : attempts) most = std::max(most, attempt.taken_bytes);
  return most;
}

std::vector<std::string> DriverVerdict::problems() const {
  std::vector<std::string> problems;
  for (const DriverAttempt& attempt : attempts) {
    if (attempt.is_absent()) continue;
    if (attempt.taken_bytes > limit_bytes) {
      problems.push_back(absl::StrCat(attempt.way, " gave ", Size(attempt.taken_bytes), ", above the limit"));
    } else if (attempt.refused != kOutOfMemory) {
      problems.push_back(absl::StrCat(attempt.way, " was refused with ", attempt.refused,
                                      ", not with 2 (out of memory), for which programs free their caches"));
    }
    if (attempt.driver_bytes > limit_bytes + kDriverSlack) {
      problems.push_back(
          absl::StrCat(attempt.way, " took ", Size(attempt.driver_bytes),
                       " of the GPU by the driver's own count, above the limit; other programs "
                       "that allocated meanwhile count too"));
    }
    if (attempt.daemon_bytes < attempt.taken_bytes) {
      problems.push_back(absl::StrCat(attempt.way, " gave ", Size(attempt.taken_bytes),
                                      ", the daemon counts ", Size(attempt.daemon_bytes)));
    }
  }
  if (std::all_of(attempts.begin(), attempts.end(),
                  [](const DriverAttempt& attempt) { return attempt.is_absent(); })) {
    problems.push_back("no kind of call could be tried");
  }
  return problems;
}

bool DriverVerification::holds() const {
  return !cards.empty() && std::all_of(cards.begin(), cards.end(),
                                       [](const DriverVerdict& card) { return card.problems().empty(); });
}

absl::StatusOr<DriverVerification> VerifyDriver(Connection& connection, const std::string& name,
                                                const CommonOptions& options) {
  v1::GetLeaseRequest request;
  request.set_lease(name);
  LGPU_ASSIGN_OR_RETURN(const v1::Lease lease, connection.Call(kGetLease, request));
  LGPU_ASSIGN_OR_RETURN(const SpawnOptions::Environment variables, HelperEnvironment(lease, connection));
  DriverVerification verification{.lease = lease.name(), .cards = CardsOf(lease)};
  std::vector<std::string> words = {"driver"};
  for (const DriverVerdict& card : verification.cards) words.push_back(absl::StrCat(card.limit_bytes));
  LGPU_ASSIGN_OR_RETURN(HelperProcess helper, HelperProcess::Start(words, variables));
  while (true) {
    LGPU_ASSIGN_OR_RETURN(const nlohmann::json line, helper.Read(kAttemptPatience));
    if (line.contains("error")) {
      return absl::FailedPreconditionError(absl::StrCat("the program that tries to break the limit failed: ",
                                                        line["error"].value("message", "")));
    }
    if (line.contains("done")) break;
    const std::size_t index = line.value("card", std::size_t{0});
    if (index >= verification.cards.size()) return absl::InternalError("an attempt on an unknown GPU");
    DriverVerdict& card = verification.cards[index];
    LGPU_ASSIGN_OR_RETURN(const std::uint64_t held, HeldBytes(connection, lease, card.card_uuid));
    card.attempts.push_back({.way = line.value("way", ""),
                             .taken_bytes = line.value("bytes", std::uint64_t{0}),
                             .allocations = line.value("allocations", std::uint64_t{0}),
                             .driver_bytes = line.value("driver_bytes", std::uint64_t{0}),
                             .refused = line.value("refused", 0),
                             .daemon_bytes = held});
    if (options.verbose > 0) options.Note(absl::StrCat("lgpu: tried ", card.attempts.back().way));
    LGPU_RETURN_IF_ERROR(helper.Continue());
  }
  return verification;
}

std::string FormatDriverVerification(const DriverVerification& verification, const Style& style) {
  std::string text;
  for (const DriverVerdict& card : verification.cards) {
    absl::StrAppend(&text, style.Bold(Printable(card.card_uuid)), "\n  limit  ", Size(card.limit_bytes),
                    " in lease ", Printable(verification.lease), "\n");
    Table table({{"TRIED"},
                 {"MOST HELD", Table::Align::kRight},
                 {"PIECES", Table::Align::kRight},
                 {"DRIVER", Table::Align::kRight},
                 {"DAEMON", Table::Align::kRight},
                 {"THEN"}});
    for (const DriverAttempt& attempt : card.attempts) {
      const std::string then = attempt.is_absent() ? absl::StrCat("not here (", attempt.refused, ")")
                               : attempt.refused == kOutOfMemory ? "refused: out of memory"
                               : attempt.refused == 0            ? "not refused"
                                                      : absl::StrCat("refused with ", attempt.refused);
      table.AddRow({Printable(attempt.way), Size(attempt.taken_bytes), absl::StrCat(attempt.allocations),
                    Size(attempt.driver_bytes), Size(attempt.daemon_bytes), then});
    }
    absl::StrAppend(&text, table.Format(style), "The most that was held is ", Size(card.most_bytes()), " of ",
                    Size(card.limit_bytes), ".\n");
    for (const std::string& problem : card.problems()) {
      absl::StrAppend(&text, "  ", style.Red("problem"), "  ", Printable(problem), "\n");
    }
  }
  absl::StrAppend(&text, verification.holds()
                             ? "The limit holds for every call that was tried. docs/unmodified.md says what "
                               "is not limited.\n"
                             : "The limit does NOT hold, or could not be verified.\n");
  return text;
}

nlohmann::json ToJson(const DriverVerification& verification) {
  nlohmann::json json = {{"schema", "lgpu.driver_verification/v1"},
                         {"lease", verification.lease},
                         {"holds", verification.holds()},
                         {"cards", nlohmann::json::array()}};
  for (const DriverVerdict& card : verification.cards) {
    nlohmann::json attempts = nlohmann::json::array();
    for (const DriverAttempt& attempt : card.attempts) {
      attempts.push_back({{"way", attempt.way},
                          {"taken_bytes", attempt.taken_bytes},
                          {"allocations", attempt.allocations},
                          {"driver_bytes", attempt.driver_bytes},
                          {"refused", attempt.refused},
                          {"daemon_held_bytes", attempt.daemon_bytes}});
    }
    json["cards"].push_back({{"card_uuid", card.card_uuid},
                             {"memory_limit_bytes", card.limit_bytes},
                             {"most_bytes", card.most_bytes()},
                             {"attempts", attempts},
                             {"problems", card.problems()}});
  }
  return json;
}

}  // namespace lgpu::cli
