#include "cli/event_lines.h"

#include <string_view>

#include "absl/strings/str_cat.h"
#include "cli/output.h"

namespace lgpu::cli {

std::string FormatEvent(const v1::Event& event) {
  // The lines of an explanation stay together, under the first one; nothing else of a text may break lines.
  std::string text;
  for (std::string_view rest = event.text(); !rest.empty();) {
    const std::size_t end = rest.find('\n');
    absl::StrAppend(&text, text.empty() ? "" : "\n    ", Printable(rest.substr(0, end)));
    rest = end == std::string_view::npos ? "" : rest.substr(end + 1);
  }
  const std::string lease = event.lease_name().empty() ? event.lease_id() : event.lease_name();
  return absl::StrCat(FormatClock(event.at()), "  ", lease.empty() ? "-" : Printable(lease), "  ", text,
                      "\n");
}

}  // namespace lgpu::cli
