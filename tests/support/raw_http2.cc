#include "tests/support/raw_http2.h"

#include <poll.h>
#include <sys/socket.h>

#include <utility>

namespace lgpu {
namespace {

constexpr std::uint8_t kData = 0;
constexpr std::uint8_t kHeaders = 1;
constexpr std::uint8_t kSettings = 4;
constexpr std::uint8_t kEndStream = 1;
constexpr std::uint8_t kEndHeaders = 4;
constexpr std::uint16_t kInitialWindowSize = 4;

void AppendNumber(std::string& out, std::uint64_t number, int bytes) {
  for (int i = bytes - 1; i >= 0; --i) out.push_back(static_cast<char>(number >> (8 * i)));
}

// A header field "without indexing", both texts literal (RFC 7541, 6.2.2).
void AppendField(std::string& out, std::string_view name, std::string_view value) {
  out.push_back(0);
  for (const std::string_view text : {name, value}) {
    out.push_back(static_cast<char>(text.size()));  // all are shorter than 127 bytes
    out += text;
  }
}

}  // namespace

RawHttp2::RawHttp2(UniqueFd socket, std::uint32_t window) : socket_(std::move(socket)) {
  Send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
  std::string settings;
  AppendNumber(settings, kInitialWindowSize, 2);
  AppendNumber(settings, window, 4);
  SendFrame(kSettings, 0, 0, settings);
}

void RawHttp2::StartCall(std::string_view method) {
  stream_ += stream_ == 0 ? 1 : 2;
  std::string fields;
  AppendField(fields, ":method", "POST");
  AppendField(fields, ":scheme", "http");
  AppendField(fields, ":path", "/lgpu.v1.Control/" + std::string(method));
  AppendField(fields, ":authority", "lgpud");
  AppendField(fields, "te", "trailers");
  AppendField(fields, "content-type", "application/grpc");
  SendFrame(kHeaders, kEndHeaders, stream_, fields);
}

void RawHttp2::SendData(std::string_view data, bool ends) {
  constexpr std::size_t kMostOfAFrame = 16'384;
  while (data.size() > kMostOfAFrame) {
    SendFrame(kData, 0, stream_, data.substr(0, kMostOfAFrame));
    data.remove_prefix(kMostOfAFrame);
  }
  SendFrame(kData, ends ? kEndStream : 0, stream_, data);
}

std::string RawHttp2::MessageHeader(std::uint32_t length) {
  std::string header(1, '\0');  // not compressed
  AppendNumber(header, length, 4);
  return header;
}

void RawHttp2::SendFrame(std::uint8_t type, std::uint8_t flags, std::uint32_t stream,
                         std::string_view payload) {
  std::string frame;
  AppendNumber(frame, payload.size(), 3);
  AppendNumber(frame, type, 1);
  AppendNumber(frame, flags, 1);
  AppendNumber(frame, stream, 4);
  frame += payload;
  Send(frame);
}

void RawHttp2::Send(std::string_view bytes) {
  constexpr int kPatienceMs = 20;
  while (!broken_ && !bytes.empty()) {
    const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
      continue;
    }
    pollfd entry = {.fd = socket_.get(), .events = POLLOUT, .revents = 0};
    broken_ = ::poll(&entry, 1, kPatienceMs) != 1 || (entry.revents & POLLHUP) != 0;
  }
}

}  // namespace lgpu
