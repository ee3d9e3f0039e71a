#include "tools/trace_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

using bench::Event;
using bench::Slot;
using bench::TraceBuilder;

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const std::size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

std::vector<std::string_view> Fields(std::string_view line) {
  std::vector<std::string_view> fields;
  for (std::size_t start = 0;;) {
    const std::size_t comma = line.find(',', start);
    fields.push_back(Trimmed(line.substr(start, comma - start)));
    if (comma == std::string_view::npos) return fields;
    start = comma + 1;
  }
}

// A file's text as messages show it: short, and harmless on a terminal.
std::string Shown(std::string_view text) {
  std::string shown = "'";
  for (const char c : text.substr(0, 40)) shown += c >= 0x20 && c < 0x7f ? c : '?';
  return shown + (text.size() > 40 ? "...'" : "'");
}

// "17" or, where it is an address, "0x7f00".
std::optional<std::uint64_t> NumberIn(std::string_view text) {
  int base = 10;
  if (text.size() > 2 && text[0] == '0' && (text[1] == 'x' || text[1] == 'X')) {
    text.remove_prefix(2);
    base = 16;
  }
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return number;
}

/// Lines of a table with a header, one after the other.
class Table {
 public:
  Table(std::string_view text, std::string name) : text_(text), name_(std::move(name)) {
    if (text_.starts_with("\xef\xbb\xbf")) text_.remove_prefix(3);
  }

  /// False at the end.
  bool NextLine() {
    while (!text_.empty()) {
      const std::size_t end = text_.find('\n');
      const std::string_view line = Trimmed(text_.substr(0, end));
      text_ = end == std::string_view::npos ? std::string_view() : text_.substr(end + 1);
      ++line_;
      if (!line.empty() && line[0] != '#') {
        fields_ = Fields(line);
        return true;
      }
    }
    return false;
  }
  std::uint64_t line() const { return line_; }
  const std::vector<std::string_view>& fields() const { return fields_; }

  absl::Status Error(std::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(name_, ":", line_, ": ", std::string(what)));
  }
  /// The column with one of these names in the current line, which is the header.
  std::optional<std::size_t> Column(std::initializer_list<std::string_view> names) const {
    for (std::size_t i = 0; i < fields_.size(); ++i) {
      if (std::find(names.begin(), names.end(), fields_[i]) != names.end()) return i;
    }
    return std::nullopt;
  }
  absl::StatusOr<std::string_view> Field(std::size_t column, std::string_view what) const {
    if (column >= fields_.size()) {
      return Error(absl::StrCat("there are ", fields_.size(), " columns, ", std::string(what),
                                " would be in column ", column + 1));
    }
    return fields_[column];
  }
  absl::StatusOr<std::uint64_t> Number(std::size_t column, std::string_view what) const {
    LGPU_ASSIGN_OR_RETURN(const std::string_view field, Field(column, what));
    const std::optional<std::uint64_t> number = NumberIn(field);
    if (!number) {
      return Error(absl::StrCat(std::string(what), " is ", Shown(field), ", not a number from 0 to 2^64-1"));
    }
    return *number;
  }

 private:
  std::string_view text_;
  const std::string name_;
  std::uint64_t line_ = 0;
  std::vector<std::string_view> fields_;
};

// ---- RMM's logs

class RmmLogReader {
 public:
  RmmLogReader(Table& table, std::string name) : table_(table), builder_(std::move(name), "a recorded log") {}

  absl::StatusOr<TraceReading> Read(std::size_t action, std::size_t pointer, std::size_t size) {
    while (table_.NextLine()) {
      LGPU_ASSIGN_OR_RETURN(const std::string_view what, table_.Field(action, "the action"));
      LGPU_ASSIGN_OR_RETURN(const std::uint64_t bytes, table_.Number(size, "the size"));
      if (what == "allocate failure") {
        ++reading_.recorded_refusals;
        continue;
      }
      if (what != "allocate" && what != "free") {
        return table_.Error(
            absl::StrCat("the action is ", Shown(what), ", not allocate, allocate failure or free"));
      }
      // A null pointer is written in several ways, and only for nothing.
      if (bytes == 0 && (what == "allocate" || table_.Number(pointer, "").value_or(0) == 0)) {
        ++reading_.empty_requests;
        continue;
      }
      LGPU_ASSIGN_OR_RETURN(const std::uint64_t address, table_.Number(pointer, "the pointer"));
      LGPU_RETURN_IF_ERROR(what == "allocate" ? Allocate(address, bytes) : Free(address, bytes));
    }
    reading_.never_freed = live_.size();
    reading_.trace = std::move(builder_).Finish();
    return std::move(reading_);
  }

