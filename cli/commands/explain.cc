#include "cli/explain.h"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "cli/commands/commands.h"
#include "cli/connection.h"
#include "cli/lease_cards.h"
#include "kernels/registry.h"
#include "kernels/text.h"
#include "lgpu/status.h"
#include "proto/messages_json.h"

namespace lgpu::cli {
namespace {

class ExplainCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& app) override {
    CLI::App* verb = app.add_subcommand("explain", "Show where an op would run, and why; nothing runs");
    std::string ops;
    for (const Op& op : AllOps()) ops += Cat(ops.empty() ? "" : ", ", op.name);
    verb->add_option("op", flags_.op, "One of " + ops)->required()->type_name("OP");
    verb->add_option("-d,--device", flags_.device, "The device that is asked for, as in GPU:1")
        ->type_name("DEVICE");
    auto* dtype = verb->add_option("--dtype", flags_.dtype, "Dtype of the inputs, where no --input is given")
                      ->type_name("DTYPE")
                      ->capture_default_str();
    verb->add_option("-i,--input", flags_.inputs, "An input, as in float[2,3]@GPU:0; may be repeated")
        ->type_name("INPUT")
        ->allow_extra_args(false)
        ->excludes(dtype);
    auto* gpus =
        verb->add_option("--gpus", flags_.gpus, "Place as a context with this many logical GPUs does")
            ->type_name("N")
            ->check(CLI::Range(0, 64))
            ->capture_default_str();
    gpus_ = gpus;
    verb->add_option("--lease", lease_,
                     "Place as a context on this lease does (default: LGPU_LEASE, else --gpus)")
        ->type_name("LEASE")
        ->excludes(gpus);
    hard_ = verb->add_flag("!--no-soft-placement,!--hard", flags_.soft,
                           "Fail rather than run elsewhere (default: as LGPU_SOFT_PLACEMENT says)");
    verb->add_option("--policy", flags_.policy, "Policy of copies between devices")
        ->type_name("silent|silent_for_int32|warn|explicit")
        ->capture_default_str();
    of_op_ = {{"Cast", verb->add_option("--to", flags_.cast_to, "Cast: the dtype of its output")
                           ->type_name("DTYPE")
                           ->capture_default_str()},
              {"MatMul",
               verb->add_flag("--transpose-a", flags_.transpose_a, "MatMul: the first input is transposed")},
              {"MatMul",
               verb->add_flag("--transpose-b", flags_.transpose_b, "MatMul: the second input is transposed")},
              {"Cast",
               verb->add_flag("--cast-on-gpu", flags_.cast_on_gpu, "Cast: as ContextOptions::cast_on_gpu")}};
    verb->add_flag("--pin-small-ops", flags_.pin_small_ops, "As ContextOptions::pin_small_ops");
    return verb;
  }

  absl::StatusOr<int> Run(const CommonOptions& options) override {
    for (const auto& [op, option] : of_op_) {
      if (option->count() > 0 && flags_.op != op) {
        return absl::InvalidArgumentError(
            absl::StrCat(option->get_name(), " is for ", op, ", not for ", Printable(flags_.op)));
      }
    }
    // As the library reads it: nothing but 0 and 1 counts.
    const char* soft = std::getenv("LGPU_SOFT_PLACEMENT");
    if (hard_->count() == 0 && soft != nullptr && std::string_view(soft) == "0") flags_.soft = false;
    const char* variable = std::getenv("LGPU_LEASE");
    const bool inside = lease_.empty() && gpus_->count() == 0 && variable != nullptr;
    if (inside) lease_ = variable;
    if (!lease_.empty()) {
      LGPU_ASSIGN_OR_RETURN(Connection connection, Connection::Open(options));
      v1::GetLeaseRequest request;
      request.set_lease(lease_);
      LGPU_ASSIGN_OR_RETURN(const v1::Lease lease, connection.Call(kGetLease, request));
      flags_.gpus = lease.devices_size();
      const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
      if (inside && visible != nullptr) {
        LGPU_ASSIGN_OR_RETURN(flags_.gpus, CountVisibleDevices(lease, visible));
      }
    }
    LGPU_ASSIGN_OR_RETURN(const PlacementExplanation explanation, ExplainFlagsOf(flags_));
    LGPU_RETURN_IF_ERROR(WriteOut(options.json ? JsonLine(ToJson(explanation)) : explanation.ToString()));
    return kExitOk;
  }

 private:
  ExplainFlags flags_;
  std::string lease_;
  CLI::Option* gpus_ = nullptr;
  CLI::Option* hard_ = nullptr;
  std::vector<std::pair<std::string, CLI::Option*>> of_op_;  // flags that only one op reads
};

}  // namespace

std::unique_ptr<Command> MakeExplainCommand() { return std::make_unique<ExplainCommand>(); }

VerbPage ExplainPage() {
  return {.description = "Shows where an op would run and by which rule. Nothing runs.",
          .examples = {{"lgpu explain MatMul -d GPU:1", "MatMul where GPU:1 is asked for"}}};
}

}  // namespace lgpu::cli
