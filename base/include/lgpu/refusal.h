#ifndef LGPU_REFUSAL_H_
#define LGPU_REFUSAL_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "lgpu/bytes.h"
#include "lgpu/export.h"

namespace lgpu {

/// Why memory was refused. The numbers are on the wire: append only.
enum class RefusalReason {
  kUnspecified = 0,
  kLimit = 1,         // the logical device's own memory_limit
  kCard = 2,          // the physical device is full or promised
  kAddressRange = 3,  // the region's reserved addresses are used up
  kMapCount = 4,      // the kernel's vm.max_map_count
  kDeadlock = 5,      // every holder of the card waits for another one
  kBackend = 6,       // the driver or the machine had less than the ledger expected
  kDescriptors = 7,   // file descriptors (RLIMIT_NOFILE) are used up
};

/// "limit", "card", "address range", ...
LGPU_API std::string_view RefusalReasonName(RefusalReason reason);

/// A Refusal has all that is known when memory is refused. It is made once, where the refusal happens;
/// library, command line, JSON and events all show it. A number that is not known is absent, never zero. It
/// is a value type.
struct Refusal {
  /// A lease that holds, or is promised, memory of the card.
  struct Holder {
    std::string lease = {};
    std::string owner = {};   // user name, or the uid in digits
    std::int64_t pid = 0;     // 0: no process now
    std::string device = {};  // "/device:GPU:0" of that lease
    Bytes held = {};
    Bytes guarantee = {};
    /// The lease's programs have not used a GPU for so long; nothing: not known.
    std::optional<std::chrono::milliseconds> idle = {};
    friend bool operator==(const Holder&, const Holder&) = default;
  };

  /// The live blocks of one op in this program.
  struct Owner {
    std::string op = {};  // empty: blocks without the name of an op
    Bytes bytes = {};
    std::uint64_t blocks = 0;
    friend bool operator==(const Owner&, const Owner&) = default;
  };

  RefusalReason reason = RefusalReason::kUnspecified;
  std::string device = {};  // "/device:GPU:0"; empty: before there is one
  std::string lease = {};   // empty: a `local` context, or before there is one
  std::string what = {};    // "output of op MatMul, shape [8192,16384], float"; may be empty
  Bytes asked = {};
  std::optional<Bytes> limit = {};
  std::optional<Bytes> used = {};  // by this program; peak, blocks and largest free block are its own, too
  std::optional<Bytes> held = {};  // by the logical device, as `lgpu ls` shows it; the Broker knows it
  std::optional<Bytes> peak_used = {};
  std::optional<std::uint64_t> live_blocks = {};
  std::optional<Bytes> largest_free_block = {};
  std::string card = {};  // "GPU 0 (simulated)"; empty where no card is involved
  std::optional<Bytes> card_total = {};
  std::optional<Bytes> card_free = {};    // neither held nor promised
  std::optional<Bytes> coming_back = {};  // returning or draining memory that was waited for
  std::vector<Holder> holders = {};       // of the rest of the card, largest first
  std::vector<Owner> owners = {};         // of the memory in use here, largest first; stays in the process
  std::optional<std::chrono::milliseconds> waited = {};
  std::vector<std::string> advice = {};  // commands or changes that would help, one each

  friend bool operator==(const Refusal&, const Refusal&) = default;
};

/// The one text of a refusal: a first line that says what happened and where, then one aligned line
/// for every number that is known, then the advice. No trailing newline.
LGPU_API std::string FormatRefusal(const Refusal& refusal);

/// RESOURCE_EXHAUSTED with FormatRefusal's text, carrying the refusal as a payload.
LGPU_API absl::Status RefusalStatus(const Refusal& refusal);
/// The refusal that a status carries; nothing if it carries none or a damaged one.
LGPU_API std::optional<Refusal> GetRefusal(const absl::Status& status);

}  // namespace lgpu

#endif  // LGPU_REFUSAL_H_
