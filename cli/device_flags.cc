#include "cli/device_flags.h"

#include <signal.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/memory_size.h"
#include "cli/output.h"
#include "lgpu/bytes.h"
#include "lgpu/refusal.h"
#include "lgpu/status.h"
#include "lgpu/visibility.h"

namespace lgpu::cli {
namespace {

constexpr std::uint32_t kMaxDevices = 64;

std::string ListCards(const v1::ListPhysicalDevicesResponse& cards) {
  return absl::StrJoin(cards.devices(), ", ", [](std::string* out, const v1::CardStats& card) {
    absl::StrAppend(out, card.index(), " (", card.uuid(), card.served() ? ")" : ", not served)");
  });
}

absl::StatusOr<std::string> FindCard(const std::string& entry, const v1::ListPhysicalDevicesResponse& cards) {
  constexpr std::string_view kDeviceFile = "/dev/nvidia";
  const bool is_file = entry.starts_with(kDeviceFile);
  std::uint32_t number = 0;
  const bool is_number = absl::SimpleAtoi(is_file ? entry.substr(kDeviceFile.size()) : entry, &number);
  std::vector<std::string> found;
  for (const v1::CardStats& card : cards.devices()) {
    const bool named = is_file     ? is_number && card.has_minor() && card.minor() == number
                       : is_number ? card.index() == number
                                   : card.uuid().rfind(entry, 0) == 0;
    if (named) found.push_back(card.uuid());
  }
  if (found.size() == 1) return found[0];
  if (found.empty()) {
    return absl::NotFoundError(
        absl::StrCat("--gpus: no GPU ", Printable(entry).c_str(), "\nthe daemon knows: ", ListCards(cards)));
  }
  return absl::InvalidArgumentError(absl::StrCat("--gpus: ", Printable(entry).c_str(), " is the start of ",
                                                 found.size(), " UUIDs: ", absl::StrJoin(found, ", ")));
}

/// The UUIDs that --gpus names, in its order; empty where it names none.
absl::StatusOr<std::vector<std::string>> NamedCards(const std::string& gpus,
                                                    const v1::ListPhysicalDevicesResponse& cards) {
  std::vector<std::string> uuids;
  if (gpus.empty()) return uuids;
  for (const std::string& entry : std::vector<std::string>(absl::StrSplit(gpus, ','))) {
    if (entry.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--gpus: an empty entry in \"", gpus, "\"\ntry: --gpus 0,1 or --gpus all"));
    }
    LGPU_ASSIGN_OR_RETURN(const std::string uuid, FindCard(entry, cards));
    if (std::find(uuids.begin(), uuids.end(), uuid) == uuids.end()) uuids.push_back(uuid);
  }
  return uuids;
}

/// The cards that the daemon may choose among: those of --gpus that CUDA_VISIBLE_DEVICES leaves; empty for
/// all that it serves. --gpus all means all of them and ignores the variable.
absl::StatusOr<std::vector<std::string>> CandidateCards(const std::string& gpus,
                                                        const v1::ListPhysicalDevicesResponse& cards,
                                                        const std::optional<std::string>& visible_devices) {
  if (gpus == "all") return std::vector<std::string>();
  LGPU_ASSIGN_OR_RETURN(const std::vector<std::string> named, NamedCards(gpus, cards));
  if (!visible_devices) return named;
  std::vector<std::string> uuids;
  for (const v1::CardStats& card : cards.devices()) uuids.push_back(card.uuid());
  std::vector<std::string> candidates;
  for (const int index : VisibleDevices(*visible_devices, uuids)) {
    const std::string& uuid = uuids[static_cast<std::size_t>(index)];
    const bool wanted = named.empty() || std::find(named.begin(), named.end(), uuid) != named.end();
    if (wanted) candidates.push_back(uuid);
  }
  if (candidates.empty()) {
    return absl::NotFoundError(absl::StrCat(
        "CUDA_VISIBLE_DEVICES=", Printable(*visible_devices), " leaves none of the GPUs",
        gpus.empty() ? "" : " that --gpus " + gpus + " names", "\nthe daemon knows: ", ListCards(cards),
        "\ntry: --gpus all, or set CUDA_VISIBLE_DEVICES to an index or UUID of this list"));
  }
  return candidates;
}

