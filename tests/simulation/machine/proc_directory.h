#ifndef LGPU_TESTS_SIMULATION_MACHINE_PROC_DIRECTORY_H_
#define LGPU_TESTS_SIMULATION_MACHINE_PROC_DIRECTORY_H_

#include <string>
#include <vector>

#include "tests/simulation/machine/descriptors.h"

namespace lgpu::simulation {

/// A folder of /proc that is open: its names as they were then.
class ProcDirectory final : public Descriptor {
 public:
  explicit ProcDirectory(std::vector<std::string> all) : names(std::move(all)) {}
  short Ready() const override { return 0; }
  const std::vector<std::string> names;
};

/// A real descriptor of a file with that text, at its start; -1 and errno.
int RealTextFile(const std::string& text);

}  // namespace lgpu::simulation

#endif  // LGPU_TESTS_SIMULATION_MACHINE_PROC_DIRECTORY_H_
