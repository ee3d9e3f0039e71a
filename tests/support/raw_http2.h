#ifndef LGPU_TESTS_SUPPORT_RAW_HTTP2_H_
#define LGPU_TESTS_SUPPORT_RAW_HTTP2_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "base/unique_fd.h"

namespace lgpu {

/// A RawHttp2 is the client's end of an HTTP/2 connection (RFC 9113) that sends the caller's frames, also
/// frames that no honest gRPC client would send. It never reads. Nothing waits: bytes that do not fit into
/// the socket are dropped.
class RawHttp2 {
 public:
  /// `socket`: connected, non-blocking. `window`: the bytes of each answer that the server may send.
  RawHttp2(UniqueFd socket, std::uint32_t window);

  /// Starts a call of lgpu.v1.Control/`method` as stream 1, 3, 5, ...
  void StartCall(std::string_view method);
  /// Sends bytes of the last call's request; `ends`: its last ones.
  void SendData(std::string_view data, bool ends);
  /// The start of a gRPC message that says it has `length` bytes.
  static std::string MessageHeader(std::uint32_t length);

 private:
  void SendFrame(std::uint8_t type, std::uint8_t flags, std::uint32_t stream, std::string_view payload);
  void Send(std::string_view bytes);

  UniqueFd socket_;
  std::uint32_t stream_ = 0;
  bool broken_ = false;  // nothing more is sent
};

}  // namespace lgpu

#endif  // LGPU_TESTS_SUPPORT_RAW_HTTP2_H_
