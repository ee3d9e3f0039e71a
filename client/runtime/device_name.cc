#include "lgpu/device_name.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <ostream>
#include <utility>

#include "lgpu/status.h"

namespace lgpu {
namespace {

// Not the functions of <cctype>: they depend on the locale and on char's sign.
bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
char ToUpper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }
char ToLower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool Consume(std::string_view& rest, std::string_view prefix) {
  if (rest.substr(0, prefix.size()) != prefix) return false;
  rest.remove_prefix(prefix.size());
  return true;
}

// A letter, then letters, digits and underscores, up to one of `ends` or the end.
bool ConsumeWord(std::string_view& rest, std::string_view ends, std::optional<std::string>& word) {
  if (rest.empty() || !IsLetter(rest.front())) return false;
  std::size_t length = 1;
  for (; length < rest.size() && ends.find(rest[length]) == std::string_view::npos; ++length) {
    const char c = rest[length];
    if (!IsLetter(c) && !IsDigit(c) && c != '_') return false;
  }
  word = std::string(rest.substr(0, length));
  rest.remove_prefix(length);
  return true;
}

bool ConsumeNumber(std::string_view& rest, std::optional<int>& number) {
  if (rest.empty() || !IsDigit(rest.front())) return false;
  constexpr int kMost = std::numeric_limits<int>::max();
  int value = 0;
  for (; !rest.empty() && IsDigit(rest.front()); rest.remove_prefix(1)) {
    const int digit = rest.front() - '0';
    if (value > (kMost - digit) / 10) return false;
    value = value * 10 + digit;
  }
  number = value;
  return true;
}

bool ConsumeNumberOrAny(std::string_view& rest, std::optional<int>& number) {
  number.reset();
  return Consume(rest, "*") || ConsumeNumber(rest, number);
}

bool ConsumeWordOrAny(std::string_view& rest, std::string_view ends, std::optional<std::string>& word) {
  word.reset();
  return Consume(rest, "*") || ConsumeWord(rest, ends, word);
}

bool ConsumeLegacyType(std::string_view& rest, DeviceName& name) {
  for (const std::string_view prefix : {"/cpu:", "/CPU:", "/gpu:", "/GPU:"}) {
    if (!Consume(rest, prefix)) continue;
    name.type = ToUpper(prefix[1]) == 'C' ? "CPU" : "GPU";
    return true;
  }
  return false;
}

// One part of a full name, from its slash on.
bool ConsumePart(std::string_view& rest, DeviceName& name) {
  if (Consume(rest, "/job:")) return ConsumeWordOrAny(rest, "/", name.job);
  if (Consume(rest, "/replica:")) return ConsumeNumberOrAny(rest, name.replica);
  if (Consume(rest, "/task:")) return ConsumeNumberOrAny(rest, name.task);
  if (Consume(rest, "/device:")) {
    name.id.reset();
    return ConsumeWordOrAny(rest, "/:", name.type) &&
           (!Consume(rest, ":") || ConsumeNumberOrAny(rest, name.id));
  }
  return ConsumeLegacyType(rest, name) && ConsumeNumberOrAny(rest, name.id);
}

std::string TaskString(const DeviceName& name) {
  std::string text;
  if (name.job) text.append("/job:").append(*name.job);
  if (name.replica) text.append("/replica:").append(std::to_string(*name.replica));
  if (name.task) text.append("/task:").append(std::to_string(*name.task));
  return text;
}

bool IsWord(std::string_view text) {
  std::optional<std::string> word;
  return ConsumeWord(text, "", word);
}

template <typename T>
bool Specifies(const std::optional<T>& less, const std::optional<T>& more) {
  return !less || less == more;
}

template <typename T>
bool Compatible(const std::optional<T>& a, const std::optional<T>& b) {
  return !a || !b || *a == *b;
}

template <typename T>
void FillUnset(std::optional<T>& target, const std::optional<T>& other) {
  if (!target) target = other;
}

}  // namespace

std::optional<DeviceName> ParseFullName(std::string_view text) {
  DeviceName name;
  if (text == "/") return name;
  while (!text.empty()) {
    if (!ConsumePart(text, name)) return std::nullopt;
  }
  return name;
}

