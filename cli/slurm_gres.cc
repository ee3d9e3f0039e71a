#include "cli/slurm_gres.h"

#include <algorithm>
#include <map>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lgpu/bytes.h"

namespace lgpu::cli {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

/// "NVIDIA H200" as "nvidia_h200": a type has no blanks. Without types Slurm gives a card's shards and the
/// whole card at once.
std::string TypeOf(const std::string& name) {
  std::string type = absl::AsciiStrToLower(name);
  std::replace_if(
      type.begin(), type.end(), [](char c) { return !absl::ascii_isalnum(static_cast<unsigned char>(c)); },
      '_');
  return type.empty() ? "gpu" : type;
}

}  // namespace

absl::StatusOr<std::string> FormatSlurmGres(const v1::ListPhysicalDevicesResponse& cards,
                                            const SlurmGresOptions& options) {
  const std::string node = options.node.empty() ? "" : absl::StrCat("NodeName=", options.node, " ");
  std::string gpus, shards;
  std::map<std::string, int> types;
  std::uint64_t all = 0;
  // Slurm counts the lines: so its numbers are in the order of the device files.
  std::vector<v1::CardStats> by_minor(cards.devices().begin(), cards.devices().end());
  std::stable_sort(by_minor.begin(), by_minor.end(),
                   [](const v1::CardStats& a, const v1::CardStats& b) { return a.minor() < b.minor(); });
  for (const v1::CardStats& card : by_minor) {
    if (!card.served()) continue;
    if (!card.has_minor()) {
      return absl::FailedPreconditionError(
          absl::StrCat("the device file of GPU ", card.index(),
                       " is not known: NVML does not report it here\n"
                       "try: write gres.conf by hand, with a line for each /dev/nvidiaN"));
    }
    const std::uint64_t kept = card.reserve_bytes() + options.overhead_bytes;
    // Chunks have 2 MiB: no lease could have the last MiB of an odd count.
    const std::uint64_t count = card.total_bytes() <= kept ? 0 : (card.total_bytes() - kept) / (2 * kMiB) * 2;
    if (count == 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("GPU ", card.index(), " has ", FormatBytes(Bytes(card.total_bytes())),
                       ", of which nothing is left\ntry: a smaller --overhead"));
    }
    const std::string file = absl::StrCat(options.device_files, card.minor());
    const std::string type = TypeOf(card.name());
    absl::StrAppend(&gpus, node, "Name=gpu Type=", type, " File=", file, "\n");
    absl::StrAppend(&shards, node, "Name=shard Count=", count, " File=", file, "\n");
    ++types[type];
    all += count;
  }
  if (types.empty()) return absl::FailedPreconditionError("this lgpud serves no GPU\ntry: lgpu ls");
  const std::string counts = absl::StrJoin(types, ",", [](std::string* out, const auto& type) {
    absl::StrAppend(out, "gpu:", type.first, ":", type.second);
  });
  return absl::StrCat("# slurm.conf: GresTypes=gpu,shard and, at this node, Gres=", counts, ",shard:", all,
                      "\n", gpus, shards);
}

}  // namespace lgpu::cli
