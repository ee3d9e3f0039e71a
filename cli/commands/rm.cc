#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <iostream>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/exit_codes.h"
#include "cli/commands/commands.h"
#include "cli/connection.h"
#include "cli/lease_names.h"
#include "cli/lease_programs.h"
#include "lgpu/bytes.h"
#include "lgpu/status.h"
#include "proto/messages_json.h"

namespace lgpu::cli {
namespace {

class RmCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& app) override {
    CLI::App* verb = app.add_subcommand("rm", "End leases; their programs get no more memory");
    verb->add_option("lease", leases_, "Names or ids of leases")->type_name("LEASE");
    CLI::Option* const request =
        verb->add_option("--request-id", request_id_,
                         "In place of LEASE: the lease that create made with this ID")
            ->type_name("ID");
    CLI::Option* const all = verb->add_flag(
        "--all", all_,
        "In place of LEASE: every lease of yours, but for those that root manages; asks first");
    all->excludes(request);
    verb->add_flag("-y,--yes", yes_, "With --all: do not ask")->needs(all);
    verb->add_flag("--if-exists", if_exists_, "Succeed also for a lease that does not exist");
    verb->add_flag("--wait{forever}", wait_,
                   "Wait until the memory of the leases is back (at most this long)")
        ->type_name("DUR");
    CLI::Option* const kill = verb->add_flag(
        "--kill", kill_, "End the programs of the leases too: SIGTERM, and SIGKILL after a grace");
    kill->excludes(request);
    verb->add_option("--grace", grace_text_, "Time between SIGTERM and SIGKILL (with --kill)")
        ->type_name("DUR")
        ->needs(kill)
        ->capture_default_str();
    return verb;
  }