std::optional<DeviceName> ParseLocalName(std::string_view text) {
  DeviceName name;
  const bool ok = ConsumeWord(text, "/:", name.type) && Consume(text, ":") && ConsumeNumber(text, name.id);
  return ok && text.empty() ? std::optional(std::move(name)) : std::nullopt;
}

std::optional<DeviceName> ParseFullOrLocalName(std::string_view text) {
  std::optional<DeviceName> name = ParseFullName(text);
  return name ? name : ParseLocalName(text);
}

std::string ToString(const DeviceName& name) {
  std::string text = TaskString(name);
  if (name.type) {
    text.append("/device:").append(*name.type).append(":").append(name.id ? std::to_string(*name.id) : "*");
  }
  return text;
}

std::ostream& operator<<(std::ostream& out, const DeviceName& name) { return out << ToString(name); }

absl::StatusOr<std::string> FullName(const DeviceName& name) {
  if (!name.IsComplete()) {
    return absl::InvalidArgumentError("'" + ToString(name) +
                                      "' lacks a part of /job:J/replica:R/task:T/device:TYPE:ID");
  }
  if (!IsWord(*name.job)) return absl::InvalidArgumentError("'" + *name.job + "' is not the name of a job");
  if (!IsWord(*name.type)) return absl::InvalidArgumentError("'" + *name.type + "' is not a device type");
  if (*name.replica < 0 || *name.task < 0 || *name.id < 0) {
    return absl::InvalidArgumentError("'" + ToString(name) + "' has a number below zero");
  }
  return ToString(name);
}

absl::StatusOr<std::string> CanonicalizeDeviceName(std::string_view text, std::string_view base) {
  const std::optional<DeviceName> base_name = ParseFullName(base);
  if (!base_name) {
    return absl::InvalidArgumentError("Could not parse basename: " + std::string(base) +
                                      " into a device specification.");
  }
  if (!base_name->IsComplete()) {
    return absl::InvalidArgumentError("Basename: " + std::string(base) + " should be fully specified.");
  }
  std::optional<DeviceName> name = ParseLocalName(text);
  if (!name) name = ParseFullName(text);
  if (!name) {
    return absl::InvalidArgumentError("Could not parse " + std::string(text) +
                                      " into a device specification.");
  }
  return ToString(MergeUnset(*name, *base_name));
}

bool IsSpecification(const DeviceName& less, const DeviceName& more) {
  return Specifies(less.job, more.job) && Specifies(less.replica, more.replica) &&
         Specifies(less.task, more.task) && Specifies(less.type, more.type) && Specifies(less.id, more.id);
}

bool IsCompleteSpecification(const DeviceName& pattern, const DeviceName& name) {
  return name.IsComplete() && IsSpecification(pattern, name);
}

bool AreCompatible(const DeviceName& a, const DeviceName& b) {
  return Compatible(a.job, b.job) && Compatible(a.replica, b.replica) && Compatible(a.task, b.task) &&
         Compatible(a.type, b.type) && Compatible(a.id, b.id);
}

bool IsSameAddressSpace(const DeviceName& a, const DeviceName& b) {
  return a.job && a.replica && a.task && a.job == b.job && a.replica == b.replica && a.task == b.task;
}

absl::StatusOr<DeviceName> Merge(const DeviceName& target, const DeviceName& other,
                                 MergeConflicts conflicts) {
  // The text shows the target as far as it is merged, as TensorFlow's does.
  DeviceName merged = target;
  const auto incompatible = [&](std::string_view what) {
    return absl::InvalidArgumentError("Cannot merge devices with incompatible " + std::string(what) + ": '" +
                                      ToString(merged) + "' and '" + ToString(other) + "'");
  };
  if (!Compatible(target.job, other.job)) return incompatible("jobs");
  FillUnset(merged.job, other.job);
  if (!Compatible(target.replica, other.replica)) return incompatible("replicas");
  FillUnset(merged.replica, other.replica);
  if (!Compatible(target.task, other.task)) return incompatible("tasks");
  FillUnset(merged.task, other.task);
  if (!Compatible(target.type, other.type)) {
    if (conflicts == MergeConflicts::kError) return incompatible("types");
    if (conflicts == MergeConflicts::kDrop) {
      merged.type.reset();
      merged.id.reset();
      return merged;
    }
    merged.type = other.type;
  }
  FillUnset(merged.type, other.type);
  if (!Compatible(target.id, other.id)) {
    if (conflicts == MergeConflicts::kError) return incompatible("ids");
    if (conflicts == MergeConflicts::kDrop) {
      merged.id.reset();
      return merged;
    }
    merged.id = other.id;
  }
  FillUnset(merged.id, other.id);
  return merged;
}

