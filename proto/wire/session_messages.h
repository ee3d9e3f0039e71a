#ifndef LGPU_PROTO_WIRE_SESSION_MESSAGES_H_
#define LGPU_PROTO_WIRE_SESSION_MESSAGES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "proto/wire/control_messages.h"
#include "proto/wire/encoding.h"
#include "proto/wire/snapshot_messages.h"

/// The messages of lgpu/v1/session.proto and lgpu/v1/refusal.proto as plain structs. The .proto files say
/// what each field means; a test holds every number, name and type against them.

namespace lgpu::wire {

struct Refusal {
  enum class Reason : std::int32_t {};
  struct Holder {
    std::string lease;
    std::string owner;
    std::int64_t pid = 0;
    std::string device;
    std::uint64_t held_bytes = 0;
    std::uint64_t guarantee_bytes = 0;
    static void Fields(auto&& visit, auto& m) {
      visit(1, m.lease);
      visit(2, m.owner);
      visit(3, m.pid);
      visit(4, m.device);
      visit(5, m.held_bytes);
      visit(6, m.guarantee_bytes);
    }
  };
  Reason reason{};
  std::string device;
  std::string lease;
  std::string what;
  std::uint64_t asked_bytes = 0;
  std::optional<std::uint64_t> limit_bytes;
  std::optional<std::uint64_t> used_bytes;
  std::optional<std::uint64_t> held_bytes;
  std::optional<std::uint64_t> peak_used_bytes;
  std::optional<std::uint64_t> live_blocks;
  std::optional<std::uint64_t> largest_free_block_bytes;
  std::string card;
  std::optional<std::uint64_t> card_total_bytes;
  std::optional<std::uint64_t> card_free_bytes;
  std::optional<std::uint64_t> coming_back_bytes;
  std::vector<Holder> holders;
  std::optional<std::uint64_t> waited_ms;
  std::vector<std::string> advice;
  static void Fields(auto&& visit, auto& m) {
    visit(1, m.reason);
    visit(2, m.device);
    visit(3, m.lease);
    visit(4, m.what);
    visit(5, m.asked_bytes);
    visit(6, m.limit_bytes);
    visit(7, m.used_bytes);
    visit(8, m.held_bytes);
    visit(9, m.peak_used_bytes);
    visit(10, m.live_blocks);
    visit(11, m.largest_free_block_bytes);
    visit(12, m.card);
    visit(13, m.card_total_bytes);
    visit(14, m.card_free_bytes);
    visit(15, m.coming_back_bytes);
    visit(16, m.holders);
    visit(17, m.waited_ms);
    visit(18, m.advice);
  }
};

/// google.protobuf.Any.
struct Any {
  std::string type_url;
  Blob value;
  static void Fields(auto&& visit, auto& m) {
    visit(1, m.type_url);
    visit(2, m.value);
  }
};

struct StatusDetails {
  std::int32_t code = 0;
  std::string message;
  std::vector<Any> details;
  static void Fields(auto&& visit, auto& m) {
    visit(1, m.code);
    visit(2, m.message);
    visit(3, m.details);
  }
};

struct Resume {
  std::uint64_t session_id = 0;
  Blob session_token;
  static void Fields(auto&& visit, auto& m) {
    visit(1, m.session_id);
    visit(2, m.session_token);
  }
};

struct Hello {
  std::uint32_t protocol_version = 0;
  std::uint32_t oldest_version = 0;
  std::string client;
  std::int64_t pid = 0;
  std::string command;
  std::optional<Resume> resume;
  bool answers_snapshots = false;
  static void Fields(auto&& visit, auto& m) {
    visit(1, m.protocol_version);
    visit(2, m.oldest_version);
    visit(3, m.client);
    visit(4, m.pid);
    visit(5, m.command);
    visit(6, m.resume);
    visit(60, m.answers_snapshots);
  }
};

struct Welcome {
  std::uint32_t protocol_version = 0;
  std::uint64_t session_id = 0;
  Blob session_token;
  std::uint32_t stats_page_bytes = 0;
  std::uint32_t client_page_bytes = 0;
  std::string daemon;
  bool resumed = false;
  static void Fields(auto&& visit, auto& m) {
    visit(1, m.protocol_version);
    visit(2, m.session_id);
    visit(3, m.session_token);
    visit(4, m.stats_page_bytes);
    visit(5, m.client_page_bytes);
    visit(6, m.daemon);
    visit(7, m.resumed);
  }
};

struct Chunk {
  std::uint64_t id = 0;
  std::uint64_t bytes = 0;
  static void Fields(auto&& visit, auto& m) {
    visit(1, m.id);
    visit(2, m.bytes);
  }
};

struct Attest {
  std::uint64_t device_id = 0;
  std::vector<Chunk> chunks;
  bool more = false;
  static void Fields(auto&& visit, auto& m) {
    visit(1, m.device_id);
    visit(2, m.chunks);
    visit(3, m.more);
  }
};

struct Attested {
  static void Fields(auto&&, auto&) {}
};

struct GrowRequest {
  std::uint64_t request_id = 0;
  std::uint64_t device_id = 0;
  std::uint64_t at_least_bytes = 0;
  std::uint64_t wanted_bytes = 0;
  std::uint64_t timeout_ms = 0;
  bool ahead = false;
  static void Fields(auto&& visit, auto& m) {
    visit(1, m.request_id);
    visit(2, m.device_id);
    visit(3, m.at_least_bytes);
    visit(4, m.wanted_bytes);
    visit(5, m.timeout_ms);
    visit(6, m.ahead);
  }
};

struct Grant {
  std::uint64_t request_id = 0;
  std::uint64_t grant_id = 0;
  std::uint64_t device_id = 0;
  std::vector<Chunk> chunks;
  bool more = false;
  static void Fields(auto&& visit, auto& m) {
    visit(1, m.request_id);
    visit(2, m.grant_id);
    visit(3, m.device_id);
    visit(4, m.chunks);
    visit(5, m.more);
  }
};

struct Ack {
  std::uint64_t grant_id = 0;
  static void Fields(auto&& visit, auto& m) { visit(1, m.grant_id); }
};

struct GrowRefused {
  std::uint64_t request_id = 0;
  std::int32_t code = 0;
  std::string message;
  std::optional<Refusal> refusal;
  static void Fields(auto&& visit, auto& m) {
    visit(1, m.request_id);
    visit(2, m.code);
    visit(3, m.message);
    visit(4, m.refusal);
  }
};

struct Withdraw {
  std::uint64_t request_id = 0;
  static void Fields(auto&& visit, auto& m) { visit(1, m.request_id); }
};

struct ReturnRequest {
  std::uint64_t request_id = 0;
  std::uint64_t device_id = 0;
  std::vector<std::uint64_t> chunk_ids;
  static void Fields(auto&& visit, auto& m) {
    visit(1, m.request_id);
    visit(2, m.device_id);
    visit(3, m.chunk_ids);
  }
};

struct ReturnReply {
  std::uint64_t request_id = 0;
  std::int32_t code = 0;
  std::string message;
  static void Fields(auto&& visit, auto& m) {
    visit(1, m.request_id);
    visit(2, m.code);
    visit(3, m.message);
  }
};

struct CloseRequest {
  std::uint64_t request_id = 0;
  static void Fields(auto&& visit, auto& m) { visit(1, m.request_id); }
};

struct Closed {
  std::uint64_t request_id = 0;
  static void Fields(auto&& visit, auto& m) { visit(1, m.request_id); }
};

struct Trim {
  std::uint64_t trim_id = 0;
  std::uint64_t device_id = 0;
  std::uint64_t bytes = 0;
  static void Fields(auto&& visit, auto& m) {
    visit(1, m.trim_id);
    visit(2, m.device_id);
    visit(3, m.bytes);
  }
};

struct Trimmed {
  std::uint64_t trim_id = 0;
  bool pending = false;
  static void Fields(auto&& visit, auto& m) {
    visit(1, m.trim_id);
    visit(2, m.pending);
  }
};

struct Attach {
  std::uint64_t request_id = 0;
  std::string lease;
  static void Fields(auto&& visit, auto& m) {
    visit(1, m.request_id);
    visit(2, m.lease);
  }
};

struct Attached {
  std::uint64_t request_id = 0;
  std::int32_t code = 0;
  std::string message;
  std::optional<Lease> lease;
  static void Fields(auto&& visit, auto& m) {
    visit(1, m.request_id);
    visit(2, m.code);
    visit(3, m.message);
    visit(4, m.lease);
  }
};

enum class ChargeKind : std::int32_t {
  kUnspecified = 0,
  kPlain = 1,
  kPitched = 2,
  kManaged = 3,
  kArray = 4,
  kPool = 5,
  kVmm = 6,
  kGraph = 7,
  kModule = 8,
  kLimit = 9,
  kSmall = 10,
};

struct Charge {
  std::uint64_t request_id = 0;
  std::string card_uuid;
  std::uint64_t bytes = 0;
  std::uint64_t timeout_ms = 0;
  ChargeKind kind{};
  std::string what;
  std::uint32_t driver_refusals = 0;
  static void Fields(auto&& visit, auto& m) {
    visit(1, m.request_id);
    visit(2, m.card_uuid);
    visit(3, m.bytes);
    visit(4, m.timeout_ms);
    visit(5, m.kind);
    visit(6, m.what);
    visit(7, m.driver_refusals);
  }
};

struct Charged {
  std::uint64_t request_id = 0;
  std::int32_t code = 0;
  std::string message;
  std::optional<Refusal> refusal;
  static void Fields(auto&& visit, auto& m) {
    visit(1, m.request_id);
    visit(2, m.code);
    visit(3, m.message);
    visit(4, m.refusal);
  }
};

struct Uncharge {
  std::string card_uuid;
  std::uint64_t bytes = 0;
  ChargeKind kind{};
  static void Fields(auto&& visit, auto& m) {
    visit(1, m.card_uuid);
    visit(2, m.bytes);
    visit(3, m.kind);
  }
};

struct ChargeAttest {
  struct Total {
    std::string card_uuid;
    ChargeKind kind{};
    std::uint64_t bytes = 0;
    static void Fields(auto&& visit, auto& m) {
      visit(1, m.card_uuid);
      visit(2, m.kind);
      visit(3, m.bytes);
    }
  };
  std::vector<Total> totals;
  static void Fields(auto&& visit, auto& m) { visit(1, m.totals); }
};

struct Goodbye {
  std::int32_t code = 0;
  std::string message;
  static void Fields(auto&& visit, auto& m) {
    visit(1, m.code);
    visit(2, m.message);
  }
};

struct Frame {
  std::variant<std::monostate, Hello, GrowRequest, Ack, ReturnRequest, CloseRequest, Attest, Trimmed, Welcome,
               Grant, GrowRefused, ReturnReply, Closed, Goodbye, Attested, Trim, Attach, Attached, Charge,
               Uncharge, ChargeAttest, Charged, Snapshot, SnapshotPage, Withdraw>
      body;
  std::uint64_t acknowledges = 0;

