#include "cli/errors.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "lgpu/refusal.h"
#include "proto/messages_json.h"

namespace lgpu::cli {
namespace {

std::string Text(const absl::Status& status) {
  if (const std::optional<Refusal> refusal = GetRefusal(status)) return FormatRefusal(*refusal);
  if (status.message().empty()) return "no further explanation";
  return std::string(status.message());
}

}  // namespace

std::string FormatError(const absl::Status& status, const Style& style) {
  const std::vector<std::string> lines =
      absl::StrSplit(std::string(absl::StripTrailingAsciiWhitespace(Text(status))), '\n');
  std::string text = absl::StrCat("lgpu: ", style.Red("error:"), " ", Printable(lines[0]), " [",
                                  absl::StatusCodeToString(status.code()), "]\n");
  for (std::size_t i = 1; i < lines.size(); ++i) {
    const bool indented = lines[i].empty() || absl::StartsWith(lines[i], " ");
    absl::StrAppend(&text, indented ? "" : "  ", Printable(lines[i]), "\n");
  }
  return text;
}

nlohmann::json ErrorToJson(const absl::Status& status, int exit_code) {
  nlohmann::json json = {{"schema", "lgpu.error/v1"},
                         {"code", absl::StatusCodeToString(status.code())},
                         {"message", std::string(status.message())},
                         {"exit_code", exit_code}};
  if (const std::optional<Refusal> refusal = GetRefusal(status)) json["refusal"] = RefusalToJson(*refusal);
  return json;
}

}  // namespace lgpu::cli
