#ifndef LGPU_CLI_PLACEMENT_TABLES_H_
#define LGPU_CLI_PLACEMENT_TABLES_H_

#include <string>

#include "cli/output.h"
#include "lgpu/v1/control.pb.h"

namespace lgpu::cli {

/// What `lgpu placements` prints: the sums of ops by device, op and dtype, and of copies by their devices,
/// then the last ones of both.
std::string FormatReport(const v1::PlacementReport& report, const Style& style);
/// One executed op or copy as a line, as `--follow` prints it; times that were not measured are "-".
std::string FormatRecord(const v1::PlacementRecord& record);

}  // namespace lgpu::cli

#endif  // LGPU_CLI_PLACEMENT_TABLES_H_
