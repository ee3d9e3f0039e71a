#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/ascii.h"
#include "lgpu/device_name.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

char Upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }
std::string Upper(std::string_view text) {
  std::string upper(text);
  for (char& c : upper) c = Upper(c);
  return upper;
}

absl::Status NotANumber(std::string_view text) {
  return absl::InvalidArgumentError("invalid literal for int() with base 10: '" + std::string(text) + "'");
}

/// Python's int(): blanks around, a sign, single underscores between digits.
absl::StatusOr<int> ReadInt(std::string_view text) {
  const auto is_blank = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
  std::string_view rest = text;
  while (!rest.empty() && is_blank(rest.front())) rest.remove_prefix(1);
  while (!rest.empty() && is_blank(rest.back())) rest.remove_suffix(1);
  const bool negative = !rest.empty() && rest.front() == '-';
  if (!rest.empty() && (negative || rest.front() == '+')) rest.remove_prefix(1);
  long long value = 0;
  bool after_digit = false;
  for (const char c : rest) {
    if (c == '_' && after_digit) {
      after_digit = false;
      continue;
    }
    if (!absl::ascii_isdigit(static_cast<unsigned char>(c))) return NotANumber(text);
    after_digit = true;
    value = value * 10 + (c - '0');
    if (value > std::numeric_limits<int>::max()) {
      return absl::InvalidArgumentError("the number " + std::string(text) +
                                        " is too large for a device name");
    }
  }
  if (!after_digit) return NotANumber(text);
  return static_cast<int>(negative ? -value : value);
}

bool IsKnownType(std::string_view word) {
  static constexpr std::array<std::string_view, 5> kTypes = {"CPU", "GPU", "TPU", "CUSTOM", "EPU"};
  return std::find(kTypes.begin(), kTypes.end(), Upper(word)) != kTypes.end();
}

absl::Status SetType(std::string_view spec, std::string_view type, std::string_view index, DeviceName& name) {
  if (name.type) {
    return absl::InvalidArgumentError(
        "Multiple device types are not allowed while parsing the device spec: " + std::string(spec) + ".");
  }
  name.type = std::string(type);
  if (index == "*") return absl::OkStatus();
  LGPU_ASSIGN_OR_RETURN(name.id, ReadInt(index));
  return absl::OkStatus();
}

/// Numbers that Python looks at once the whole text is read: the last one of each counts, and only that one.
struct Numbers {
  std::optional<std::string_view> replica;
  std::optional<std::string_view> task;
};

absl::Status ReadPiece(std::string_view spec, const std::vector<std::string_view>& fields, DeviceName& name,
                       Numbers& numbers) {
  const std::string_view first = fields[0];
  if (fields.size() == 2 && first == "job") {
    name.job = std::string(fields[1]);
  } else if (fields.size() == 2 && first == "replica") {
    numbers.replica = fields[1];
  } else if (fields.size() == 2 && first == "task") {
    numbers.task = fields[1];
  } else if (fields.size() <= 2 && IsKnownType(first)) {
    return SetType(spec, Upper(first), fields.size() == 2 ? fields[1] : "*", name);
  } else if (fields.size() == 3 && first == "device") {
    const bool lower = fields[1] == "cpu" || fields[1] == "gpu";
    return SetType(spec, lower ? Upper(fields[1]) : std::string(fields[1]), fields[2], name);
  } else if (!first.empty()) {
    return absl::InvalidArgumentError("Unknown attribute '" + std::string(first) +
                                      "' is encountered while parsing the device spec: '" +
                                      std::string(spec) + "'.");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DeviceName> ParseDeviceSpec(std::string_view text) {
  DeviceName name;
  Numbers numbers;
  for (const std::string_view piece : Split(text, '/')) {
    LGPU_RETURN_IF_ERROR(ReadPiece(text, Split(piece, ':'), name, numbers));
  }
  if (numbers.replica) {
    LGPU_ASSIGN_OR_RETURN(name.replica, ReadInt(*numbers.replica));
  }
  if (numbers.task) {
    LGPU_ASSIGN_OR_RETURN(name.task, ReadInt(*numbers.task));
  }
  return name;
}

absl::StatusOr<std::string> CanonicalDeviceSpec(std::string_view text, std::string_view base) {
  LGPU_ASSIGN_OR_RETURN(const DeviceName name, ParseDeviceSpec(text));
  LGPU_ASSIGN_OR_RETURN(const DeviceName base_name, ParseDeviceSpec(base));
  const DeviceName least{.job = "localhost", .replica = 0, .task = 0, .type = "CPU", .id = 0};
  return ToString(MergeUnset(MergeUnset(name, base_name), least));
}

}  // namespace lgpu
