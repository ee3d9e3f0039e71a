// Any bytes as any message: protobuf's generated code and lgpu's own codec refuse them both, or read the
// same.
//
// Input: byte 0 says which message (modulo their number), the rest is its bytes.

#include <google/protobuf/stubs/logging.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "base/check.h"
#include "proto/every_message.h"
#include "tests/support/codec_comparison.h"

namespace lgpu {
namespace {

// protobuf writes a line for every string that is not UTF-8.
[[maybe_unused]] google::protobuf::LogHandler* const kQuiet = google::protobuf::SetLogHandler(nullptr);

void RunOne(std::size_t chosen, std::string_view bytes) {
  std::size_t count = 0;
  ForEachWireMessage([&]<typename Wire, typename Generated>() { ++count; });
  std::size_t index = 0;
  ForEachWireMessage([&]<typename Wire, typename Generated>() {
    if (index++ != chosen % count) return;
    const std::string difference = testing::CompareCodecs<Wire, Generated>(bytes);
    if (!difference.empty()) std::fprintf(stderr, "%s\n", difference.c_str());
    LGPU_CHECK(difference.empty());
  });
}

}  // namespace
}  // namespace lgpu

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > 0 && size <= 64 * 1024) {
    lgpu::RunOne(data[0], {reinterpret_cast<const char*>(data + 1), size - 1});
  }
  return 0;
}