absl::StatusOr<double> ParsePercent(const std::string& text) {
  double percent = 0;
  if (absl::SimpleAtod(text.substr(0, text.size() - 1), &percent) && percent > 0 && percent <= 100) {
    return percent;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--memory ", Printable(text), ": a part of a GPU is above 0% and at most 100%"));
}

/// A percentage of the GPU, in whole chunks. INVALID_ARGUMENT where the candidates' sizes differ.
absl::StatusOr<std::uint64_t> PartOfCard(const std::string& memory,
                                         const std::vector<std::string>& candidates,
                                         const v1::ListPhysicalDevicesResponse& cards) {
  LGPU_ASSIGN_OR_RETURN(const double percent, ParsePercent(memory));
  const v1::CardStats* chosen = nullptr;
  for (const v1::CardStats& card : cards.devices()) {
    const bool may = candidates.empty() ||
                     std::find(candidates.begin(), candidates.end(), card.uuid()) != candidates.end();
    if (!card.served() || !may) continue;
    if (chosen != nullptr && chosen->total_bytes() != card.total_bytes()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--memory ", memory,
          ": a share of which GPU? Their sizes differ: ", FormatBytes(Bytes(chosen->total_bytes())), " and ",
          FormatBytes(Bytes(card.total_bytes())), "\ntry: --gpus with one of them, or a size"));
    }
    chosen = &card;
  }
  if (chosen == nullptr) {
    return absl::NotFoundError(absl::StrCat("--memory ", memory, ": no GPU is served here"));
  }
  const auto part = static_cast<std::uint64_t>(static_cast<double>(chosen->total_bytes()) * percent / 100);
  return std::max(part / chosen->granularity_bytes(), std::uint64_t{1}) * chosen->granularity_bytes();
}

/// The number of a signal that is to stop the wait; `run` holds these back for its command.
std::optional<int> StoppingSignal() {
  sigset_t stopping;
  sigemptyset(&stopping);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) sigaddset(&stopping, number);
  const timespec no_time{};
  const int number = ::sigtimedwait(&stopping, nullptr, &no_time);
  return number > 0 ? std::optional(number) : std::nullopt;
}

}  // namespace

absl::StatusOr<std::uint64_t> ParseSizeOrZero(const char* flag, const std::string& text) {
  const absl::StatusOr<Bytes> bytes = ParseMemorySize(text);
  if (!bytes.ok()) {
    return absl::Status(bytes.status().code(), absl::StrCat(flag, ": ", bytes.status().message()));
  }
  return bytes->count();
}

absl::StatusOr<std::uint64_t> ParseSize(const char* flag, const std::string& text) {
  LGPU_ASSIGN_OR_RETURN(const std::uint64_t bytes, ParseSizeOrZero(flag, text));
  if (bytes == 0) {
    return absl::InvalidArgumentError(absl::StrCat(flag, " must be above 0\ntry: ", flag, " 256MiB"));
  }
  return bytes;
}

void DeviceFlags::AddTo(CLI::App& verb) {
  verb.add_option("-m,--memory", memory,
                  "Memory limit of every logical device (256MiB, 1.5GiB, 25% of its GPU, ...); default: "
                  "all that its GPU can give and the caps leave")
      ->type_name("SIZE");
  verb.add_option("-n,--devices", devices,
                  "How many logical devices; a program that does not use liblgpu sees those on one GPU as a "
                  "single GPU with the sum of their limits")
      ->type_name("N")
      ->default_val(1);
  auto* growth_flag =
      verb.add_flag("--growth", growth,
                    "Take memory on demand, up to the limit (default, unless the daemon is configured "
                    "otherwise)");
  verb.add_flag("--preallocate", preallocate,
                "Set the whole limit aside now: allocation up to it cannot fail")
      ->excludes(growth_flag);
  verb.add_flag(
          "--preemptible{idle}", preemptible,
          "lgpud may suspend its programs while they are idle (always: at work, too) and another "
          "preemptible lease needs their memory, and suspends such leases for them. They come back through "
          "the queue when they use the GPU")
      ->type_name("[idle|always|never]");
  verb.add_option("--guarantee", guarantee, "With --growth: memory that is set aside, at most the limit")
      ->type_name("SIZE");
  verb.add_option(
          "--gpus", gpus,
          "GPUs to choose among: indices, UUIDs or their beginnings, /dev/nvidiaN; all: every one, whatever "
          "CUDA_VISIBLE_DEVICES says")
      ->type_name("LIST");
  verb.add_option("--name", name, "Name of the lease; default: one is made up")->type_name("NAME");
  verb.add_flag("--wait{forever}", wait,
                "If there is not enough memory now, wait for it in the GPU's queue (at most this long)")
      ->type_name("DUR");
  idle_after.AddTo(verb);
}