 private:
  struct Live {
    Slot slot;
    std::uint64_t bytes;
    std::uint64_t line;
  };

  absl::Status Allocate(std::uint64_t address, std::uint64_t bytes) {
    const auto [place, is_new] = live_.try_emplace(address);
    if (!is_new) {
      return table_.Error(
          absl::StrCat("allocates address ", address, ", which is live since line ", place->second.line));
    }
    if (bytes > std::numeric_limits<std::uint64_t>::max() / 2 - live_bytes_) {
      return table_.Error("more than 2^63 bytes are live");
    }
    live_bytes_ += bytes;
    place->second = {builder_.Allocate(Bytes(bytes)), bytes, table_.line()};
    return absl::OkStatus();
  }
  absl::Status Free(std::uint64_t address, std::uint64_t bytes) {
    const auto found = live_.find(address);
    if (found == live_.end()) {
      ++reading_.unknown_frees;
      return absl::OkStatus();
    }
    if (bytes != 0 && bytes != found->second.bytes) {
      return table_.Error(absl::StrCat("frees ", bytes, " bytes of a block of ", found->second.bytes,
                                       ", allocated in line ", found->second.line));
    }
    live_bytes_ -= found->second.bytes;
    builder_.Free(found->second.slot);
    live_.erase(found);
    return absl::OkStatus();
  }

  Table& table_;
  TraceBuilder builder_;
  TraceReading reading_{};
  std::unordered_map<std::uint64_t, Live> live_;
  std::uint64_t live_bytes_ = 0;
};

// ---- lifetimes

struct Lifetime {
  std::uint64_t first;
  std::uint64_t last;
  Bytes bytes;
};

struct LifetimeColumns {
  std::size_t id;
  std::size_t first;
  std::size_t last;
  std::size_t size;
};

absl::StatusOr<std::vector<Lifetime>> ReadLifetimes(Table& table, const LifetimeColumns& columns,
                                                    std::uint64_t multiplier) {
  std::vector<Lifetime> lifetimes;
  std::unordered_set<std::string_view> ids;
  std::uint64_t sum = 0;
  while (table.NextLine()) {
    LGPU_ASSIGN_OR_RETURN(const std::string_view id, table.Field(columns.id, "the id"));
    LGPU_ASSIGN_OR_RETURN(const std::uint64_t first, table.Number(columns.first, "the first moment"));
    LGPU_ASSIGN_OR_RETURN(const std::uint64_t last, table.Number(columns.last, "the last moment"));
    LGPU_ASSIGN_OR_RETURN(const std::uint64_t size, table.Number(columns.size, "the size"));
    if (!ids.insert(id).second) return table.Error(absl::StrCat("the id ", Shown(id), " is there twice"));
    if (last <= first) return table.Error(absl::StrCat("ends at ", last, ", not after it begins at ", first));
    if (size == 0) return table.Error("the size is zero");
    if (size > (std::numeric_limits<std::uint64_t>::max() / 2 - sum) / multiplier) {
      return table.Error(absl::StrCat("sizes times ", multiplier, " add up to more than 2^63 bytes"));
    }
    sum += size * multiplier;
    lifetimes.push_back({first, last, Bytes(size * multiplier)});
  }
  return lifetimes;
}

bench::Trace TraceOf(const std::vector<Lifetime>& lifetimes, const std::string& name) {
  struct Moment {
    std::uint64_t time;
    bool begins;
    std::size_t index;
    auto operator<=>(const Moment&) const = default;
  };
  std::vector<Moment> moments;
  for (std::size_t i = 0; i < lifetimes.size(); ++i) {
    moments.push_back({lifetimes[i].first, true, i});
    moments.push_back({lifetimes[i].last, false, i});
  }
  std::sort(moments.begin(), moments.end());
  TraceBuilder builder(name, "lifetimes");
  std::vector<Slot> slots(lifetimes.size());
  for (const Moment& moment : moments) {
    if (moment.begins) {
      slots[moment.index] = builder.Allocate(lifetimes[moment.index].bytes);
    } else {
      builder.Free(slots[moment.index]);
    }
  }
  return std::move(builder).Finish();
}

