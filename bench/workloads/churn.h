#ifndef LGPU_BENCH_WORKLOADS_CHURN_H_
#define LGPU_BENCH_WORKLOADS_CHURN_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/workloads/random.h"
#include "bench/workloads/trace.h"
#include "lgpu/bytes.h"

namespace lgpu::bench {

/// Steady churn: `live` blocks of log-uniform sizes, then `pairs` times a random one is freed and
/// another of an independent size allocated in its place.
struct ChurnShape {
  std::uint32_t live = 0;
  std::size_t pairs = 0;
  Bytes smallest{};
  Bytes largest{};
};
Trace Churn(std::string name, std::string what, const ChurnShape& shape, std::uint64_t seed);

/// The pattern of RMM's random_allocations benchmark: until `allocations` were made, 73 of 100 turns
/// allocate (uniform from 1 byte on) and 27 free a random live block, as do the turns that would pass
/// `most_live`; then everything is freed in random order.
struct MostlyAllocateShape {
  std::size_t allocations = 0;
  Bytes largest{};
  Bytes most_live{};
};
Trace MostlyAllocate(std::string name, std::string what, const MostlyAllocateShape& shape,
                     std::uint64_t seed);

/// A comb: `teeth` blocks, every other one freed, then one request as large as all the gaps together.
struct CombShape {
  std::uint32_t teeth = 0;
  Bytes tooth{};
  std::uint32_t rounds = 0;
};
Trace Comb(std::string name, std::string what, const CombShape& shape);

/// Two large temporaries per cycle and a small block between them that stays (pytorch issue 193400).
struct SliverShape {
  Bytes first{};
  Bytes second{};
  Bytes kept{};
  std::uint32_t cycles = 0;
};
Trace Slivers(std::string name, std::string what, const SliverShape& shape);

/// Cache blocks of one size: `at_once` requests grow by a block in turn, 16 to 127 each, and end at
/// different moments; one block in `keep_one_in` outlives its request, `survivors` of them at most.
struct ScatterShape {
  std::uint32_t requests = 0;
  std::uint32_t at_once = 0;
  Bytes block{};
  std::uint32_t keep_one_in = 0;
  std::uint32_t survivors = 0;
};
Trace ScatteredBlocks(std::string name, std::string what, const ScatterShape& shape, std::uint64_t seed);

/// Rising churn, to be followed until the first refusal: blocks of log-uniform sizes are added one by
/// one, and before each addition some random ones are replaced.
struct RisingChurnShape {
  Bytes limit{};
  Bytes smallest{};
  Bytes largest{};
  std::uint32_t replaced_per_addition = 0;
};
class RisingChurn {
 public:
  RisingChurn(const RisingChurnShape& shape, std::uint64_t seed) : shape_(shape), random_(seed) {}
  /// The next event; there is no end. Added blocks get ascending slots.
  Event Next();

 private:
  RisingChurnShape shape_;
  Random random_;
  Slot live_ = 0;
  std::uint32_t replacements_left_ = 0;
  bool allocate_freed_ = false;
  Slot freed_ = 0;
};

}  // namespace lgpu::bench

#endif  // LGPU_BENCH_WORKLOADS_CHURN_H_