static absl::StatusOr<v1::Preemptible> ParsePreemptible(const std::string& text) {
  if (text.empty() || text == "never") return v1::PREEMPTIBLE_NEVER;
  if (text == "idle") return v1::PREEMPTIBLE_IDLE;
  if (text == "always") return v1::PREEMPTIBLE_ALWAYS;
  return absl::InvalidArgumentError(absl::StrCat(
      "--preemptible ", Printable(text), ": the value must be idle (as without a value), always or never"));
}

absl::StatusOr<v1::LogicalDeviceSpec> DeviceFlags::Spec() const {
  if (devices < 1 || devices > kMaxDevices) {
    return absl::InvalidArgumentError(
        absl::StrCat("--devices ", devices, ": a lease has 1 to ", kMaxDevices, " logical devices"));
  }
  if (preallocate && !guarantee.empty()) {
    return absl::InvalidArgumentError(
        "--guarantee goes with --growth: --preallocate guarantees the whole limit");
  }
  LGPU_ASSIGN_OR_RETURN(const v1::Preemptible given_way, ParsePreemptible(preemptible));
  if (preallocate && given_way != v1::PREEMPTIBLE_NEVER) {
    return absl::InvalidArgumentError(
        "--preemptible cannot be used with --preallocate: lgpud never takes preallocated memory back\ntry: "
        "--growth");
  }
  LGPU_RETURN_IF_ERROR(idle_after.Milliseconds().status());
  v1::LogicalDeviceSpec spec;
  if (preallocate) spec.set_mode(v1::LogicalDeviceSpec::MODE_PREALLOCATE);
  if (growth || !guarantee.empty()) spec.set_mode(v1::LogicalDeviceSpec::MODE_GROWTH);
  if (!wait.empty() && wait != "forever") {
    const absl::StatusOr<std::chrono::milliseconds> patience = ParseDuration(wait);
    if (!patience.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--wait: ", patience.status().message()));
    }
  }
  if (memory.ends_with('%')) {
    LGPU_RETURN_IF_ERROR(ParsePercent(memory).status());
  } else if (!memory.empty()) {
    LGPU_ASSIGN_OR_RETURN(const std::uint64_t limit, ParseSize("--memory", memory));
    spec.set_memory_limit_bytes(limit);
  }
  if (!guarantee.empty()) {
    LGPU_ASSIGN_OR_RETURN(const std::uint64_t set_aside, ParseSizeOrZero("--guarantee", guarantee));
    spec.set_guarantee_bytes(set_aside);
  }
  return spec;
}

absl::StatusOr<v1::CreateLeaseRequest> MakeCreateRequest(const DeviceFlags& flags,
                                                         const v1::ListPhysicalDevicesResponse& cards,
                                                         std::optional<std::string> visible_devices) {
  LGPU_ASSIGN_OR_RETURN(v1::LogicalDeviceSpec spec, flags.Spec());
  LGPU_ASSIGN_OR_RETURN(const std::vector<std::string> candidates,
                        CandidateCards(flags.gpus, cards, visible_devices));
  for (const std::string& uuid : candidates) spec.add_candidate_uuids(uuid);
  if (flags.memory.ends_with('%')) {
    LGPU_ASSIGN_OR_RETURN(const std::uint64_t part, PartOfCard(flags.memory, candidates, cards));
    spec.set_memory_limit_bytes(part);
  }

  v1::CreateLeaseRequest request;
  request.set_name(flags.name);
  LGPU_ASSIGN_OR_RETURN(const v1::Preemptible preemptible, ParsePreemptible(flags.preemptible));
  request.set_preemptible(preemptible);
  LGPU_ASSIGN_OR_RETURN(const std::uint64_t idle_after_ms, flags.idle_after.Milliseconds());
  request.set_idle_after_ms(idle_after_ms);
  for (std::uint32_t i = 0; i < flags.devices; ++i) *request.add_devices() = spec;
  return request;
}