std::string FormatRmmLog(const bench::Trace& trace) {
  constexpr std::uint64_t kBase = std::uint64_t{1} << 46;
  std::string text = "Thread,Time,Action,Pointer,Size,Stream\n";
  std::vector<std::pair<std::uint64_t, Bytes>> blocks(trace.slots);
  std::uint64_t next = kBase;
  std::uint64_t time = 0;
  for (const Event& event : trace.events) {
    if (event.kind == Event::Kind::kStep) continue;
    const bool allocates = event.kind == Event::Kind::kAllocate;
    auto& [address, bytes] = blocks[event.slot];
    if (allocates) {
      address = next;
      bytes = event.bytes;
      next += RoundUp(bytes, 256_B).count();
    }
    std::array<char, 128> line{};
    std::snprintf(line.data(), line.size(), "1,%02u:%02u:%02u:%06u,%s,0x%llx,%llu,0\n",
                  static_cast<unsigned>(time / 3'600'000'000 % 24),
                  static_cast<unsigned>(time / 60'000'000 % 60), static_cast<unsigned>(time / 1'000'000 % 60),
                  static_cast<unsigned>(time % 1'000'000), allocates ? "allocate" : "free",
                  static_cast<unsigned long long>(address), static_cast<unsigned long long>(bytes.count()));
    text += line.data();
    ++time;
  }
  return text;
}

std::string FormatLifetimes(const bench::Trace& trace) {
  struct Row {
    std::uint64_t first;
    std::uint64_t last;
    Bytes bytes;
  };
  std::vector<Row> rows;
  std::vector<std::size_t> row_of(trace.slots);
  std::uint64_t time = 0;
  for (const Event& event : trace.events) {
    if (event.kind == Event::Kind::kAllocate) {
      row_of[event.slot] = rows.size();
      rows.push_back({time++, 0, event.bytes});
    } else if (event.kind == Event::Kind::kFree) {
      rows[row_of[event.slot]].last = time++;
    }
  }
  std::string text = "id,first,last,size\n";
  for (std::size_t i = 0; i < rows.size(); ++i) {
    absl::StrAppend(&text, i, ",", rows[i].first, ",", rows[i].last, ",", rows[i].bytes.count(), "\n");
  }
  return text;
}

absl::Status FileError(int error, const std::string& path) {
  const std::string what = absl::StrCat(path, ": ", std::strerror(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(what);
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(what);
    default:
      return absl::UnknownError(what);
  }
}

}  // namespace

absl::StatusOr<TraceReading> ParseTrace(std::string_view text, const TraceReadOptions& options) {
  Table table(text, options.name);
  if (options.size_multiplier == 0) {
    return absl::InvalidArgumentError("a size multiplier of zero leaves nothing; take 1 or more");
  }
  if (!table.NextLine()) return table.Error("the file is empty; its first line names the columns");
  const auto action = table.Column({"Action"});
  const auto pointer = table.Column({"Pointer"});
  const auto logged_size = table.Column({"Size"});
  if (action && pointer && logged_size) {
    if (options.size_multiplier != 1) {
      return table.Error("this is a log, whose sizes are bytes; a size multiplier is for lifetimes");
    }
    return RmmLogReader(table, options.name).Read(*action, *pointer, *logged_size);
  }
  const auto id = table.Column({"id"});
  const auto first = table.Column({"first", "lower", "start", "begin"});
  const auto last = table.Column({"last", "upper", "end"});
  const auto size = table.Column({"size"});
  if (!id || !first || !last || !size) {
    return table.Error(
        "the first line names the columns of neither format: Thread,Time,Action,Pointer,Size,Stream or "
        "id,first,last,size");
  }
  LGPU_ASSIGN_OR_RETURN(const std::vector<Lifetime> lifetimes,
                        ReadLifetimes(table, {*id, *first, *last, *size}, options.size_multiplier));
  TraceReading reading;
  reading.format = TraceFormat::kLifetimes;
  reading.trace = TraceOf(lifetimes, options.name);
  return reading;
}

absl::StatusOr<TraceReading> ReadTraceFile(const std::string& path, std::uint64_t size_multiplier) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return FileError(errno, path);
  std::ostringstream text;
  if (file.peek() != std::ifstream::traits_type::eof()) text << file.rdbuf();
  if (file.bad() || text.bad()) return FileError(errno == 0 ? EIO : errno, path);
  return ParseTrace(text.str(), {.name = path, .size_multiplier = size_multiplier});
}

std::string FormatTrace(const bench::Trace& trace, TraceFormat format) {
  return format == TraceFormat::kRmmLog ? FormatRmmLog(trace) : FormatLifetimes(trace);
}

absl::Status WriteTraceFile(const bench::Trace& trace, TraceFormat format, const std::string& path) {
  errno = 0;
  std::ofstream file(path, std::ios::binary);
  if (!file) return FileError(errno, path);
  file << FormatTrace(trace, format) << std::flush;
  return file ? absl::OkStatus() : FileError(errno == 0 ? EIO : errno, path);
}

}  // namespace lgpu
