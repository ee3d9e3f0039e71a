#ifndef LGPU_CLI_MANAGEMENT_FLAGS_H_
#define LGPU_CLI_MANAGEMENT_FLAGS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "lgpu/v1/control.pb.h"

namespace CLI {
class App;
}

namespace lgpu::cli {

/// The flags that say how a lease ends by itself, and those by which root makes a managed lease for a user.
struct ManagementFlags {
  bool managed = false;
  std::string owner = {};
  std::vector<std::string> labels = {};
  std::string time_to_live = {};
  std::string end_when_idle = {};
  std::string cgroup = {};

  void AddTo(CLI::App& verb);
  /// Fills the request in. INVALID_ARGUMENT names the flag that is wrong; NOT_FOUND: there is no such user.
  absl::Status AddTo(v1::CreateLeaseRequest& request) const;
  /// A note for the user where no cgroup can ever be at the folder of --end-with-cgroup.
  std::optional<std::string> NoteOnCgroup() const;
};

}  // namespace lgpu::cli

#endif  // LGPU_CLI_MANAGEMENT_FLAGS_H_
