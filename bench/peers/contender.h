#ifndef LGPU_BENCH_PEERS_CONTENDER_H_
#define LGPU_BENCH_PEERS_CONTENDER_H_

#include <cstddef>
#include <cstdint>

#include "bench/workloads/trace.h"
#include "lgpu/bytes.h"

namespace lgpu::bench {

/// The memory that every contender gets by the page.
inline constexpr Bytes kPage = Bytes(std::uint64_t{2} << 20);

struct ContenderOptions {
  Bytes limit{};   // a multiple of kPage: the contender never holds more
  Slot slots = 0;  // every slot is below this
};

/// How often pages (of whatever size the contender maps at once) were put somewhere or taken away.
struct PageOperations {
  std::uint64_t mapped = 0;
  std::uint64_t unmapped = 0;
};

/// A Contender is an allocator under comparison: it decides where blocks lie, and touches no memory
/// behind them. Its classes are final, so that a replay that knows the class pays for no virtual call.
/// Not thread-safe.
class Contender {
 public:
  virtual ~Contender() = default;
  Contender(const Contender&) = delete;
  Contender& operator=(const Contender&) = delete;

  /// False: refused, and nothing changed that a caller sees. The slot is not live, `bytes` not zero.
  virtual bool Allocate(Slot slot, Bytes bytes) = 0;
  /// The slot is live.
  virtual void Free(Slot slot) = 0;

  /// Where a live block lies.
  virtual Bytes OffsetOf(Slot slot) const = 0;
  /// Memory that is taken from the device now; for contenders that never give back also the most ever.
  virtual Bytes held() const = 0;
  virtual PageOperations page_operations() const = 0;
  /// The bytes that a caller keeps for each block; here the contender keeps them.
  virtual std::size_t handle_size() const { return sizeof(std::uint32_t); }
  /// Host memory that the original keeps and this one does not.
  virtual Bytes left_out_metadata() const { return Bytes(); }

 protected:
  Contender() = default;
};

}  // namespace lgpu::bench

#endif  // LGPU_BENCH_PEERS_CONTENDER_H_
