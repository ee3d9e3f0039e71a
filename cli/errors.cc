#include "cli/errors.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/refusal_json.h"
#include "base/refusal_text.h"
#include "base/wrapped_text.h"
#include "lgpu/refusal.h"
#include "proto/messages_json.h"

namespace lgpu::cli {
namespace {

std::string Text(const absl::Status& status) {
  if (const std::optional<Refusal> refusal = GetRefusal(status)) {
    return RefusalHeadline(*refusal) + RefusalDetails(*refusal);
  }
  if (status.message().empty()) return "no further explanation";
  return std::string(status.message());
}

/// The first line of a refusal, with its code, goes on below where it is too long for a terminal: before the
/// lease or the device, or else before any word.
std::size_t FirstLineEnd(std::string_view line, std::size_t around) {
  std::size_t end = line.size();
  for (const std::string_view part : {" of lease ", " for lease ", " for /", " on /"}) {
    if (end + around <= kTextColumns) break;
    if (const std::size_t at = line.rfind(part, end); at != std::string_view::npos) end = at;
  }
  if (end + around <= kTextColumns) return end;
  const std::size_t blank = line.rfind(' ', kTextColumns - around);
  return blank == std::string_view::npos ? end : blank;
}

}  // namespace

std::string FormatError(const absl::Status& status, const Style& style) {
  const std::vector<std::string> lines =
      absl::StrSplit(std::string(absl::StripTrailingAsciiWhitespace(Text(status))), '\n');
  const std::string code = absl::StrCat(" [", absl::StatusCodeToString(status.code()), "]");
  const std::string first = Printable(lines[0]);
  const std::size_t end = GetRefusal(status).has_value()
                              ? FirstLineEnd(first, std::string_view("lgpu: error: ").size() + code.size())
                              : first.size();
  std::string text = absl::StrCat("lgpu: ", style.Red("error:"), " ", first.substr(0, end), code, "\n");
  if (end < first.size()) {
    AppendWrapped(text.append("  "), first.substr(end + 1), 2, 2);
    text += '\n';
  }
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
