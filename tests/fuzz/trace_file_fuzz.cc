// Any file is a possible trace, or an error; a trace that is written reads as the same trace.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "tools/trace_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto reading = lgpu::ParseTrace(text, {.name = "input"});
  if (!reading.ok()) {
    LGPU_CHECK(!reading.status().message().empty());
    return 0;
  }
  LGPU_CHECK(lgpu::bench::Validate(reading->trace).ok());
  const auto again =
      lgpu::ParseTrace(lgpu::FormatTrace(reading->trace, lgpu::TraceFormat::kLifetimes), {.name = "again"});
  LGPU_CHECK(again.ok());
  LGPU_CHECK(lgpu::bench::Summarize(again->trace).hash == lgpu::bench::Summarize(reading->trace).hash);
  return 0;
}
