#include "cli/top/top_screen.h"

#include <langinfo.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <clocale>
#include <cstdio>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
// Last: it defines names of one letter as macros.
#define NCURSES_NOMACROS 1
#include <curses.h>

namespace lgpu::cli {
namespace {

constexpr short kColours[] = {COLOR_BLUE, COLOR_YELLOW, COLOR_CYAN, COLOR_MAGENTA, COLOR_WHITE, COLOR_RED};

/// The pair of a look's colour; 0: the terminal's own.
short PairOf(TopLook look) {
  switch (look) {
    case TopLook::kUsed:
      return 1;
    case TopLook::kCharged:
      return 2;
    case TopLook::kHeld:
      return 3;
    case TopLook::kPromised:
      return 4;
    case TopLook::kForeign:
      return 5;
    case TopLook::kWarning:
      return 6;
    default:
      return 0;
  }
}

attr_t AttributesOf(TopLook look) {
  switch (look) {
    case TopLook::kTitle:
    case TopLook::kWarning:
      return A_BOLD;
    case TopLook::kDim:
      return A_DIM;
    case TopLook::kChosen:
      return A_REVERSE;
    default:
      return A_NORMAL;
  }
}

constexpr int kControlL = 12;
constexpr int kEscape = 27;

TopKeyPress Meaning(int key) {
  switch (key) {
    case KEY_UP:
      return TopKeyPress::kUp;
    case KEY_DOWN:
      return TopKeyPress::kDown;
    case KEY_PPAGE:
      return TopKeyPress::kPageUp;
    case KEY_NPAGE:
      return TopKeyPress::kPageDown;
    case KEY_HOME:
      return TopKeyPress::kFirst;
    case KEY_END:
      return TopKeyPress::kLast;
    case '\n':
    case '\r':
    case KEY_ENTER:
      return TopKeyPress::kDetails;
    case 'o':
    case KEY_F(6):
      return TopKeyPress::kSort;
    case '/':
      return TopKeyPress::kReverse;
    case 'r':
    case kControlL:
      return TopKeyPress::kRefresh;
    case 'K':
    case KEY_F(9):
      return TopKeyPress::kEnd;
    case 'a':
    case KEY_F(2):
      return TopKeyPress::kBars;
    case 'h':
    case '?':
    case KEY_F(1):
      return TopKeyPress::kHelp;
    case 'q':
    case KEY_F(10):
      return TopKeyPress::kQuit;
    case 'y':
    case 'Y':
      return TopKeyPress::kYes;
    case kEscape:
      return TopKeyPress::kBack;
    default:
      return TopKeyPress::kNone;
  }
}

}  // namespace

struct TopScreen::Terminal {
  SCREEN* screen = nullptr;
};

absl::StatusOr<std::unique_ptr<TopScreen>> TopScreen::Open(bool color) {
  std::setlocale(LC_CTYPE, "");
  const bool is_utf8 = std::string_view(::nl_langinfo(CODESET)) == "UTF-8";
  ::set_escdelay(25);
  std::unique_ptr<TopScreen> screen(new TopScreen(color, is_utf8));
  SCREEN* const terminal = ::newterm(nullptr, stdout, stdin);
  if (terminal == nullptr) {
    return absl::FailedPreconditionError(
        "this kind of terminal cannot be painted (TERM)\ntry: lgpu top --once");
  }
  screen->terminal_ = std::make_unique<Terminal>(Terminal{terminal});
  ::cbreak();
  ::noecho();
  ::nonl();
  ::curs_set(0);
  ::keypad(stdscr, TRUE);
  ::nodelay(stdscr, TRUE);
  if (color && ::has_colors()) {
    ::start_color();
    ::use_default_colors();
    for (short i = 0; i < 6; ++i) ::init_pair(static_cast<short>(i + 1), kColours[i], -1);
  }
  return screen;
}

TopScreen::TopScreen(bool color, bool is_utf8) : color_(color), is_utf8_(is_utf8) {}

TopScreen::~TopScreen() {
  if (terminal_ == nullptr) return;
  ::endwin();
  ::delscreen(terminal_->screen);
}

TopSize TopScreen::size() const {
  return {.columns = static_cast<std::size_t>(std::max(getmaxx(stdscr), 1)),
          .lines = static_cast<std::size_t>(std::max(getmaxy(stdscr), 1))};
}

void TopScreen::Resized() {
  winsize size = {};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row == 0 || size.ws_col == 0) return;
  ::resizeterm(size.ws_row, size.ws_col);
  ::clearok(stdscr, TRUE);
}

std::optional<TopKeyPress> TopScreen::ReadKey() {
  const int key = ::wgetch(stdscr);
  if (key == ERR) return std::nullopt;
  return Meaning(key);
}

void TopScreen::Paint(const std::vector<TopLine>& lines) {
  ::werase(stdscr);
  const bool has_colors = color_ && ::has_colors();
  for (int y = 0; y < static_cast<int>(std::min(lines.size(), size().lines)); ++y) {
    ::wmove(stdscr, y, 0);
    for (const TopSpan& span : lines[static_cast<std::size_t>(y)]) {
      ::wattr_set(stdscr, AttributesOf(span.look), has_colors ? PairOf(span.look) : short{0}, nullptr);
      ::waddnstr(stdscr, span.text.c_str(), static_cast<int>(span.text.size()));
    }
    ::wattr_set(stdscr, A_NORMAL, 0, nullptr);
  }
  ::wrefresh(stdscr);
}

}  // namespace lgpu::cli
