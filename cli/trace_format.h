#ifndef LGPU_CLI_TRACE_FORMAT_H_
#define LGPU_CLI_TRACE_FORMAT_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cli/output_file.h"
#include "lgpu/v1/control.pb.h"
#include "lgpu/v1/events.pb.h"
#include "lgpu/v1/stats.pb.h"

namespace lgpu::cli {

/// What `lgpu trace` has gathered of one lease. A plain value.
struct TraceRecord {
  /// The lease's statistics at one moment.
  struct Sample {
    google::protobuf::Timestamp at;
    v1::LeaseStats lease;
  };
  std::string daemon, lease_id, lease_name;
  std::map<std::uint64_t, v1::PlacementRecord> ops;  // by sequence
  std::map<std::uint64_t, v1::CopyRecord> copies;    // by sequence, which is their own
  std::map<std::uint64_t, v1::Event> events;         // by sequence
  std::vector<Sample> samples;

  /// Ops between the first and the last one that are not there.
  std::uint64_t MissingOps() const;
  /// The same of copies.
  std::uint64_t MissingCopies() const;
};

/// The trace as one JSON object that chrome://tracing and Perfetto load
/// (packaging/schemas/lgpu.trace.v1.json): ops as complete events, a lane for each device of each program;
/// copies likewise, in lanes of their target; memory as counters of each logical device; events as instants.
/// Ops of a device that overlap, as those of several threads do, have lanes side by side.
absl::Status WriteTrace(const TraceRecord& record, const Sink& sink);

}  // namespace lgpu::cli

#endif  // LGPU_CLI_TRACE_FORMAT_H_
