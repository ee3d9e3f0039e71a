#include "cli/snapshot_formats.h"

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/pickle_writer.h"
#include "google/protobuf/util/time_util.h"
#include "lgpu/status.h"

namespace lgpu::cli {
namespace {

using google::protobuf::util::TimeUtil;
using Json = nlohmann::ordered_json;

constexpr std::size_t kPiece = std::size_t{256} * 1024;

/// Gives the sink the gathered text once it has the length of a piece.
absl::Status Flush(std::string& text, const Sink& sink, std::size_t at_least = kPiece) {
  if (text.size() < at_least || text.empty()) return absl::OkStatus();
  const absl::Status written = sink(text);
  text.clear();
  return written;
}

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Json ErrorJson(int code, const std::string& message) {
  return {{"code", absl::StatusCodeToString(static_cast<absl::StatusCode>(code))}, {"message", message}};
}

/// The object without its last brace: more fields follow.
std::string Open(const Json& json) {
  std::string text = Dump(json);
  text.pop_back();
  return text;
}

Json DeviceJson(const v1::MemorySnapshotPart::Device& device) {
  Json json = {{"name", device.name()},
               {"index", device.index()},
               {"gpu", device.card_index()},
               {"card_uuid", device.card_uuid()}};
  if (device.code() != 0) {
    json["error"] = ErrorJson(device.code(), device.message());
    return json;
  }
  const v1::RegionStats& region = device.region();
  json["taken_at"] = TimeUtil::ToString(device.taken_at());
  json["base_address"] = region.base_address();
  json["reserved_bytes"] = region.reserved_bytes();
  json["granularity_bytes"] = region.granularity_bytes();
  json["limit_bytes"] = region.limit_bytes();
  json["requested_bytes"] = region.requested_bytes();
  json["used_bytes"] = region.used_bytes();
  json["peak_used_bytes"] = region.peak_used_bytes();
  json["held_bytes"] = region.held_bytes();
  json["workspace_bytes"] = region.workspace_bytes();
  json["idle_bytes"] = region.idle_bytes();
  json["cached_bytes"] = region.cached_bytes();
  json["fenced_bytes"] = region.fenced_bytes();
  json["largest_free_block_bytes"] = region.largest_free_block_bytes();
  json["fragmentation"] = FragmentationOf(region);
  json["live_blocks"] = region.live_blocks();
  json["allocations_total"] = region.allocations_total();
  json["refusals_total"] = region.refusals_total();
  return json;
}

// By hand: a million blocks as objects of a JSON library are a gigabyte.
absl::Status WriteDeviceJson(const SnapshotRecord::Device& device, std::string& text, const Sink& sink) {
  absl::StrAppend(&text, Open(DeviceJson(device.about)), ",\"mappings\":[");
  const char* comma = "";
  for (const SnapshotRecord::Mapping& mapping : device.mappings) {
    absl::StrAppend(&text, comma, "{\"offset\":", mapping.offset, ",\"bytes\":", mapping.bytes, "}");
    comma = ",";
    LGPU_RETURN_IF_ERROR(Flush(text, sink));
  }
  std::vector<std::string> ops;
  for (const std::string& op : device.ops) ops.push_back(Dump(op));
  absl::StrAppend(&text, "],\"blocks\":[");
  comma = "";
  for (const SnapshotRecord::Block& block : device.blocks) {
    absl::StrAppend(&text, comma, "{\"offset\":", block.offset, ",\"bytes\":", block.bytes,
                    ",\"requested_bytes\":", block.bytes - block.padding, ",\"op\":", ops[block.op],
                    ",\"stream\":", block.stream, ",\"age_seconds\":", block.age_ms / 1000, ".");
    absl::StrAppendFormat(&text, "%03d,\"state\":\"%s\"}", block.age_ms % 1000, BlockStateText(block.state));
    comma = ",";
    LGPU_RETURN_IF_ERROR(Flush(text, sink));
  }
  absl::StrAppend(&text, "]}");
  return Flush(text, sink);
}

void PickleBlock(PickleWriter& out, std::uint64_t address, std::uint64_t bytes, std::uint64_t requested,
                 std::string_view state, std::string_view op) {
  out.Dict([&] {
    out.Item("address", address);
    out.Item("size", bytes);
    out.Item("requested_size", requested);
    out.Item("state", state);
    out.Key("frames");
    out.List([&] {
      if (op.empty()) return;
      out.Dict([&] {
        out.Item("filename", std::string_view("lgpu"));
        out.Item("line", std::uint64_t{0});
        out.Item("name", op);
      });
    });
  });
}

std::string_view PickleState(std::uint8_t state) {
  switch (state) {
    case v1::BlockList::STATE_FENCED:
      return "active_pending_free";
    case v1::BlockList::STATE_CACHED:
      return "inactive";
    default:
      return "active_allocated";
  }
}

/// One segment with its blocks and the holes between them. `block`: the first one; moved behind the last one.
absl::Status PickleSegment(const SnapshotRecord::Device& device, const SnapshotRecord::Mapping& mapping,
                           std::uint64_t number, std::size_t& block, PickleWriter& out, const Sink& sink) {
  const std::uint64_t base = device.about.region().base_address();
  const std::uint64_t end = mapping.offset + mapping.bytes;
  std::uint64_t allocated = 0, active = 0, requested = 0;
  for (std::size_t i = block; i < device.blocks.size() && device.blocks[i].offset < end; ++i) {
    const SnapshotRecord::Block& one = device.blocks[i];
    if (one.state == v1::BlockList::STATE_CACHED) continue;
    active += one.bytes;
    if (one.state != v1::BlockList::STATE_LIVE) continue;
    allocated += one.bytes;
    requested += one.bytes - one.padding;
  }
  absl::Status status;
  out.Dict([&] {
    out.Item("device", number);
    out.Item("address", base + mapping.offset);
    out.Item("total_size", mapping.bytes);
    out.Item("allocated_size", allocated);
    out.Item("active_size", active);
    out.Item("requested_size", requested);
    out.Item("stream", std::uint64_t{0});
    out.Item("segment_type", std::string_view("large"));
    out.Key("frames");
    out.List([] {});
    out.Key("blocks");
    out.List([&] {
      std::uint64_t at = mapping.offset;
      for (; block < device.blocks.size() && device.blocks[block].offset < end && status.ok(); ++block) {
        const SnapshotRecord::Block& one = device.blocks[block];
        if (one.offset > at) PickleBlock(out, base + at, one.offset - at, 0, "inactive", "");
        PickleBlock(out, base + one.offset, one.bytes, one.bytes - one.padding, PickleState(one.state),
                    device.ops[one.op]);
        at = one.offset + one.bytes;
        status = Flush(out.text(), sink);
      }
      if (at < end) PickleBlock(out, base + at, end - at, 0, "inactive", "");
    });
  });
  return status;
}

}  // namespace

absl::Status WriteSnapshotJson(const SnapshotRecord& record, const Sink& sink) {
  std::string text = Open({{"schema", "lgpu.memory_snapshot/v1"},
                           {"daemon", record.head.daemon()},
                           {"taken_at", TimeUtil::ToString(record.head.taken_at())},
                           {"lease",
                            {{"id", record.head.lease_id()},
                             {"name", record.head.lease_name()},
                             {"owner", record.head.owner()}}}});
  absl::StrAppend(&text, ",\"sessions\":[");
  const char* comma = "";
  for (const SnapshotRecord::Session& session : record.sessions) {
    Json json = {{"session_id", session.about.id()},
                 {"pid", session.about.pid()},
                 {"command", session.about.command()}};
    if (session.about.code() != 0) json["error"] = ErrorJson(session.about.code(), session.about.message());
    json["charged_by_kind"] = Json::object();
    for (const v1::ChargedKind& kind : session.about.charged_by_kind()) {
      json["charged_by_kind"][kind.kind()] = kind.bytes();
    }
    absl::StrAppend(&text, comma, Open(json), ",\"devices\":[");
    comma = "";
    for (const SnapshotRecord::Device& device : session.devices) {
      absl::StrAppend(&text, comma);
      LGPU_RETURN_IF_ERROR(WriteDeviceJson(device, text, sink));
      comma = ",";
    }
    absl::StrAppend(&text, "]}");
    comma = ",";
  }
  absl::StrAppend(&text, "]}\n");
  return Flush(text, sink, 1);
}

absl::Status WriteSnapshotPickle(const SnapshotRecord& record, const Sink& sink) {
  PickleWriter out;
  absl::Status status;
  std::uint64_t number = 0;
  out.Begin();
  out.Dict([&] {
    out.Key("segments");
    out.List([&] {
      for (const SnapshotRecord::Session& session : record.sessions) {
        for (const SnapshotRecord::Device& device : session.devices) {
          std::size_t block = 0;
          for (const SnapshotRecord::Mapping& mapping : device.mappings) {
            if (status.ok()) status = PickleSegment(device, mapping, number, block, out, sink);
          }
          ++number;
        }
      }
    });
    out.Key("device_traces");
    out.List([&] {
      for (std::uint64_t i = 0; i < number; ++i) out.List([] {});
    });
  });
  out.End();
  LGPU_RETURN_IF_ERROR(status);
  return Flush(out.text(), sink, 1);
}

absl::Status WriteSnapshotCsv(const SnapshotRecord& record, const Sink& sink) {
  std::string text = "Thread,Time,Action,Pointer,Size,Stream\n";
  for (const SnapshotRecord::Session& session : record.sessions) {
    for (const SnapshotRecord::Device& device : session.devices) {
      std::vector<const SnapshotRecord::Block*> live;
      for (const SnapshotRecord::Block& block : device.blocks) {
        if (block.state == v1::BlockList::STATE_LIVE) live.push_back(&block);
      }
      std::stable_sort(live.begin(), live.end(),
                       [](const auto* a, const auto* b) { return a->age_ms > b->age_ms; });
      const std::int64_t taken_ms = TimeUtil::TimestampToMilliseconds(device.about.taken_at());
      for (const SnapshotRecord::Block* const block : live) {
        const std::int64_t ms = taken_ms - block->age_ms;
        const std::time_t seconds = ms / 1000;
        std::tm local = {};
        ::localtime_r(&seconds, &local);
        absl::StrAppendFormat(&text, "%d,%02d:%02d:%02d:%06d,allocate,0x%x,%d,0x%x\n", session.about.pid(),
                              local.tm_hour, local.tm_min, local.tm_sec, ms % 1000 * 1000,
                              device.about.region().base_address() + block->offset,
                              block->bytes - block->padding, block->stream);
        LGPU_RETURN_IF_ERROR(Flush(text, sink));
      }
    }
  }
  return Flush(text, sink, 1);
}

}  // namespace lgpu::cli
