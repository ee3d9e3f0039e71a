#ifndef LGPU_CLIENT_RUNTIME_EXPLAIN_H_
#define LGPU_CLIENT_RUNTIME_EXPLAIN_H_

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/runtime/placer.h"
#include "lgpu/context.h"
#include "lgpu/explain.h"

namespace lgpu::internal {

/// Two devices disagree about an input of an op.
struct InputElsewhere {
  const Op& op;
  std::size_t index;
  DType dtype;
  std::string_view expected;  // full names
  std::string_view actual;
};
/// A device policy's verdict on a copy that an op needs: OK, with or without a line for the log, or
/// INVALID_ARGUMENT with TensorFlow's text.
struct CopyVerdict {
  absl::Status status;
  std::string warning;  // empty: none
};
CopyVerdict JudgeCopy(DevicePolicy policy, const InputElsewhere& input);

/// An op that is not run, with the state of its thread and context that decides its placement.
struct ExplainRequest {
  const Op& op;
  std::span<const TensorSpec> inputs;
  std::span<const int>
      devices;  // where each input is, by the placer's positions; none: where the op wants them
  const OpAttributes& attributes;
  const DeviceRequest* request = nullptr;
  bool soft = true;
  DevicePolicy policy = DevicePolicy::kSilent;
  bool pin_small_ops = false;
  std::string_view node = {};  // its name in a graph: gives a graph's errors; empty: TensorFlow 2's errors
};
PlacementExplanation Explain(const Placer& placer, const ExplainRequest& request);

/// The op of that name, or INVALID_ARGUMENT with the names of all.
absl::StatusOr<const Op*> FindOpToExplain(std::string_view name);

}  // namespace lgpu::internal

#endif  // LGPU_CLIENT_RUNTIME_EXPLAIN_H_