DeviceName MergeUnset(const DeviceName& target, const DeviceName& other) {
  DeviceName merged = target;
  FillUnset(merged.job, other.job);
  FillUnset(merged.replica, other.replica);
  FillUnset(merged.task, other.task);
  FillUnset(merged.type, other.type);
  FillUnset(merged.id, other.id);
  return merged;
}

std::optional<SplitName> SplitDeviceName(std::string_view text) {
  const std::optional<DeviceName> name = ParseFullName(text);
  if (!name || !name->type || !name->id) return std::nullopt;
  return SplitName{TaskString(*name), *name->type + ":" + std::to_string(*name->id)};
}

bool FullNameLess(std::string_view a, std::string_view b) {
  const std::optional<DeviceName> name_a = ParseFullName(a);
  const std::optional<DeviceName> name_b = ParseFullName(b);
  if (name_a.has_value() != name_b.has_value()) return !name_a;
  return name_a ? *name_a < *name_b : a < b;
}

std::vector<std::string> LookupNames(const DeviceName& name) {
  std::vector<std::string> names;
  if (!name.type || !name.id) return names;
  const std::string id = ":" + std::to_string(*name.id);
  if (name.IsComplete()) {
    std::string lower = *name.type;
    std::transform(lower.begin(), lower.end(), lower.begin(), ToLower);
    names.push_back(ToString(name));
    names.push_back(TaskString(name) + "/" + lower + id);
  }
  names.push_back("/device:" + *name.type + id);
  names.push_back(*name.type + id);
  return names;
}

namespace {

absl::Status NotADeviceName(std::string_view text, std::string_view why) {
  constexpr std::size_t kShown = 128;
  std::string message = "'" + std::string(text.substr(0, kShown)) + (text.size() > kShown ? "..." : "");
  message.append("' is not a device name: ").append(why);
  message += "; write GPU:0, /device:GPU:0 or /job:localhost/replica:0/task:0/device:GPU:0";
  return absl::InvalidArgumentError(message);
}

// "CPU" or "GPU" for these words in any case; nothing for another.
std::optional<std::string> KnownType(std::string_view word) {
  std::string upper(word);
  std::transform(upper.begin(), upper.end(), upper.begin(), ToUpper);
  return upper == "CPU" || upper == "GPU" ? std::optional(std::move(upper)) : std::nullopt;
}

// A part that needs "device:" before it to become grammatical: "GPU", "gpu:1", "Cpu:*".
bool IsBareType(std::string_view part) { return KnownType(part.substr(0, part.find(':'))).has_value(); }

}  // namespace

absl::StatusOr<DeviceName> ParseLenientName(std::string_view text) {
  if (text.empty() || text == "/") return DeviceName();
  DeviceName name;
  // Without a first slash, "task:1" is a task and no device of the type "task".
  const std::optional<DeviceName> local = ParseLocalName(text);
  if (local && local->type != "replica" && local->type != "task") {
    name = *local;
  } else {
    std::string_view rest = text;
    Consume(rest, "/");
    bool has_type = false;
    for (bool more = true; more;) {
      const std::size_t slash = rest.find('/');
      const std::string_view part = rest.substr(0, slash);
      more = slash != std::string_view::npos;
      if (more) rest.remove_prefix(slash + 1);

      const bool bare = IsBareType(part);
      if (bare || part.substr(0, 7) == "device:") {
        if (has_type) return NotADeviceName(text, "it has two device types");
        has_type = true;
      }
      const std::string full = std::string(bare ? "/device:" : "/").append(part);
      std::string_view left = full;
      if (!ConsumePart(left, name) || !left.empty()) {
        return NotADeviceName(text, "cannot read '" + std::string(part.substr(0, 64)) + "'");
      }
    }
  }
  if (name.type) {
    if (std::optional<std::string> known = KnownType(*name.type)) name.type = std::move(known);
  }
  return name;
}

}  // namespace lgpu
