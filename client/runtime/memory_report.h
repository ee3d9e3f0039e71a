#ifndef LGPU_CLIENT_RUNTIME_MEMORY_REPORT_H_
#define LGPU_CLIENT_RUNTIME_MEMORY_REPORT_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "client/runtime/device.h"
#include "client/runtime/placement_recorder.h"
#include "lgpu/context.h"

namespace lgpu::internal {

/// The same error with its payloads, and `prefix` before its text.
absl::Status PrefixedStatus(const absl::Status& status, std::string_view prefix);

/// `gpu` is one. Callers are behind the gate, here and below.
AllocatorStats AllocatorStatsOf(const Device& gpu);
/// A DeviceMemory is the summary's data of one GPU.
struct DeviceMemory {
  std::string name;
  MemoryStats stats;
  std::vector<Refusal::Owner> owners;  // of most memory
};
/// Tables for people, in at most 80 columns.
std::string MemoryTables(const std::vector<DeviceMemory>& devices,
                         const PlacementRecorder::CopyRoutes& routes);
/// Context::MemorySummary.
std::string MemorySummaryOf(const std::vector<std::unique_ptr<Device>>& devices,
                            const PlacementRecorder& recorder);

}  // namespace lgpu::internal

#endif  // LGPU_CLIENT_RUNTIME_MEMORY_REPORT_H_
