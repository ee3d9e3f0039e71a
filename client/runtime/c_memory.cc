#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "client/runtime/c_handles.h"
#include "lgpu/c/memory.h"
#include "lgpu/memory.h"

using lgpu::c::Missing;
using lgpu::c::Report;
using lgpu::c::Text;

struct lgpu_memory {
  lgpu::LogicalMemory memory;
};
struct lgpu_export {
  std::shared_ptr<void> owner;
};
struct lgpu_snapshot {
  lgpu::LogicalMemorySnapshot snapshot;
  std::string json;
};

namespace {

lgpu_code Deliver(absl::StatusOr<lgpu::LogicalMemory> memory, lgpu_memory** to, lgpu_status* status) {
  if (memory.ok()) *to = std::make_unique<lgpu_memory>(lgpu_memory{*std::move(memory)}).release();
  return Report(memory.status(), status);
}

absl::StatusOr<std::uint64_t> StatCalled(const lgpu::MemoryStats& stats, std::string_view name) {
  const std::pair<std::string_view, std::uint64_t> all[] = {
      {"limit", stats.limit.count()},       {"requested", stats.requested.count()},
      {"used", stats.used.count()},         {"peak_used", stats.peak_used.count()},
      {"held", stats.held.count()},         {"workspace", stats.workspace.count()},
      {"idle", stats.idle.count()},         {"cached", stats.cached.count()},
      {"fenced", stats.fenced.count()},     {"largest_free_block", stats.largest_free_block.count()},
      {"live_blocks", stats.live_blocks},   {"num_allocs", stats.num_allocs},
      {"num_refusals", stats.num_refusals},
  };
  for (const auto& [known, value] : all) {
    if (known == name) return value;
  }
  return absl::InvalidArgumentError("there is no number \"" + std::string(name) +
                                    "\"; lgpu/c/memory.h lists them at lgpu_memory_stat");
}

}  // namespace

lgpu_code lgpu_memory_open(const lgpu_options* options, int device_of_lease, lgpu_memory** memory,
                           lgpu_status* status) {
  if (memory == nullptr) return Missing("the place for the memory", status);
  lgpu::MemoryOptions open;
  open.device_of_lease = device_of_lease;
  if (options != nullptr) {
    const lgpu::ContextOptions& from = options->options;
    if (from.logical_devices.size() > 1) {
      return Report(absl::InvalidArgumentError(
                        "the options have " + std::to_string(from.logical_devices.size()) +
                        " devices; lgpu_memory_open takes one\n  try: an lgpu_memory for each device"),
                    status);
    }
    if (!from.logical_devices.empty()) {
      const lgpu::LogicalDeviceOptions& device = from.logical_devices.front();
      open.memory_limit = device.memory_limit;
      open.guarantee = device.guarantee;
      open.mode = device.mode;
      open.physical_device = device.physical_device;
    }
    open.lease = from.lease;
    open.lease_name = from.lease_name;
    open.endpoint = from.endpoint;
    open.allocation_timeout = from.allocation_timeout;
    open.log_sink = from.log_sink;
  }
  return Deliver(lgpu::LogicalMemory::Open(open), memory, status);
}
lgpu_code lgpu_context_memory(const lgpu_context* context, const char* device, lgpu_memory** memory,
                              lgpu_status* status) {
  if (context == nullptr) return Missing("the context", status);
  if (memory == nullptr) return Missing("the place for the memory", status);
  return Deliver(context->context.Memory(Text(device)), memory, status);
}
lgpu_code lgpu_memory_close(lgpu_memory* memory, lgpu_status* status) {
  if (memory == nullptr) return Missing("the memory", status);
  return Report(memory->memory.Close(), status);
}
void lgpu_memory_delete(lgpu_memory* memory) { std::unique_ptr<lgpu_memory>{memory}.reset(); }

lgpu_code lgpu_memory_allocate(const lgpu_memory* memory, uint64_t bytes, uint64_t alignment, void* stream,
                               const char* tag, int64_t timeout_ms, void** address, lgpu_status* status) {
  if (memory == nullptr) return Missing("the memory", status);
  if (address == nullptr) return Missing("the place for the address", status);
  lgpu::BlockOptions options{.stream = stream, .tag = tag == nullptr ? std::string_view() : tag};
  if (alignment != 0) options.alignment = lgpu::Bytes(alignment);
  options.only_if_ready = timeout_ms == LGPU_ONLY_IF_READY;
  if (timeout_ms >= 0) options.timeout = std::chrono::milliseconds(timeout_ms);
  const absl::StatusOr<lgpu::Block> block = memory->memory.Allocate(lgpu::Bytes(bytes), options);
  if (block.ok()) *address = block->address;
  return Report(block.status(), status);
}
lgpu_code lgpu_memory_free(const lgpu_memory* memory, void* address, void* stream, lgpu_status* status) {
  if (memory == nullptr) return Missing("the memory", status);
  return Report(memory->memory.Free(address, stream), status);
}
lgpu_code lgpu_memory_find(const lgpu_memory* memory, const void* address, uint64_t* bytes,
                           lgpu_status* status) {
  if (memory == nullptr) return Missing("the memory", status);
  const absl::StatusOr<lgpu::Block> block = memory->memory.Find(address);
  if (block.ok() && bytes != nullptr) *bytes = block->bytes.count();
  return Report(block.status(), status);
}
lgpu_code lgpu_memory_use_on(const lgpu_memory* memory, const void* address, void* stream,
                             lgpu_status* status) {
  if (memory == nullptr) return Missing("the memory", status);
  return Report(memory->memory.UseOn(address, stream), status);
}
lgpu_code lgpu_memory_forget_stream(const lgpu_memory* memory, void* stream, lgpu_status* status) {
  if (memory == nullptr) return Missing("the memory", status);
  return Report(memory->memory.ForgetStream(stream), status);
}

