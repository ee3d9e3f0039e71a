#ifndef LGPU_TESTS_FAKE_CUDA_FAKE_BLOCKS_H_
#define LGPU_TESTS_FAKE_CUDA_FAKE_BLOCKS_H_

// Device memory that the fake driver places by itself: for cuMemAlloc, pools, arrays and modules.

#include <cuda.h>
#include <sys/mman.h>

#include <cstdint>
#include <map>
#include <memory>

#include "tests/fake_cuda/fake_process.h"

namespace lgpu::fake_cuda {

/// Of mmap: addresses alone.
inline constexpr int kReserved = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

// Callers of all of these hold Process::mutex.

/// New memory of a card, in whole granules.
CUresult NewAllocation(Process& process, int card, std::uint64_t bytes, StateFile::Kind kind,
                       std::shared_ptr<Allocation>* made);
enum class SeenBy { kDevice, kHostToo };
/// Maps memory, readable and writable for every card, at an address of the driver's choice or at `at`, which
/// is reserved. 0: no addresses.
CUdeviceptr MapMemory(Process& process, std::shared_ptr<Allocation> memory, SeenBy seen_by,
                      CUdeviceptr at = 0);
void UnmapMemory(Process& process, CUdeviceptr address);
/// Addresses without memory, which the host cannot touch.
CUdeviceptr ReserveAddresses(Process& process, std::uint64_t bytes, SeenBy seen_by = SeenBy::kDevice);

/// Blocks is memory of a card in blocks, from which small pieces are cut. A block that has none left goes
/// back to the card once more than `keep` bytes are there, so while one other small piece lives, a small
/// piece costs no system call.
class Blocks {
 public:
  /// A new block has at least `unit` bytes, where the card has so much.
  explicit Blocks(int card, std::uint64_t unit, StateFile::Kind kind = StateFile::Kind::kMemory)
      : card_(card), unit_(unit), kind_(kind) {}
  ~Blocks();
  Blocks(const Blocks&) = delete;
  Blocks& operator=(const Blocks&) = delete;

  CUresult Allocate(Process& process, std::uint64_t bytes, CUdeviceptr* address);
  void Free(CUdeviceptr address, std::uint64_t bytes);
  /// Gives empty blocks back until at most `keep` bytes are reserved.
  void Trim(Process& process, std::uint64_t keep);
  /// Gives everything back.
  void Clear(Process& process);
  /// The block that holds the address, and where it begins.
  std::shared_ptr<Allocation> Find(CUdeviceptr address, CUdeviceptr* start) const;

  int card() const { return card_; }
  std::uint64_t reserved() const { return reserved_; }
  std::uint64_t used() const { return used_; }
  std::uint64_t most_reserved = 0, most_used = 0;

 private:
  struct Block {
    std::shared_ptr<Allocation> memory;
    std::map<std::uint64_t, std::uint64_t> free;  // bytes by offset
  };
  CUresult Grow(Process& process, std::uint64_t bytes);

  const int card_;
  const std::uint64_t unit_;
  const StateFile::Kind kind_;
  std::uint64_t reserved_ = 0, used_ = 0;
  std::map<CUdeviceptr, Block> blocks_;
};

}  // namespace lgpu::fake_cuda

#endif  // LGPU_TESTS_FAKE_CUDA_FAKE_BLOCKS_H_