  /// The body, if it is this one.
  template <typename T>
  const T* Get() const {
    return std::get_if<T>(&body);
  }

  static void Fields(auto&& visit, auto& m) {
    visit.template Case<Hello>(1, m.body);
    visit.template Case<GrowRequest>(2, m.body);
    visit.template Case<Ack>(3, m.body);
    visit.template Case<ReturnRequest>(4, m.body);
    visit.template Case<CloseRequest>(5, m.body);
    visit.template Case<Attest>(6, m.body);
    visit.template Case<Trimmed>(7, m.body);
    visit(10, m.acknowledges);
    visit.template Case<Attach>(11, m.body);
    visit.template Case<Charge>(12, m.body);
    visit.template Case<Uncharge>(13, m.body);
    visit.template Case<ChargeAttest>(14, m.body);
    visit.template Case<Withdraw>(15, m.body);
    visit.template Case<Welcome>(16, m.body);
    visit.template Case<Grant>(17, m.body);
    visit.template Case<GrowRefused>(18, m.body);
    visit.template Case<ReturnReply>(19, m.body);
    visit.template Case<Closed>(20, m.body);
    visit.template Case<Goodbye>(21, m.body);
    visit.template Case<Attested>(22, m.body);
    visit.template Case<Trim>(23, m.body);
    visit.template Case<Attached>(27, m.body);
    visit.template Case<Charged>(28, m.body);
    visit.template Case<SnapshotPage>(60, m.body);
    visit.template Case<Snapshot>(61, m.body);
  }
};

}  // namespace lgpu::wire

#endif  // LGPU_PROTO_WIRE_SESSION_MESSAGES_H_