lgpu_code lgpu_memory_export(const lgpu_memory* memory, void* address, void* stream, lgpu_export** owner,
                             lgpu_status* status) {
  if (memory == nullptr) return Missing("the memory", status);
  if (owner == nullptr) return Missing("the place for the owner", status);
  const absl::StatusOr<lgpu::Block> block = memory->memory.Find(address);
  if (!block.ok()) return Report(block.status(), status);
  absl::StatusOr<std::shared_ptr<void>> exported = memory->memory.Export(*block, stream);
  if (exported.ok()) *owner = std::make_unique<lgpu_export>(lgpu_export{*std::move(exported)}).release();
  return Report(exported.status(), status);
}
void lgpu_export_delete(lgpu_export* owner) { std::unique_ptr<lgpu_export>{owner}.reset(); }
void lgpu_memory_live_blocks(const lgpu_memory* memory, uint64_t* blocks, uint64_t* bytes,
                             uint64_t* exported) {
  lgpu::LogicalMemory::LiveBlocks live;
  if (memory != nullptr) live = memory->memory.live_blocks();
  if (blocks != nullptr) *blocks = live.blocks;
  if (bytes != nullptr) *bytes = live.bytes.count();
  if (exported != nullptr) *exported = live.exported;
}

int lgpu_memory_cuda_device(const lgpu_memory* memory) {
  return memory == nullptr ? -1 : memory->memory.cuda_device();
}
const char* lgpu_memory_card(const lgpu_memory* memory) {
  return memory == nullptr ? "" : memory->memory.device().card_uuid.c_str();
}
const char* lgpu_memory_lease(const lgpu_memory* memory) {
  return memory == nullptr ? "" : memory->memory.lease().c_str();
}
const char* lgpu_memory_lease_name(const lgpu_memory* memory) {
  return memory == nullptr ? "" : memory->memory.lease_name().c_str();
}
lgpu_code lgpu_memory_stat(const lgpu_memory* memory, const char* stat, uint64_t* value,
                           lgpu_status* status) {
  if (memory == nullptr) return Missing("the memory", status);
  const absl::StatusOr<lgpu::MemoryStats> stats = memory->memory.GetStats();
  if (!stats.ok()) return Report(stats.status(), status);
  const absl::StatusOr<std::uint64_t> number = StatCalled(*stats, Text(stat));
  if (number.ok() && value != nullptr) *value = *number;
  return Report(number.status(), status);
}
lgpu_code lgpu_memory_trim(const lgpu_memory* memory, uint64_t* bytes, lgpu_status* status) {
  if (memory == nullptr) return Missing("the memory", status);
  const absl::StatusOr<lgpu::Bytes> trimmed = memory->memory.Trim();
  if (trimmed.ok() && bytes != nullptr) *bytes = trimmed->count();
  return Report(trimmed.status(), status);
}
lgpu_code lgpu_memory_resize(const lgpu_memory* memory, uint64_t memory_limit, lgpu_status* status) {
  if (memory == nullptr) return Missing("the memory", status);
  return Report(memory->memory.Resize({.memory_limit = lgpu::Bytes(memory_limit)}), status);
}

lgpu_code lgpu_memory_snapshot(const lgpu_memory* memory, lgpu_snapshot** snapshot, lgpu_status* status) {
  if (memory == nullptr) return Missing("the memory", status);
  if (snapshot == nullptr) return Missing("the place for the snapshot", status);
  absl::StatusOr<lgpu::LogicalMemorySnapshot> taken = memory->memory.Snapshot();
  if (taken.ok()) {
    std::string json = lgpu::SnapshotJson(*taken);
    *snapshot = std::make_unique<lgpu_snapshot>(lgpu_snapshot{*std::move(taken), std::move(json)}).release();
  }
  return Report(taken.status(), status);
}
void lgpu_snapshot_delete(lgpu_snapshot* snapshot) { std::unique_ptr<lgpu_snapshot>{snapshot}.reset(); }
size_t lgpu_snapshot_block_count(const lgpu_snapshot* snapshot) {
  return snapshot == nullptr ? 0 : snapshot->snapshot.blocks.size();
}
int lgpu_snapshot_block_at(const lgpu_snapshot* snapshot, size_t index, lgpu_block_info* block) {
  if (block == nullptr || index >= lgpu_snapshot_block_count(snapshot)) return 0;
  const lgpu::BlockInfo& found = snapshot->snapshot.blocks[index];
  // The names of states are literals.
  *block = {.address = snapshot->snapshot.base + found.offset.count(),
            .offset = found.offset.count(),
            .bytes = found.bytes.count(),
            .requested = found.requested.count(),
            .stream = snapshot->snapshot.streams[found.stream],
            .age_ms = static_cast<std::uint64_t>(found.age.count()),
            .tag = found.op.c_str(),
            .state = lgpu::BlockStateName(found.state).data()};
  return 1;
}
const char* lgpu_snapshot_json(const lgpu_snapshot* snapshot) {
  return snapshot == nullptr ? "" : snapshot->json.c_str();
}
