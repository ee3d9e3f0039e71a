#ifndef LGPU_ALLOCATOR_DEVICE_MEMORY_TABLE_H_
#define LGPU_ALLOCATOR_DEVICE_MEMORY_TABLE_H_

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "allocator/device/device_memory.h"
#include "allocator/device/handle_table.h"
#include "base/check.h"
#include "lgpu/status.h"

namespace lgpu {

/// A MemoryTable keeps the chunks that a backend gives MemoryHandles of, and which of them are mapped. A
/// chunk is mapped at most once, and leaves the table only unmapped. Thread-safe. Errors: NOT_FOUND for an
/// unknown handle; FAILED_PRECONDITION for a chunk that is mapped.
template <typename Chunk>
class MemoryTable {
 public:
  absl::StatusOr<MemoryHandle> Insert(std::shared_ptr<Chunk> chunk) {
    return table_.Insert({.chunk = std::move(chunk)});
  }
  absl::StatusOr<std::shared_ptr<Chunk>> Find(MemoryHandle memory) const {
    LGPU_ASSIGN_OR_RETURN(Entry entry, table_.Find(memory));
    return std::move(entry.chunk);
  }
  absl::StatusOr<std::shared_ptr<Chunk>> FindUnmapped(MemoryHandle memory) const {
    LGPU_ASSIGN_OR_RETURN(Entry entry, table_.Find(memory));
    LGPU_RETURN_IF_ERROR(CheckUnmapped(memory, entry));
    return std::move(entry.chunk);
  }
  absl::StatusOr<std::shared_ptr<Chunk>> RemoveUnmapped(MemoryHandle memory) {
    LGPU_ASSIGN_OR_RETURN(Entry entry, table_.RemoveIf(memory, [memory](const Entry& found) {
      return CheckUnmapped(memory, found);
    }));
    return std::move(entry.chunk);
  }
  /// Claims the chunk for a mapping that is about to be made.
  absl::StatusOr<std::shared_ptr<Chunk>> SetMapped(MemoryHandle memory) {
    std::shared_ptr<Chunk> chunk;
    LGPU_RETURN_IF_ERROR(table_.Update(memory, [&](Entry& entry) {
      if (entry.mapped) {
        return absl::FailedPreconditionError(
            absl::StrCat("map: memory handle ", memory.value, " is mapped already; unmap it first"));
      }
      entry.mapped = true;
      chunk = entry.chunk;
      return absl::OkStatus();
    }));
    return chunk;
  }
  /// The mapping is gone, or could not be made.
  void SetUnmapped(MemoryHandle memory) {
    const absl::Status status = table_.Update(memory, [](Entry& entry) {
      entry.mapped = false;
      return absl::OkStatus();
    });
    LGPU_CHECK(status.ok());
  }
  /// As HandleTable::Forget.
  void Forget() { table_.Forget(); }
  /// Drops all chunks, mapped or not.
  void Clear() {
    for (const auto& [memory, entry] : table_.All()) table_.Remove(memory).IgnoreError();
  }

 private:
  static constexpr std::size_t kMostChunks = std::size_t{1} << 22;  // 8 TiB in chunks of 2 MiB
  struct Entry {
    std::shared_ptr<Chunk> chunk = {};
    bool mapped = false;
  };
  static absl::Status CheckUnmapped(MemoryHandle memory, const Entry& entry) {
    if (!entry.mapped) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("memory handle ", memory.value, " is still mapped here; unmap it first"));
  }

  HandleTable<MemoryHandle, Entry, kMostChunks> table_{
      {.what = "memory handle", .end = "release", .ended = "released"}};
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_DEVICE_MEMORY_TABLE_H_
