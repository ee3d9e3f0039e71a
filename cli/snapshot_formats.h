#ifndef LGPU_CLI_SNAPSHOT_FORMATS_H_
#define LGPU_CLI_SNAPSHOT_FORMATS_H_

#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "cli/snapshot_record.h"

namespace lgpu::cli {

/// Takes the next piece of a file; not OK: it could not be written.
using Sink = std::function<absl::Status(std::string_view)>;

/// The formats of `lgpu snapshot`, written in pieces of some hundred KiB. docs/snapshots.md describes them.
/// One JSON object, lgpu.snapshot/v1 (packaging/schemas/lgpu.snapshot.v1.json), and a newline.
absl::Status WriteSnapshotJson(const SnapshotRecord& record, const Sink& sink);
/// The dictionary that PyTorch's memory viewer loads, by pickle protocol 2. Each logical device of a program
/// is a device there, each mapping a segment; frames name the op.
absl::Status WriteSnapshotPickle(const SnapshotRecord& record, const Sink& sink);
/// The CSV of RMM's logging resource: an `allocate` for each live block, the oldest first.
absl::Status WriteSnapshotCsv(const SnapshotRecord& record, const Sink& sink);

}  // namespace lgpu::cli

#endif  // LGPU_CLI_SNAPSHOT_FORMATS_H_
