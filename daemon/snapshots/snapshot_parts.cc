#include "daemon/snapshots/snapshot_parts.h"

#include <algorithm>
#include <string>

#include "daemon/leases/ids.h"
#include "google/protobuf/util/time_util.h"
#include "proto/generated_messages.h"

namespace lgpu::daemon {
namespace {

google::protobuf::Timestamp ToTimestamp(std::chrono::system_clock::time_point time) {
  return google::protobuf::util::TimeUtil::NanosecondsToTimestamp(
      std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count());
}

}  // namespace

std::vector<v1::MemorySnapshotPart> SnapshotParts::Next(std::size_t count) {
  std::vector<v1::MemorySnapshotPart> parts;
  while (parts.size() < count && !is_over()) parts.push_back(NextPart());
  return parts;
}

v1::MemorySnapshotPart SnapshotParts::NextPart() {
  if (!head_is_sent_) {
    head_is_sent_ = true;
    return Head();
  }
  const SessionBlocks& session = record_->sessions[session_];
  v1::MemorySnapshotPart part;
  if (!session_is_sent_) {
    session_is_sent_ = true;
    part = SessionPart(session);
  } else {
    part = DevicePart(session.devices[device_]);
  }
  if (device_ >= session.devices.size()) {
    ++session_;
    session_is_sent_ = false;
    device_ = 0;
  }
  return part;
}

v1::MemorySnapshotPart SnapshotParts::Head() const {
  v1::MemorySnapshotPart part;
  v1::MemorySnapshotPart::Head& head = *part.mutable_head();
  head.set_lease_id(record_->lease_id);
  head.set_lease_name(record_->lease_name);
  head.set_owner(record_->owner);
  head.set_daemon("lgpud " LGPU_VERSION);
  *head.mutable_taken_at() = ToTimestamp(record_->taken_at);
  return part;
}

v1::MemorySnapshotPart SnapshotParts::SessionPart(const SessionBlocks& session) const {
  v1::MemorySnapshotPart part;
  v1::MemorySnapshotPart::Session& entry = *part.mutable_session();
  entry.set_id(session.id.value);
  entry.set_pid(session.pid);
  entry.set_command(session.command);
  entry.set_code(static_cast<int>(session.status.code()));
  entry.set_message(std::string(session.status.message()));
  for (const v1::ChargedKind& kind : session.charged_by_kind) *entry.add_charged_by_kind() = kind;
  return part;
}

// The device itself first, then its lists in as few messages as they fit into.
v1::MemorySnapshotPart SnapshotParts::DevicePart(const DeviceBlocks& device) {
  v1::MemorySnapshotPart part;
  if (!device_is_sent_) {
    device_is_sent_ = true;
    v1::MemorySnapshotPart::Device& entry = *part.mutable_device();
    entry.set_id(device.id.value);
    entry.set_index(static_cast<std::uint32_t>(device.index));
    entry.set_name(FullDeviceName(device.index));
    entry.set_card_uuid(device.card_uuid);
    entry.set_card_index(static_cast<std::uint32_t>(device.card_index));
    entry.set_code(static_cast<int>(device.status.code()));
    entry.set_message(std::string(device.status.message()));
    if (device.status.ok()) {
      *entry.mutable_taken_at() = ToTimestamp(device.taken_at);
      *entry.mutable_region() = ToGenerated<v1::RegionStats>(device.region);
    }
  }
  for (std::size_t names = 0; names < kMostEntries && name_ < device.ops.size(); ++names, ++name_) {
    part.add_op_names(device.ops[name_]);
  }
  if (name_ >= device.ops.size()) AddMappings(device, part);
  if (name_ >= device.ops.size() && mapping_ == device.mappings.size()) AddBlocks(device, part);
  if (name_ >= device.ops.size() && mapping_ == device.mappings.size() && block_ == device.blocks.size()) {
    ++device_;
    device_is_sent_ = false;
    name_ = 1;
    mapping_ = block_ = 0;
  }
  return part;
}

void SnapshotParts::AddMappings(const DeviceBlocks& device, v1::MemorySnapshotPart& part) {
  const std::size_t end = std::min(mapping_ + kMostEntries, device.mappings.size());
  if (mapping_ == end) return;
  v1::MappingList& list = *part.mutable_mappings();
  std::uint64_t at =
      mapping_ == 0 ? 0 : device.mappings[mapping_ - 1].offset + device.mappings[mapping_ - 1].bytes;
  list.set_start(at);
  for (; mapping_ < end; ++mapping_) {
    const ToldMapping& mapping = device.mappings[mapping_];
    list.add_gap(mapping.offset - at);
    list.add_bytes(mapping.bytes);
    at = mapping.offset + mapping.bytes;
  }
}

void SnapshotParts::AddBlocks(const DeviceBlocks& device, v1::MemorySnapshotPart& part) {
  const std::size_t end = std::min(block_ + kMostEntries, device.blocks.size());
  if (block_ == end) return;
  v1::BlockList& list = *part.mutable_blocks();
  std::uint64_t at = block_ == 0 ? 0 : device.blocks[block_ - 1].end();
  list.set_start(at);
  for (; block_ < end; ++block_) {
    const ToldBlock& block = device.blocks[block_];
    list.add_gap(block.offset - at);
    list.add_bytes(block.bytes);
    list.add_padding(block.padding);
    list.add_op(block.op);
    list.add_stream(block.stream);
    list.add_age_ms(block.age_ms);
    list.add_state(static_cast<v1::BlockList::State>(block.state));
    at = block.end();
  }
}

}  // namespace lgpu::daemon
