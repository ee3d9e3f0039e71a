#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "cli/commands/commands.h"
#include "cli/connection.h"
#include "cli/top/top_feed.h"
#include "cli/top/top_layout.h"
#include "cli/top/top_screen.h"
#include "lgpu/status.h"
#include "proto/messages_json.h"

namespace lgpu::cli {
namespace {

/// Signals as a descriptor. Blocked from its construction on, also in threads that start later.
class Signals {
 public:
  Signals() {
    sigemptyset(&signals_);
    for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGWINCH}) sigaddset(&signals_, signal);
    ::pthread_sigmask(SIG_BLOCK, &signals_, &before_);
    fd_.Reset(::signalfd(-1, &signals_, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  ~Signals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  int fd() const { return fd_.get(); }
  /// Unblock lets the signals take their usual effect, for this thread alone.
  void Unblock() { ::pthread_sigmask(SIG_UNBLOCK, &signals_, nullptr); }
  void Block() { ::pthread_sigmask(SIG_BLOCK, &signals_, nullptr); }
  /// The next one; 0: none.
  int Take() {
    signalfd_siginfo info = {};
    return ::read(fd_.get(), &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
  }

 private:
  sigset_t signals_ = {};
  sigset_t before_ = {};
  UniqueFd fd_;
};

/// Two terminals and a screen that is large enough.
bool IsScreen() {
  winsize size = {};
  return ::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1 &&
         ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= kSmallestTop.columns &&
         size.ws_row >= kSmallestTop.lines;
}

/// Applies keys to the view.
class TopKeys {
 public:
  TopKeys(TopView& view, TopFeed& feed) : view_(view), feed_(feed) {}

  /// False: the user is done.
  bool Press(TopKeyPress key, const TopModel& model, std::size_t page) {
    if (view_.asked) {
      if (key == TopKeyPress::kYes) feed_.EndLease(view_.asked->first);
      view_.message = key == TopKeyPress::kYes ? "ending the lease" : "the lease goes on";
      view_.asked.reset();
      return true;
    }
    view_.message.clear();
    switch (key) {
      case TopKeyPress::kQuit:
        return false;
      case TopKeyPress::kHelp:
        view_.help = !view_.help;
        break;
      case TopKeyPress::kBack:
        view_.help = view_.details = false;
        break;
      case TopKeyPress::kDetails:
        view_.details = !view_.details && !view_.help;
        view_.help = false;
        break;
      case TopKeyPress::kSort:
        view_.sort = static_cast<TopSort>((static_cast<int>(view_.sort) + 1) % kTopSorts);
        break;
      case TopKeyPress::kReverse:
        view_.reversed = !view_.reversed;
        break;
      case TopKeyPress::kBars:
        view_.ascii = !view_.ascii;
        break;
      case TopKeyPress::kRefresh:
        feed_.Refresh();
        break;
      case TopKeyPress::kEnd:
        AskToEnd(model);
        break;
      default:
        Move(key, TopRows(model, view_), page);
    }
    return true;
  }

 private:
  static std::size_t PlaceOf(const std::vector<TopKey>& rows, const std::optional<TopKey>& key) {
    const auto found = key ? std::find(rows.begin(), rows.end(), *key) : rows.end();
    return found == rows.end() ? 0 : static_cast<std::size_t>(found - rows.begin());
  }

  void Move(TopKeyPress key, const std::vector<TopKey>& rows, std::size_t page) {
    if (rows.empty()) return;
    const std::size_t at = PlaceOf(rows, view_.chosen);
    const std::size_t last = rows.size() - 1;
    std::size_t to = at;
    if (key == TopKeyPress::kUp) to = at - std::min<std::size_t>(at, 1);
    if (key == TopKeyPress::kDown) to = at + 1;
    if (key == TopKeyPress::kPageUp) to = at - std::min(at, page);
    if (key == TopKeyPress::kPageDown) to = at + page;
    if (key == TopKeyPress::kFirst) to = 0;
    if (key == TopKeyPress::kLast) to = last;
    view_.chosen = rows[std::min(to, last)];
  }

  void AskToEnd(const TopModel& model) {
    if (view_.readonly) {
      view_.message = "--readonly: nothing is ended here";
      return;
    }
    const std::vector<TopKey> rows = TopRows(model, view_);
    if (rows.empty()) return;
    const TopKey& key = rows[PlaceOf(rows, view_.chosen)];
    for (const v1::LeaseStats& lease : model.stats.leases()) {
      if (lease.id() == key.first && lease.owner_uid() != model.uid && model.uid != 0) {
        view_.message = "this lease is another user's: only they and root can end it";
        return;
      }
    }
    view_.asked = key;
  }

  TopView& view_;
  TopFeed& feed_;
};

class TopCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& app) override {
    CLI::App* verb = app.add_subcommand("top", "Show the GPUs and the leases live on the terminal");
    verb->add_option("-i,--interval", interval_, "Time from one look to the next")
        ->type_name("SEC")
        ->capture_default_str();
    verb->add_flag("-1,--once", once_, "Print it once, without keys; so it does without a terminal");
    verb->add_flag("-U,--ascii", ascii_, "Bars of ASCII characters");
    verb->add_flag("--readonly", readonly_, "No key ends a lease");
    return verb;
  }

  absl::StatusOr<int> Run(const CommonOptions& options) override {
    const absl::StatusOr<std::chrono::milliseconds> interval = ParseDuration(interval_);
    if (!interval.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--interval: ", interval.status().message()));
    }
    if (interval->count() < 100) return absl::InvalidArgumentError("--interval must be at least 0.1\ntry: 1");
    const bool live = !once_ && !options.json && IsScreen();
    // Made before threads start, so that gRPC's threads too leave the signals to this one.
    std::optional<Signals> signals;
    if (live) signals.emplace();
    LGPU_ASSIGN_OR_RETURN(Connection connection, Connection::Open(options));
    TopModel model;
    model.uid = ::getuid();
    // Ctrl-C ends the wait for a first answer; later the screen is there, which has to be restored.
    if (signals) signals->Unblock();
    LGPU_RETURN_IF_ERROR(AskForTop(connection, model));
    if (signals) signals->Block();
    if (options.json) {
      LGPU_RETURN_IF_ERROR(WriteOut(JsonLine(ToJson(model.stats))));
      return kExitOk;
    }
    TopView view;
    view.readonly = readonly_;
    view.ascii = ascii_ || !live;
    if (!live) {
      constexpr std::size_t kWide = 200;  // --verbose: nothing is cut
      const TopSize size{.columns =
                             options.out.width == 0 ? kWide : std::max<std::size_t>(options.out.width, 40)};
      LGPU_RETURN_IF_ERROR(WriteOut(TopText(LayOutTop(model, view, size), options.out.color)));
      return kExitOk;
    }
    LGPU_ASSIGN_OR_RETURN(std::unique_ptr<TopFeed> feed,
                          TopFeed::Start(options, std::move(connection), std::move(model), *interval));
    int signal = 0;
    {
      LGPU_ASSIGN_OR_RETURN(const std::unique_ptr<TopScreen> screen, TopScreen::Open(options.out.color));
      view.ascii = ascii_ || !screen->is_utf8();
      signal = Watch(*screen, *feed, *signals, view);
    }
    feed.reset();
    signals.reset();
    if (signal != 0) {
      // Ends this process as if the signal had not been caught.
      ::signal(signal, SIG_DFL);
      ::raise(signal);
    }
    return kExitOk;
  }

 private:
  /// Runs until the user is done, or a signal has come, whose number is the result.
  static int Watch(TopScreen& screen, TopFeed& feed, Signals& signals, TopView& view) {
    constexpr std::chrono::seconds kShown{4};  // a message of the feed
    TopFeed::News news = feed.Take();
    auto until = std::chrono::steady_clock::time_point::max();
    TopKeys keys(view, feed);
    while (true) {
      screen.Paint(LayOutTop(news.model, view, screen.size()));
      std::array<pollfd, 3> polled = {
          {{STDIN_FILENO, POLLIN, 0}, {signals.fd(), POLLIN, 0}, {feed.fd(), POLLIN, 0}}};
      if (::poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) return SIGHUP;
      while (const int signal = signals.Take()) {
        if (signal != SIGWINCH) return signal;
        screen.Resized();
      }
      if (polled[2].revents != 0) {
        news = feed.Take();
        const auto now = std::chrono::steady_clock::now();
        if (!news.message.empty()) {
          view.message = news.message;
          until = now + kShown;
        } else if (now > until) {
          view.message.clear();
          until = std::chrono::steady_clock::time_point::max();
        }
      }
      if ((polled[0].revents & (POLLHUP | POLLERR)) != 0) return SIGHUP;
      while (const std::optional<TopKeyPress> key = screen.ReadKey()) {
        if (!keys.Press(*key, news.model, screen.size().lines / 2)) return 0;
      }
    }
  }

  std::string interval_ = "1";
  bool once_ = false;
  bool ascii_ = false;
  bool readonly_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeTopCommand() { return std::make_unique<TopCommand>(); }

VerbPage TopPage() {
  return {.description =
              "Shows what ls shows live on the whole terminal: a bar for every GPU, a row for every logical "
              "device with its ops and allocations per second, the requests that wait, and the last events. "
              "Enter shows the lease of the chosen row in full, h the keys. Without a terminal, or on one of "
              "less than 80 x 16, it prints once, as with --once.",
          .examples = {{"lgpu top", "the keys are shown by h"},
                       {"lgpu top --once --ascii", "for a log"},
                       {"lgpu top -i 5 --readonly", "every 5 seconds, and no key ends a lease"}}};
}

}  // namespace lgpu::cli
