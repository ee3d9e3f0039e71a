#ifndef LGPU_CLI_LABELS_H_
#define LGPU_CLI_LABELS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lgpu/v1/stats.pb.h"

namespace lgpu::cli {

/// "KEY=VALUE", where the value may be empty; INVALID_ARGUMENT for a text without key or '='.
absl::StatusOr<v1::Label> ParseLabel(const std::string& text);

/// INVALID_ARGUMENT unless the text fits --label of a filter: "KEY" or "KEY=VALUE".
absl::Status CheckLabelFilter(const std::string& text);
/// Whether the lease has every label of `wanted`; "KEY" alone matches any value.
bool HasLabels(const v1::LeaseStats& lease, const std::vector<std::string>& wanted);

/// "slurm.job=812 team=vision"; empty for a lease without labels.
std::string LabelsText(const v1::LeaseStats& lease);

}  // namespace lgpu::cli

#endif  // LGPU_CLI_LABELS_H_
