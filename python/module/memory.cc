#include "python/module/memory.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>
#include <string>

#include "lgpu/memory_snapshot.h"
#include "python/module/bind.h"
#include "python/module/dicts.h"
#include "python/module/scopes.h"

namespace lgpu::python {

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace {

void* Pointer(std::uintptr_t value) { return reinterpret_cast<void*>(value); }

// A call without the interpreter's lock, which lets the memory go without it, too, if Python did meanwhile.
template <typename Call>
auto WaitingOn(const PyMemory& self, Call&& call) {
  std::shared_ptr<const LogicalMemory> memory = self.get();
  return Waiting([&] {
    const auto own = std::move(memory);
    return call(*own);
  });
}

absl::Status Free(const PyMemory& self, void* address, void* stream) {
  return WaitingOn(self, [&](const LogicalMemory& memory) { return memory.Free(address, stream); });
}

// Takes ready memory with the interpreter's lock; a request that may wait goes without it.
std::uintptr_t Allocate(const PyMemory& self, std::uint64_t bytes, std::uintptr_t stream,
                        std::uint64_t alignment, const std::string& tag,
                        std::optional<std::int64_t> timeout_ms) {
  BlockOptions options{
      .stream = Pointer(stream), .alignment = Bytes(alignment), .tag = tag, .only_if_ready = true};
  if (timeout_ms) options.timeout = std::chrono::milliseconds(*timeout_ms);
  absl::StatusOr<Block> block = self.get()->Allocate(Bytes(bytes), options);
  if (absl::IsResourceExhausted(block.status())) {
    options.only_if_ready = false;
    try {
      WaitingOn(self, [&](const LogicalMemory& memory) {
        block = memory.Allocate(Bytes(bytes), options);
        return block.ok();
      });
    } catch (nb::python_error&) {
      if (block.ok()) Free(self, block->address, options.stream).IgnoreError();
      throw;
    }
  }
  return reinterpret_cast<std::uintptr_t>(Check(std::move(block)).address);
}

void BindBlocks(nb::class_<PyMemory>& type) {
  type.def("allocate", &Allocate, "nbytes"_a, "stream"_a, "alignment"_a, "tag"_a, "timeout_ms"_a.none())
      .def(
          "free",
          [](const PyMemory& self, std::uintptr_t address, std::uintptr_t stream) {
            Check(Free(self, Pointer(address), Pointer(stream)));
          },
          "address"_a, "stream"_a)
      .def(
          "use_on",
          [](const PyMemory& self, std::uintptr_t address, std::uintptr_t stream) {
            Check(WaitingOn(self, [&](const LogicalMemory& memory) {
              return memory.UseOn(static_cast<const void*>(Pointer(address)), Pointer(stream));
            }));
          },
          "address"_a, "stream"_a)
      .def(
          "forget_stream",
          [](const PyMemory& self, std::uintptr_t stream) {
            Check(WaitingOn(
                self, [&](const LogicalMemory& memory) { return memory.ForgetStream(Pointer(stream)); }));
          },
          "stream"_a)
      .def(
          "find",
          [](const PyMemory& self, std::uintptr_t address) {
            return Check(self.get()->Find(Pointer(address))).bytes.count();
          },
          "address"_a)
      .def("live_blocks", [](const PyMemory& self) {
        const LogicalMemory::LiveBlocks live = self.get()->live_blocks();
        return nb::make_tuple(live.blocks, live.bytes.count(), live.exported);
      });
}

void BindWhole(nb::class_<PyMemory>& type) {
  type.def("stats", [](const PyMemory& self) { return DictOf(Check(self.get()->GetStats())); })
      .def("snapshot_json",
           [](const PyMemory& self) {
             return SnapshotJson(
                 Check(WaitingOn(self, [](const LogicalMemory& memory) { return memory.Snapshot(); })));
           })
      .def("trim",
           [](const PyMemory& self) {
             return Check(WaitingOn(self, [](const LogicalMemory& memory) { return memory.Trim(); })).count();
           })
      .def(
          "resize",
          [](const PyMemory& self, std::uint64_t limit, std::optional<std::uint64_t> guarantee) {
            ResizeOptions options{.memory_limit = Bytes(limit)};
            if (guarantee) options.guarantee = Bytes(*guarantee);
            Check(WaitingOn(self, [&](const LogicalMemory& memory) { return memory.Resize(options); }));
          },
          "memory_limit"_a, "guarantee"_a.none())
      .def("close",
           [](const PyMemory& self) {
             CheckNotInSink();
             Check(WaitingOn(self, [](const LogicalMemory& memory) { return memory.Close(); }));
           })
      .def(
          "retire", [](PyMemory& self) { self.Retire(); }, "Lets the memory go, with blocks that are live.")
      .def_prop_ro("cuda_device", [](const PyMemory& self) { return self.get()->cuda_device(); })
      .def_prop_ro("device", [](const PyMemory& self) { return DictOf(self.get()->device()); })
      .def_prop_ro("lease", [](const PyMemory& self) { return self.get()->lease(); })
      .def_prop_ro("lease_name", [](const PyMemory& self) { return self.get()->lease_name(); });
}

}  // namespace

void BindMemory(nb::module_& module) {
  nb::class_<PyMemory> type(module, "Memory", nb::is_weak_referenceable(),
                            "The memory of one logical device; lgpu.LogicalMemory is made of it.");
  type.def(
      "__init__",
      [](PyMemory* self, std::optional<std::uint64_t> memory_limit, std::uint64_t guarantee, bool preallocate,
         std::string physical_device, std::string lease, int device_of_lease, std::string lease_name,
         std::string endpoint, std::optional<std::int64_t> allocation_timeout_ms, nb::object log_sink) {
        MemoryOptions options{.memory_limit = OptionalBytes(memory_limit),
                              .guarantee = Bytes(guarantee),
                              .mode = preallocate ? MemoryMode::kPreallocate : MemoryMode::kGrowth,
                              .physical_device = std::move(physical_device),
                              .lease = std::move(lease),
                              .device_of_lease = device_of_lease,
                              .lease_name = std::move(lease_name),
                              .endpoint = std::move(endpoint),
                              .log_sink = SinkOf(std::move(log_sink))};
        if (allocation_timeout_ms) {
          options.allocation_timeout = std::chrono::milliseconds(*allocation_timeout_ms);
        }
        new (self) PyMemory(Check(Waiting([&] { return LogicalMemory::Open(options); })));
      },
      "memory_limit"_a.none(), "guarantee"_a, "preallocate"_a, "physical_device"_a, "lease"_a,
      "device_of_lease"_a, "lease_name"_a, "endpoint"_a, "allocation_timeout_ms"_a.none(), "log_sink"_a);
  type.def(
      "__init__",
      [](PyMemory* self, PyContext& context, const std::string& device) {
        new (self) PyMemory(Check(context.get().Memory(device)));
      },
      "context"_a, "device"_a);
  BindBlocks(type);
  BindWhole(type);
}

}  // namespace lgpu::python
