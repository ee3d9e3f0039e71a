#include "client/session/saved_contents.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "allocator/pool/pool_blocks.h"
#include "base/host_memory.h"
#include "lgpu/status.h"

namespace lgpu {

void SavedContents::Unmap::operator()(std::byte* memory) const { ::munmap(memory, bytes.count()); }

absl::StatusOr<std::vector<SavedContents::Run>> SavedContents::LiveRuns(const DevicePool& pool) {
  LGPU_ASSIGN_OR_RETURN(PoolBlocks all, pool.Blocks(std::numeric_limits<std::uint64_t>::max()));
  SortByOffset(all.blocks);
  std::vector<Run> runs;
  for (const BlockCopy& block : all.blocks) {
    if (PoolBlocks::StateOf(block) != BlockState::kLive) continue;
    std::byte* const address = all.about.base + PoolBlocks::OffsetOf(block).count();
    if (!runs.empty() && runs.back().address + runs.back().bytes.count() == address) {
      runs.back().bytes += PoolBlocks::BytesOf(block);
    } else {
      runs.push_back({address, PoolBlocks::BytesOf(block)});
    }
  }
  return runs;
}

absl::Status SavedContents::Reserve(Bytes bytes) {
  bytes_ = bytes;
  if (bytes.is_zero()) return absl::OkStatus();
  LGPU_RETURN_IF_ERROR(CheckHostMemory({::getpid()}, bytes));
  void* const memory =
      ::mmap(nullptr, bytes.count(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return absl::ResourceExhaustedError(FormatBytes(bytes) +
                                        " of host memory are needed, and the system gives this process no "
                                        "more");
  }
  // One page fault for 2 MiB; a kernel without such pages is left with small ones.
  (void)::madvise(memory, bytes.count(), MADV_HUGEPAGE);
  memory_ = std::unique_ptr<std::byte, Unmap>(static_cast<std::byte*>(memory), Unmap{bytes});
  return absl::OkStatus();
}

absl::StatusOr<SavedContents> SavedContents::Copy(const DevicePool& pool, DeviceWork& backend,
                                                  StreamHandle stream) {
  SavedContents saved;
  LGPU_ASSIGN_OR_RETURN(saved.runs_, LiveRuns(pool));
  Bytes sum;
  for (const Run& run : saved.runs_) sum += run.bytes;
  LGPU_RETURN_IF_ERROR(saved.Reserve(sum));
  std::byte* to = saved.memory_.get();
  for (const Run& run : saved.runs_) {
    LGPU_RETURN_IF_ERROR(backend.CopyToHost(stream, to, run.address, run.bytes));
    to += run.bytes.count();
  }
  return saved;
}

// No block is new since Copy: each run of now lies in one of then.
absl::Status SavedContents::Restore(const DevicePool& pool, DeviceWork& backend, StreamHandle stream) const {
  LGPU_ASSIGN_OR_RETURN(const std::vector<Run> now, LiveRuns(pool));
  const std::byte* from = memory_.get();
  std::size_t next = 0;
  for (const Run& saved : runs_) {
    for (; next < now.size() && now[next].address < saved.address + saved.bytes.count(); ++next) {
      LGPU_RETURN_IF_ERROR(backend.CopyToDevice(stream, now[next].address,
                                                from + (now[next].address - saved.address), now[next].bytes));
    }
    from += saved.bytes.count();
  }
  return absl::OkStatus();
}

}  // namespace lgpu