absl::StatusOr<v1::CreateLeaseRequest> MakeCreateRequest(const DeviceFlags& flags, Connection& connection,
                                                         const CommonOptions& options) {
  LGPU_ASSIGN_OR_RETURN(const v1::ListPhysicalDevicesResponse cards,
                        connection.Call(kListPhysicalDevices, v1::ListPhysicalDevicesRequest()));
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  LGPU_ASSIGN_OR_RETURN(
      v1::CreateLeaseRequest request,
      MakeCreateRequest(flags, cards,
                        visible == nullptr ? std::nullopt : std::optional<std::string>(visible)));
  const std::uint64_t limit = request.devices(0).memory_limit_bytes();
  if (std::uint64_t bare = 0; absl::SimpleAtoi(flags.memory, &bare) && limit < (std::uint64_t{1} << 20)) {
    options.Note(absl::StrFormat("lgpu: note: --memory %s is %d bytes; did you mean %sMiB?", flags.memory,
                                 limit, flags.memory));
  }
  return request;
}

absl::StatusOr<v1::Lease> CreateLease(const DeviceFlags& flags, Connection& connection,
                                      const v1::CreateLeaseRequest& request, const CommonOptions& options,
                                      std::optional<int>& stopped_by) {
  if (flags.wait.empty()) return connection.Call(kCreateLease, request);
  using Clock = std::chrono::steady_clock;
  const Clock::time_point started = Clock::now();
  v1::WaitForLeaseRequest waiting;
  *waiting.mutable_create() = request;
  std::optional<std::chrono::milliseconds> time;
  if (flags.wait != "forever") {
    time = *ParseDuration(flags.wait);
    waiting.set_wait_ms(static_cast<std::uint64_t>(std::max<std::int64_t>(time->count(), 1)));
  }
  std::optional<v1::Lease> lease;
  bool told = false;
  const auto each = [&](const v1::LeaseWait& wait) {
    if (wait.has_lease()) {
      lease = wait.lease();
    } else {
      told = true;
      options.Note(absl::StrCat(
          "lgpu: waiting for memory",
          wait.place() == 0 ? "" : absl::StrCat(", place ", wait.place(), " of ", wait.waiting()), ": ",
          Printable(wait.text())));
    }
    return absl::OkStatus();
  };
  LGPU_RETURN_IF_ERROR(connection.Await(kWaitForLease, waiting, time, each, [&]() -> absl::Status {
    stopped_by = StoppingSignal();
    return stopped_by ? absl::CancelledError(
                            absl::StrCat("stopped by signal ", *stopped_by, " while waiting for memory"))
                      : absl::OkStatus();
  }));
  if (!lease) return absl::InternalError("the daemon ended the wait without an answer");
  if (told) {
    const auto waited = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - started);
    options.Note(absl::StrCat("lgpu: there is memory after ", FormatAge(waited)));
  }
  return *std::move(lease);
}

std::vector<std::string> DescribeLease(const v1::Lease& lease) {
  std::vector<std::string> lines;
  for (const v1::LogicalDevice& device : lease.devices()) {
    const bool preallocate = device.mode() == v1::LogicalDeviceSpec::MODE_PREALLOCATE;
    lines.push_back(absl::StrCat(
        "lease ", Printable(lease.name().empty() ? lease.id() : lease.name()), ": GPU:", device.index(),
        " = ", FormatBytes(Bytes(device.memory_limit_bytes())), preallocate ? " (preallocate)" : " (growth)",
        " on GPU ", device.card_index(), " ", Printable(device.card_name())));
  }
  return lines;
}

}  // namespace lgpu::cli
