#include "python/module/dicts.h"

#include <nanobind/stl/string.h>

namespace lgpu::python {

namespace nb = nanobind;

nb::dict DictOf(const LogicalDeviceInfo& device) {
  nb::dict dict;
  dict["name"] = device.name;
  dict["memory_limit"] = device.memory_limit.count();
  dict["guarantee"] = device.guarantee.count();
  dict["mode"] = device.mode == MemoryMode::kGrowth ? "growth" : "preallocate";
  dict["card_uuid"] = device.card_uuid;
  dict["card_name"] = device.card_name;
  dict["pci_bus_id"] = device.pci_bus_id;
  dict["card_index"] = device.card_index;
  dict["compute_capability"] = nb::make_tuple(device.compute_major, device.compute_minor);
  dict["simulated"] = device.simulated;
  return dict;
}

nb::dict DictOf(const MemoryStats& stats) {
  nb::dict dict;
  dict["limit"] = stats.limit.count();
  dict["requested"] = stats.requested.count();
  dict["used"] = stats.used.count();
  dict["peak_used"] = stats.peak_used.count();
  dict["held"] = stats.held.count();
  dict["workspace"] = stats.workspace.count();
  dict["idle"] = stats.idle.count();
  dict["cached"] = stats.cached.count();
  dict["fenced"] = stats.fenced.count();
  dict["slack"] = stats.slack().count();
  dict["largest_free_block"] = stats.largest_free_block.count();
  dict["fragmentation"] = stats.Fragmentation();
  dict["live_blocks"] = stats.live_blocks;
  dict["num_allocs"] = stats.num_allocs;
  dict["num_refusals"] = stats.num_refusals;
  return dict;
}

}  // namespace lgpu::python