  absl::StatusOr<int> Run(const CommonOptions& options) override {
    if (all_ && !leases_.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("rm takes either --all or leases\ntry: lgpu rm ", absl::StrJoin(leases_, " ")));
    }
    if (!all_ && leases_.empty() == request_id_.empty()) {
      return absl::InvalidArgumentError(
          "rm needs leases or a request\ntry: lgpu rm LEASE, or --request-id ID");
    }
    const bool asks = all_ && !yes_;
    if (asks && (::isatty(STDIN_FILENO) == 0 || ::isatty(STDERR_FILENO) == 0)) {
      return absl::InvalidArgumentError(
          "rm --all asks before it ends leases, and there is no terminal to ask on\n"
          "try: lgpu rm LEASE ..., or --all --yes to end all without being asked");
    }
    LGPU_ASSIGN_OR_RETURN(grace_, ParseGrace());
    if (!wait_.empty() && wait_ != "forever") {
      LGPU_ASSIGN_OR_RETURN(const std::chrono::milliseconds patience, ParseDuration(wait_));
      deadline_ = Clock::now() + patience;
    }
    LGPU_ASSIGN_OR_RETURN(Connection connection, Connection::Open(options));
    std::vector<Target> targets;
    for (const std::string& lease : leases_) targets.push_back({.name = lease, .lease = lease});
    if (all_) {
      LGPU_ASSIGN_OR_RETURN(targets, OwnLeases(connection));
      if (targets.empty()) {
        options.Note("lgpu: you have no leases");
        return kExitOk;
      }
      if (asks && !Confirms(targets)) {
        options.Note("lgpu: no lease was removed");
        return kExitFailure;
      }
    }
    std::vector<std::pair<std::string, v1::RemoveLeaseRequest>> wanted;
    for (const Target& target : targets) {
      v1::RemoveLeaseRequest& request = wanted.emplace_back(target.name, v1::RemoveLeaseRequest()).second;
      request.set_lease(target.lease);
      // From the removal on programs have a second to use their memory: SIGTERM comes at its beginning.
      request.set_at_once(kill_);
      request.set_before_kill(kill_);
    }
    if (!request_id_.empty()) {
      wanted.emplace_back(request_id_, v1::RemoveLeaseRequest()).second.set_request_id(request_id_);
    }
    int code = kExitOk;
    for (const auto& [name, request] : wanted) {
      Outcome outcome{.json = {{"schema", "lgpu.removed/v1"}, {"lease", name}}};
      const absl::Status status = Remove(connection, name, request, outcome);
      if (!outcome.note.empty() && options.json) {
        LGPU_RETURN_IF_ERROR(WriteOut(JsonLine(outcome.json)));
      } else if (!outcome.note.empty()) {
        options.Note("lgpu: " + outcome.note);
      }
      if (!status.ok()) {
        options.Report(status, ExitCode(status));
        if (code == kExitOk) code = ExitCode(status);
      }
    }
    return code;
  }

 private:
  using Clock = std::chrono::steady_clock;

  struct Target {
    std::string name{};   // for people
    std::string lease{};  // for lgpud
  };

  static absl::StatusOr<std::vector<Target>> OwnLeases(Connection& connection) {
    LGPU_ASSIGN_OR_RETURN(const v1::StatsSnapshot snapshot,
                          connection.Call(kGetStats, v1::GetStatsRequest()));
    std::vector<Target> own;
    for (const v1::LeaseStats& lease : snapshot.leases()) {
      if (lease.owner_uid() != ::getuid() || lease.has_management()) continue;
      own.push_back({.name = lease.name().empty() ? lease.id() : lease.name(), .lease = lease.id()});
    }
    return own;
  }

  bool Confirms(const std::vector<Target>& targets) const {
    const std::string names = absl::StrJoin(
        targets, ", ", [](std::string* out, const Target& target) { *out += Printable(target.name); });
    std::cerr << "Remove " << targets.size() << (targets.size() == 1 ? " lease: " : " leases: ") << names
              << "? "
              << (kill_ ? "Their programs are ended." : "Programs that run in them lose their GPU memory.")
              << " [y/N] " << std::flush;
    std::string answer;
    std::getline(std::cin, answer);
    return answer == "y" || answer == "Y" || answer == "yes";
  }

  /// The result, for people and for programs; no note: nothing was done.
  struct Outcome {
    std::string note{};
    nlohmann::json json{};
  };

  absl::StatusOr<std::chrono::milliseconds> ParseGrace() const {
    const absl::StatusOr<std::chrono::milliseconds> grace = ParseDuration(grace_text_);
    if (!grace.ok()) return absl::InvalidArgumentError(absl::StrCat("--grace: ", grace.status().message()));
    return grace;
  }

  absl::Status Remove(Connection& connection, const std::string& name, const v1::RemoveLeaseRequest& request,
                      Outcome& outcome) const {
    if (!kill_ && !request.lease().empty()) {
      LGPU_RETURN_IF_ERROR(CheckNotSuspended(connection, request.lease()));
    }
    // Only here does a name find an ending lease, whose programs and memory may still be there.
    std::string id;
    if ((kill_ || !wait_.empty()) && !request.lease().empty()) {
      LGPU_ASSIGN_OR_RETURN(id, FindId(connection, request.lease()));
    }
    std::optional<LeasePrograms> programs;
    if (kill_ && !id.empty()) {
      LGPU_ASSIGN_OR_RETURN(programs, LeasePrograms::Find(connection, id));
    }
    // The daemon says whether the caller may remove the lease, before any program is ended.
    const absl::StatusOr<v1::RemoveLeaseResponse> removed = connection.Call(kRemoveLease, request);
    const bool ends_already = absl::IsNotFound(removed.status()) && !id.empty();
    if (absl::IsNotFound(removed.status()) && !ends_already && if_exists_) {
      outcome.note = absl::StrCat("there is no lease ", Printable(name));
      return absl::OkStatus();
    }
    if (!ends_already) LGPU_RETURN_IF_ERROR(removed.status());
    outcome.note = absl::StrCat("lease ", Printable(name), " is removed");
    if (programs) LGPU_RETURN_IF_ERROR(EndPrograms(*programs, name, outcome));
    if (id.empty() && !wait_.empty()) id = removed->lease_id();
    if (!wait_.empty()) return AwaitEnd(connection, id, deadline_);
    // The programs have ended, so their memory is back in a moment. What takes longer is no failure of rm.
    constexpr std::chrono::seconds kMoment{2};
    if (programs) AwaitEnd(connection, id, Clock::now() + kMoment).IgnoreError();
    return absl::OkStatus();
  }

  static absl::Status CheckNotSuspended(Connection& connection, const std::string& lease) {
    v1::GetLeaseRequest request;
    request.set_lease(lease);
    const absl::StatusOr<v1::Lease> now = connection.Call(kGetLease, request);
    if (!now.ok() || !now->suspension().in_host_memory() || now->suspension().bytes() == 0) {
      return absl::OkStatus();
    }
    const std::string name = Printable(now->name());
    return absl::FailedPreconditionError(
        absl::StrCat("the programs of lease ", name, " are suspended, and without the lease they would wait ",
                     "for ever\ntry: lgpu rm --kill ", name,
                     now->suspension().failed().empty() ? absl::StrCat(", or lgpu resume ", name) : ""));
  }

  absl::Status EndPrograms(LeasePrograms& programs, const std::string& name, Outcome& outcome) const {
    const LeasePrograms::Ended ended = programs.End(grace_);
    outcome.json["terminated"] = ended.terminated;
    outcome.json["killed"] = ended.killed;
    absl::StrAppend(&outcome.note, "; programs ended: ", ended.terminated.size(), " by SIGTERM, ",
                    ended.killed.size(), " by SIGKILL");
    if (ended.failures.empty()) return absl::OkStatus();
    return absl::PermissionDeniedError(
        absl::StrCat("lease ", Printable(name), " is removed, but not all of its programs were ended: ",
                     absl::StrJoin(ended.failures, "; "), "\ntry: as root, or as the user that runs them"));
  }

  /// The lease that the name means, or one of that name that is ending. Empty: there is none.
  static absl::StatusOr<std::string> FindId(Connection& connection, const std::string& name) {
    v1::GetLeaseRequest request;
    request.set_lease(name);
    const absl::StatusOr<v1::Lease> lease_now = connection.Call(kGetLease, request);
    if (lease_now.ok()) return lease_now->id();
    if (!absl::IsNotFound(lease_now.status())) return lease_now.status();
    LGPU_ASSIGN_OR_RETURN(const v1::StatsSnapshot snapshot,
                          connection.Call(kGetStats, v1::GetStatsRequest()));
    LGPU_ASSIGN_OR_RETURN(const v1::LeaseStats* const lease, FindLease(snapshot, name, ::getuid()));
    return lease == nullptr ? "" : lease->id();
  }

  static absl::Status AwaitEnd(Connection& connection, const std::string& id,
                               const std::optional<Clock::time_point>& deadline) {
    constexpr std::chrono::milliseconds kPause{100};
    while (true) {
      LGPU_ASSIGN_OR_RETURN(const v1::StatsSnapshot snapshot,
                            connection.Call(kGetStats, v1::GetStatsRequest()));
      const auto lease = std::find_if(snapshot.leases().begin(), snapshot.leases().end(),
                                      [&id](const v1::LeaseStats& each) { return each.id() == id; });
      if (lease == snapshot.leases().end()) return absl::OkStatus();
      if (deadline && Clock::now() >= *deadline) {
        std::uint64_t held = 0;
        for (const v1::LogicalDeviceStats& device : lease->devices()) held += device.held_bytes();
        return absl::ResourceExhaustedError(
            absl::StrCat("lease ", Printable(lease->name()), " is removed, and ", FormatBytes(Bytes(held)),
                         " are not back yet: ", lease->sessions_size(),
                         " of its processes have not ended\ntry: lgpu ps, or a longer --wait"));
      }
      std::this_thread::sleep_for(kPause);
    }
  }

  std::vector<std::string> leases_;
  std::string request_id_;
  bool all_ = false;
  bool yes_ = false;
  bool if_exists_ = false;
  std::string wait_;
  bool kill_ = false;
  std::string grace_text_ = "10s";
  std::chrono::milliseconds grace_{};
  std::optional<Clock::time_point> deadline_;
};

}  // namespace

std::unique_ptr<Command> MakeRmCommand() { return std::make_unique<RmCommand>(); }

VerbPage RmPage() {
  return {.description =
              "Ends leases. Their programs are told and get no more memory. With --kill lgpu also ends the "
              "programs: all that have a session of the lease, by SIGTERM, and by SIGKILL after a grace. "
              "A lease whose programs are suspended is ended with --kill alone: without it they would wait "
              "for ever. "
              "Every lease is tried; the exit code is that of the first failure.",
          .examples = {{"lgpu rm train", "by name"},
                       {"lgpu rm --kill --grace 30s train", "with its programs"},
                       {"lgpu rm l-0badcafe anna/train", "by id, and the lease of another user"},
                       {"lgpu rm --all", "every lease of yours, after a question"},
                       {"lgpu rm --if-exists --wait=30s job-7",
                        "for scripts that may run twice, until the memory is back"}}};
}

}  // namespace lgpu::cli
