#ifndef LGPU_TESTS_PROTO_PEER_PROCESS_H_
#define LGPU_TESTS_PROTO_PEER_PROCESS_H_

#include <string>
#include <utility>
#include <vector>

#include "base/spawn.h"

namespace lgpu {

/// Starts a proto_test_peer with a page as its descriptor 3; a process of none if that fails.
inline SpawnedProcess StartPeer(int page_fd, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), LGPU_PROTO_TEST_PEER);
  absl::StatusOr<SpawnedProcess> peer =
      SpawnedProcess::Start({.argv = std::move(arguments), .descriptors = {{page_fd, 3}}});
  return peer.ok() ? *std::move(peer) : SpawnedProcess();
}

}  // namespace lgpu

#endif  // LGPU_TESTS_PROTO_PEER_PROCESS_H_
