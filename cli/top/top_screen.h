#ifndef LGPU_CLI_TOP_TOP_SCREEN_H_
#define LGPU_CLI_TOP_TOP_SCREEN_H_

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/top/top_layout.h"

namespace lgpu::cli {

/// The meaning of a key.
enum class TopKeyPress {
  kNone,
  kUp,
  kDown,
  kPageUp,
  kPageDown,
  kFirst,
  kLast,
  kDetails,
  kSort,
  kReverse,
  kRefresh,
  kEnd,
  kBars,
  kHelp,
  kQuit,
  kYes,
  kBack,
};

/// A TopScreen has the terminal: it paints lines and reads keys, and does not interpret them. Its destructor
/// restores the terminal. One at a time; not thread-safe.
class TopScreen {
 public:
  /// FAILED_PRECONDITION: the terminal is of a kind that cannot be painted.
  static absl::StatusOr<std::unique_ptr<TopScreen>> Open(bool color);
  ~TopScreen();
  TopScreen(const TopScreen&) = delete;
  TopScreen& operator=(const TopScreen&) = delete;

  /// Whether the terminal's characters are UTF-8.
  bool is_utf8() const { return is_utf8_; }
  TopSize size() const;
  /// The window has another size.
  void Resized();
  /// The next key that was pressed; nothing: none is left. Does not wait.
  std::optional<TopKeyPress> ReadKey();
  void Paint(const std::vector<TopLine>& lines);

 private:
  struct Terminal;
  TopScreen(bool color, bool is_utf8);
  const bool color_;
  const bool is_utf8_;
  std::unique_ptr<Terminal> terminal_;
};

}  // namespace lgpu::cli

#endif  // LGPU_CLI_TOP_TOP_SCREEN_H_
