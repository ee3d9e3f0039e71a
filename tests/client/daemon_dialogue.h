#ifndef LGPU_TESTS_CLIENT_DAEMON_DIALOGUE_H_
#define LGPU_TESTS_CLIENT_DAEMON_DIALOGUE_H_

// The dialogue between a DaemonConnection and a fake daemon, for tests.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "client/session/daemon_connection.h"
#include "tests/client/fake_daemon.h"

namespace lgpu::testing {

inline constexpr std::uint64_t kDevice = 1;

inline std::string Text(const absl::Status& status) { return std::string(status.message()); }

inline GrowRequest Ask(Bytes bytes) { return {.at_least = bytes, .wanted = bytes}; }

/// The pages of a whole answer, as ids.
inline absl::StatusOr<std::vector<std::uint64_t>> GrowAll(DaemonConnection& connection, Bytes bytes,
                                                          std::chrono::nanoseconds timeout = {}) {
  GrowRequest request = Ask(bytes);
  request.timeout = timeout;
  absl::StatusOr<DaemonConnection::GrowCall> call = connection.Grow(kDevice, request);
  if (!call.ok()) return call.status();
  std::vector<std::uint64_t> ids;
  for (bool more = true; more;) {
    absl::StatusOr<DaemonConnection::GrantPage> page = call->Next();
    if (!page.ok()) return page.status();
    for (const auto& chunk : page->chunks) {
      EXPECT_TRUE(static_cast<bool>(chunk.fd));
      ids.push_back(chunk.chunk.id.value);
    }
    more = page->more;
  }
  return ids;
}

/// Answers Grow, Return and Close as a daemon with no limits would, until the session ends.
inline void ServeAll(FakePeer& peer) {
  peer.Greet();
  std::uint64_t next_id = 1;
  while (true) {
    const v1::Frame frame = peer.Read();
    if (frame.has_grow()) {
      const auto count = static_cast<int>(frame.grow().at_least_bytes() >> 21);
      peer.Grant({.request = frame.grow().request_id(), .first_id = next_id, .count = count});
      next_id += static_cast<std::uint64_t>(count);
    } else if (frame.has_return_chunks()) {
      peer.Returned(frame.return_chunks().request_id());
    } else if (frame.has_close()) {
      peer.Closed(frame.close().request_id());
    } else if (!frame.has_ack()) {
      return;
    }
  }
}

}  // namespace lgpu::testing

#endif  // LGPU_TESTS_CLIENT_DAEMON_DIALOGUE_H_
