#ifndef LGPU_CLI_MEMORY_MAP_TEXT_H_
#define LGPU_CLI_MEMORY_MAP_TEXT_H_

#include <cstddef>
#include <string>

#include "cli/snapshot_record.h"

namespace lgpu::cli {

/// The memory map of each logical device of each program in `record`, for a terminal: rows of cells in
/// address order from the start of the region to the last mapped page, a legend, and how much is free in
/// one piece. A cell shows the letter of the op that has most of its live bytes, or whether it is mapped.
/// `columns`: how wide a line may be (at least 60 are taken); `ascii`: no character beyond ASCII. A program
/// without an answer has a line with the reason.
std::string FormatMemoryMaps(const SnapshotRecord& record, std::size_t columns, bool ascii);

}  // namespace lgpu::cli

#endif  // LGPU_CLI_MEMORY_MAP_TEXT_H_
