#ifndef LGPU_ALLOCATOR_DEVICE_SIMULATED_SIMULATED_SPEC_H_
#define LGPU_ALLOCATOR_DEVICE_SIMULATED_SIMULATED_SPEC_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "lgpu/bytes.h"

namespace lgpu {

/// Reads which GPUs to simulate, as `lgpud --simulate` and the endpoint `local:` take it: one item or several
/// with commas between, each a size or a count, 'x' and a size ("1GiB", "2x1GiB", "2x1GiB,512MiB"). The
/// memory of every one, in order. INVALID_ARGUMENT with what was read and what to write instead: no item, a
/// count of zero, more than 64 in all, a size below one chunk (2 MiB) or that ParseMemorySize does not take.
absl::StatusOr<std::vector<Bytes>> ParseSimulatedSpec(std::string_view text);

/// A warning where simulated GPUs of these sizes have more memory than the machine, whose memory they take;
/// "" where they have not.
std::string MoreThanTheMachineHas(std::span<const Bytes> cards);

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_DEVICE_SIMULATED_SIMULATED_SPEC_H_
