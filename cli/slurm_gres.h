#ifndef LGPU_CLI_SLURM_GRES_H_
#define LGPU_CLI_SLURM_GRES_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "lgpu/v1/control.pb.h"

namespace lgpu::cli {

struct SlurmGresOptions {
  std::string node = {};                     // empty: a file that only this node reads
  std::string device_files = "/dev/nvidia";  // a card's is this with its minor number behind
  std::uint64_t overhead_bytes = 0;          // of each card, for memory that programs use beside their limits
};

/// The lines of gres.conf for these cards: one `gpu` and one `shard` for each that is served, 1 shard for 1
/// MiB that leases can have. FAILED_PRECONDITION: none is served, or a card's minor number is not known.
absl::StatusOr<std::string> FormatSlurmGres(const v1::ListPhysicalDevicesResponse& cards,
                                            const SlurmGresOptions& options);

}  // namespace lgpu::cli

#endif  // LGPU_CLI_SLURM_GRES_H_
