#ifndef LGPU_TESTS_SIMULATION_MACHINE_PATHS_H_
#define LGPU_TESTS_SIMULATION_MACHINE_PATHS_H_

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/simulation/machine/descriptors.h"

namespace lgpu::simulation {

/// The path by which this program reaches a file of the calling process: /proc/self/fd/N names the real
/// descriptor of N.
std::string RealPath(const std::string& path);

/// A path of the machine's /proc that leads to a process. Files of /proc beside those are this machine's own.
struct ProcPath {
  MachineProcess* process = nullptr;  // null: it is gone; or the path is /proc itself
  bool is_root = false;
  std::string rest;  // "maps"
};
/// Nothing: the path is none of the simulated ones.
std::optional<ProcPath> ParseProcPath(std::string_view path);

/// The text of a file in the folder of a process; nothing: there is no such file.
std::optional<std::string> ProcText(const ProcPath& path);
/// What fd/N or map_files/A-B stands for; null: nothing.
std::shared_ptr<Descriptor> ProcDescriptor(const ProcPath& path);
/// The target of the link fd/N.
std::string ProcLink(const Descriptor& descriptor);
/// The names in a folder of /proc; nothing: there is no such folder.
std::optional<std::vector<std::string>> ProcNames(const ProcPath& path);

/// The inode of a memfd as processes see it: equal in every run.
std::uint64_t NewInode(std::uint64_t real);
std::uint64_t SimulatedInode(std::uint64_t real);

}  // namespace lgpu::simulation

#endif  // LGPU_TESTS_SIMULATION_MACHINE_PATHS_H_
