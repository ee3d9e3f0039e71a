#ifndef LGPU_CLI_SNAPSHOT_FORMATS_H_
#define LGPU_CLI_SNAPSHOT_FORMATS_H_

#include "absl/status/status.h"
#include "cli/output_file.h"
#include "cli/snapshot_record.h"

namespace lgpu::cli {

/// The formats of `lgpu snapshot`, written in pieces of some hundred KiB. docs/snapshots.md describes them.
/// One JSON object, lgpu.memory_snapshot/v1 (packaging/schemas/lgpu.memory_snapshot.v1.json), and a newline.
absl::Status WriteSnapshotJson(const SnapshotRecord& record, const Sink& sink);
/// The dictionary that PyTorch's memory viewer loads, by pickle protocol 2. Each logical device of a program
/// is a device there, each mapping a segment; frames name the op.
absl::Status WriteSnapshotPickle(const SnapshotRecord& record, const Sink& sink);
/// The CSV of RMM's logging resource: an `allocate` for each live block, the oldest first.
absl::Status WriteSnapshotCsv(const SnapshotRecord& record, const Sink& sink);

}  // namespace lgpu::cli

#endif  // LGPU_CLI_SNAPSHOT_FORMATS_H_
