#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/exit_codes.h"
#include "cli/commands/commands.h"
#include "cli/connection.h"
#include "cli/device_flags.h"
#include "lgpu/status.h"
#include "proto/messages_json.h"

namespace lgpu::cli {
namespace {

/// "GPU:1", "gpu:1", "/device:GPU:1", the full name or "1".
absl::StatusOr<std::uint32_t> ParseIndex(const std::string& text) {
  std::uint32_t index = 0;
  if (absl::SimpleAtoi(text, &index)) return index;
  const std::string lower = absl::AsciiStrToLower(text);
  absl::string_view rest = lower;
  absl::ConsumePrefix(&rest, "/job:localhost/replica:0/task:0");
  absl::ConsumePrefix(&rest, "/");
  absl::ConsumePrefix(&rest, "device:");
  if (absl::ConsumePrefix(&rest, "gpu:") && absl::SimpleAtoi(rest, &index)) return index;
  return absl::InvalidArgumentError(
      absl::StrCat("--device ", Printable(text), " is no device of a lease\ntry: --device GPU:0"));
}

class ResizeCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& app) override {
    CLI::App* verb = app.add_subcommand("resize", "Change the limits of a lease while its programs run");
    verb->add_option("lease", lease_, "Name or id of the lease")->required()->type_name("LEASE");
    verb->add_option("-m,--memory", memory_,
                     "New memory limit (256MiB, 1.5GiB, ...); max: all that the card can give")
        ->type_name("SIZE");
    verb->add_option("--guarantee", guarantee_, "With growth: new guarantee, at most the limit; 0: none")
        ->type_name("SIZE");
    verb->add_option("-d,--device", devices_, "Only this logical device; may be repeated; default: all")
        ->type_name("GPU-DEVICE")
        ->allow_extra_args(false);
    return verb;
  }

  absl::StatusOr<int> Run(const CommonOptions& options) override {
    if (memory_.empty() && guarantee_.empty()) {
      return absl::InvalidArgumentError(
          "resize needs a new size\ntry: --memory SIZE, --guarantee SIZE or both");
    }
    std::vector<std::uint32_t> wanted;
    for (const std::string& text : devices_) {
      LGPU_ASSIGN_OR_RETURN(const std::uint32_t index, ParseIndex(text));
      wanted.push_back(index);
    }
    v1::ResizeLeaseRequest::Device size;
    if (memory_ == "max") {
      size.set_whole_card(true);
    } else if (!memory_.empty()) {
      LGPU_ASSIGN_OR_RETURN(const std::uint64_t limit, ParseSize("--memory", memory_));
      size.set_memory_limit_bytes(limit);
    }
    if (!guarantee_.empty()) {
      LGPU_ASSIGN_OR_RETURN(const std::uint64_t guarantee, ParseSizeOrZero("--guarantee", guarantee_));
      size.set_guarantee_bytes(guarantee);
    }
    LGPU_ASSIGN_OR_RETURN(Connection connection, Connection::Open(options));
    v1::ResizeLeaseRequest request;
    request.set_lease(lease_);
    if (wanted.empty()) {
      v1::GetLeaseRequest get;
      get.set_lease(lease_);
      LGPU_ASSIGN_OR_RETURN(const v1::Lease before, connection.Call(kGetLease, get));
      for (const v1::LogicalDevice& device : before.devices()) wanted.push_back(device.index());
    }
    for (const std::uint32_t index : wanted) {
      size.set_index(index);
      *request.add_devices() = size;
    }
    LGPU_ASSIGN_OR_RETURN(const v1::Lease lease, connection.Call(kResizeLease, request));
    if (options.json) {
      LGPU_RETURN_IF_ERROR(WriteOut(JsonLine(ToJson(lease))));
      return kExitOk;
    }
    for (const std::string& line : DescribeLease(lease)) options.Note("lgpu: " + line);
    return kExitOk;
  }

 private:
  std::string lease_;
  std::string memory_;
  std::string guarantee_;
  std::vector<std::string> devices_;
};

}  // namespace

std::unique_ptr<Command> MakeResizeCommand() { return std::make_unique<ResizeCommand>(); }

VerbPage ResizePage() {
  return {
      .description =
          "Changes limits or guarantees of a lease while its programs run. Where more is held than a lower "
          "limit allows, nothing is granted until less is held.",
      .examples = {{"lgpu resize train -m 6GiB", "all logical devices of the lease"},
                   {"lgpu resize train -d GPU:1 -m max", "one logical device, all that its card can give"}}};
}

}  // namespace lgpu::cli
