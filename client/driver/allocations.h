#ifndef LGPU_CLIENT_DRIVER_ALLOCATIONS_H_
#define LGPU_CLIENT_DRIVER_ALLOCATIONS_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "client/driver/address_table.h"
#include "client/driver/charges.h"
#include "client/driver/light_locks.h"

namespace lgpu::shim {

struct PoolBook;

/// The driver uses the numbers of contexts again. A new era begins before a context may end: what was made in
/// an earlier era belonged to that context, and what is made later belongs to another one with its number.
using Era = std::uint64_t;

/// One allocation that the driver made and that is charged.
struct Allocation {
  Charge charge;
  void* context = nullptr;         // dies with this context; null: with none
  Era era = 0;                     // in which it was made
  std::shared_ptr<PoolBook> pool;  // a stream-ordered one: `charge.bytes` of this pool
  bool is_exported = false;        // another process may have opened it
  int opened = 0;                  // above 0: another process's, not charged here, and opened so often
  /// The most that the driver has in use for it.
  std::uint64_t memory_bytes() const { return RoundUp(charge.bytes, kBlock); }
};

/// Allocations has the charge of each address and array handle. Thread-safe.
class Allocations {
 public:
  /// The earlier allocation of `key`, if there is one: its memory is gone, else the driver would not have
  /// made another one there.
  std::optional<Allocation> Add(std::uint64_t key, Allocation&& allocation);
  /// The same of memory that belongs to no pool; it is written where it stays.
  std::optional<Allocation> Add(std::uint64_t key, const Charge& charge, void* context, Era era);
  /// Taken out before the driver frees it: its address may be used again at once. Nothing: not the shim's.
  std::optional<Allocation> Remove(std::uint64_t key);
  /// Another process may open it from now on. The allocation where that is new; nothing: not the shim's.
  std::optional<Allocation> SetExported(std::uint64_t key);
  /// Another process's memory was opened at `key`. True: it was not open before.
  bool AddImport(std::uint64_t key, void* context, Era era);
  /// Takes out one opening, before the driver closes it. Nothing: none is known.
  struct Opening {
    void* context = nullptr;
    Era era = 0;
    bool was_last = false;
  };
  std::optional<Opening> TakeImport(std::uint64_t key);
  /// All that die with `context`, which ended after the era `last`.
  std::vector<Allocation> RemoveOfContext(const void* context, Era last);

 private:
  struct alignas(64) Shard {
    LightMutex mutex;
    AddressTable<Allocation> known;
  };
  static constexpr std::size_t kShards = 16;
  Shard& Of(std::uint64_t key) { return shards_[(key >> 9 ^ key >> 21) % kShards]; }
  std::array<Shard, kShards> shards_;
};

/// Handles knows the memory of cuMemCreate, which lives as long as a handle, a mapping or a binding of it.
/// Thread-safe.
class Handles {
 public:
  void Created(std::uint64_t handle, Device device, const Charge& charge);
  /// A multicast object, which has no memory of its own. It keeps memory bound to it until its last handle or
  /// mapping is gone; an object that another process may have keeps it until this process ends.
  void CreatedMulticast(std::uint64_t object);
  /// Another reference to a handle's memory, by an address where it is mapped.
  void Retained(std::uint64_t handle, std::uint64_t address);
  void Mapped(std::uint64_t address, std::uint64_t bytes, std::uint64_t handle);
  /// The memory may outlive this process's handles and mappings of it, so it stays charged. The charge where
  /// that is new; nothing: not the shim's.
  std::optional<Charge> Exported(std::uint64_t handle);
  /// A handle of another process's memory, which is charged there, or of its multicast object. kNoDevice: the
  /// driver does not tell its device. False: its memory is known here.
  bool Imported(std::uint64_t handle, Device device);

  /// A part of a sparse array, in numbers that tell its parts apart.
  using Part = std::array<std::uint64_t, 5>;
  /// The handle's memory is mapped into a part of an array, which dies with `context`.
  void Bound(std::uint64_t array, const Part& part, std::uint64_t handle, const void* context, Era era);
  /// The handle's memory, or that of the mappings in a range of addresses, is bound to a multicast object.
  void BoundToMulticast(std::uint64_t object, std::uint64_t offset, std::uint64_t bytes,
                        std::uint64_t handle);
  void BoundMappings(std::uint64_t object, std::uint64_t offset, std::uint64_t bytes, std::uint64_t address);

  struct Memory;
  struct MulticastBinding {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    std::shared_ptr<Memory> memory;
  };
  /// Memory counts its references. A call's references are taken out before the call, because the driver may
  /// use numbers and addresses again at once; they are put back where the driver refused, else dropped.
  struct Memory {
    Charge charge;
    Device device = kNoDevice;
    int references = 0;  // handles, mappings and bindings
    bool is_exported = false;
    bool is_import = false;
    std::vector<MulticastBinding> bound;  // to a multicast object, which this is then
  };
  struct Reference {
    std::uint64_t number = 0;  // of the handle or the array, or the mapping's address
    std::uint64_t bytes = 0;   // of a mapping
    std::shared_ptr<Memory> memory;
    Part part{};  // of a binding
    const void* context = nullptr;
    Era era = 0;
  };
  using References = std::vector<Reference>;
  References TakeHandle(std::uint64_t handle);
  References TakeMappings(std::uint64_t address, std::uint64_t bytes);
  /// The memory mapped into one part of the array, and into all of its parts.
  References TakeBinding(std::uint64_t array, const Part& part);
  References TakeBindings(std::uint64_t array);
  /// The memory mapped into arrays that died with `context`, which ended after the era `last`.
  References TakeBindingsOfContext(const void* context, Era last);
  /// The device's memory that is bound to the object and lies wholly within the range.
  References TakeFromMulticast(std::uint64_t object, Device device, std::uint64_t offset,
                               std::uint64_t bytes);
  void PutHandleBack(const References& taken);
  void PutMappingsBack(const References& taken);
  void PutBindingsBack(const References& taken);
  /// The memory that lost its last reference.
  struct Dropped {
    std::vector<Charge> charges;
    std::uint64_t imports = 0;
  };
  Dropped Drop(const References& taken);

 private:
  struct Mapping {
    std::uint64_t bytes = 0;
    std::shared_ptr<Memory> memory;
  };
  struct Handle {
    int references = 0;
    std::shared_ptr<Memory> memory;
  };

  struct Binding {
    Part part;
    std::shared_ptr<Memory> memory;
    const void* context = nullptr;
    Era era = 0;
  };
  /// The first mapping that ends after `address`.
  std::map<std::uint64_t, Mapping>::iterator MappingAt(std::uint64_t address);
  /// One reference of `memory` is gone. The last one of a multicast object drops the memory bound to it too.
  static void Drop(Memory& memory, Dropped& dropped);

  std::mutex mutex_;
  std::unordered_map<std::uint64_t, Handle> handles_;
  std::map<std::uint64_t, Mapping> mappings_;
  std::unordered_multimap<std::uint64_t, Binding> bindings_;  // by array
};

}  // namespace lgpu::shim

#endif  // LGPU_CLIENT_DRIVER_ALLOCATIONS_H_
