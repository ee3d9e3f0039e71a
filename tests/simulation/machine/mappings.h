#ifndef LGPU_TESTS_SIMULATION_MACHINE_MAPPINGS_H_
#define LGPU_TESTS_SIMULATION_MACHINE_MAPPINGS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "tests/simulation/machine/descriptors.h"

namespace lgpu::simulation {

/// The memory that processes of the machine have mapped.
class Mappings {
 public:
  struct Mapping {
    std::uintptr_t end = 0;
    const MachineProcess* process = nullptr;
    OpenDescriptor<RealFile> file;  // null: of no file
    std::uint64_t number = 0;       // rises with each mapping
  };

  static Mappings& Get();
  void Add(std::uintptr_t start, std::size_t bytes, std::shared_ptr<RealFile> file);
  void Remove(std::uintptr_t start, std::size_t bytes);
  /// Unmaps what the process has mapped.
  void RemoveAll(const MachineProcess& process);
  /// The file that is mapped at this address; null: none.
  std::shared_ptr<RealFile> FileAt(std::uintptr_t start) const;
  const std::map<std::uintptr_t, Mapping>& all() const { return all_; }

 private:
  std::map<std::uintptr_t, Mapping> all_;  // by their starts
  std::uint64_t last_number_ = 0;
};

}  // namespace lgpu::simulation

#endif  // LGPU_TESTS_SIMULATION_MACHINE_MAPPINGS_H_
