#ifndef LGPU_CLI_EXPLAIN_H_
#define LGPU_CLI_EXPLAIN_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/op.h"
#include "lgpu/explain.h"
#include "nlohmann/json.hpp"

namespace lgpu::cli {

/// The flags of `lgpu explain`, as they are written.
struct ExplainFlags {
  std::string op = {};
  std::string dtype = "float";           // of inputs that are not given
  std::vector<std::string> inputs = {};  // "float[2,3]@GPU:0"
  std::string device = {};               // asked for; empty: none
  std::string cast_to = "double";
  std::string policy = "silent";
  bool soft = true;
  bool transpose_a = false;
  bool transpose_b = false;
  bool cast_on_gpu = false;
  bool pin_small_ops = false;
  int gpus = 1;
};

/// "float", "int32", and numpy's "float32", "float64", "float16". INVALID_ARGUMENT names all.
absl::StatusOr<DType> ParseDType(std::string_view text);

/// INVALID_ARGUMENT for a flag that cannot be read; an error of the op itself is in the explanation.
absl::StatusOr<PlacementExplanation> ExplainFlagsOf(const ExplainFlags& flags);

/// "lgpu.explanation/v1"
nlohmann::json ToJson(const PlacementExplanation& explanation);

}  // namespace lgpu::cli

#endif  // LGPU_CLI_EXPLAIN_H_
