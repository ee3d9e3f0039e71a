#ifndef LGPU_CLI_OUTPUT_H_
#define LGPU_CLI_OUTPUT_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "google/protobuf/timestamp.pb.h"
#include "lgpu/v1/stats.pb.h"

namespace lgpu::cli {

enum class ColorMode { kAuto, kAlways, kNever };

/// The variables that decide about colour; taken from the environment once, by main.
struct ColorEnvironment {
  bool no_color = false;        // NO_COLOR is set and not empty
  bool clicolor_force = false;  // CLICOLOR_FORCE is set and not "0"
  bool dumb_terminal = false;   // TERM=dumb
  bool is_terminal = false;
};
/// The flag first, then NO_COLOR, then CLICOLOR_FORCE, then whether a terminal is there.
bool UseColor(ColorMode mode, const ColorEnvironment& environment);

/// How wide the terminal is: COLUMNS (`variable`), else what the terminal on stdout says, else 80.
std::size_t TerminalWidth(const std::string& variable);

struct Style {
  bool color = false;
  std::size_t width = 80;  // columns that a table may take; 0: any number
  std::string Bold(std::string_view text) const;
  std::string Red(std::string_view text) const;
};

/// A Table lines its columns up; numbers to the right, words to the left. The last column is not padded,
/// so that no line ends in blanks, and may be longer than the table is wide. Widths are counted in characters
/// of UTF-8.
class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
    /// Columns of the highest number are left out first where the table is wider than Style::width; 0: never.
    int drop = 0;
    /// Of the last column: its texts are cut where the table is still wider.
    bool is_cut = false;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  /// One cell a column; an empty one is shown as "-".
  void AddRow(std::vector<std::string> cells);
  bool empty() const { return rows_.empty(); }
  std::string Format(const Style& style) const;

 private:
  /// The columns that fit into `most`, by their places.
  std::vector<std::size_t> Shown(const std::vector<std::size_t>& widths, std::size_t most) const;
  /// How wide the last of them may be.
  std::size_t MostOfLast(const std::vector<std::size_t>& shown, const std::vector<std::size_t>& widths,
                         std::size_t most) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// "7s", "12m", "3h", "2d": the largest unit that is not zero. "-" for a time that lies ahead.
std::string FormatAge(std::chrono::seconds age);
/// "850ns", "12.3us", "4.5ms", "1.20s"
std::string FormatNanoseconds(std::uint64_t ns);
/// "12:03:58.123", in local time.
std::string FormatClock(const google::protobuf::Timestamp& time);
/// "root" or, for a user without a name, the number.
std::string FormatOwner(std::string_view owner, std::uint32_t uid);
/// How many characters of UTF-8 a text has.
std::size_t TextWidth(std::string_view text);
/// `text` in lines of at most `width` (0: any length), broken at blanks, all but the first behind `indent`
/// blanks; the first begins in column `used`. A longer word has a line of its own.
std::string Wrap(std::string_view text, std::size_t width, std::size_t indent, std::size_t used);
/// "LIVE", "DRAINING", "ABSENT"
std::string SessionStateName(v1::SessionStats::State state);
/// Foreign text, safe for a terminal: control characters become '?'.
std::string Printable(std::string_view text);

/// "500ms", "10s", "2m", "1h", or seconds as a number ("2.5"). INVALID_ARGUMENT for anything else.
absl::StatusOr<std::chrono::milliseconds> ParseDuration(std::string_view text);

/// Writes all of it to stdout; UNAVAILABLE when its reader has gone (SIGPIPE usually ends the process first).
absl::Status WriteOut(std::string_view text);

}  // namespace lgpu::cli

#endif  // LGPU_CLI_OUTPUT_H_
