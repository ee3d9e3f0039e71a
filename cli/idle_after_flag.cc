#include "cli/idle_after_flag.h"

#include <CLI/CLI.hpp>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "cli/output.h"

namespace lgpu::cli {

void IdleAfterFlag::AddTo(CLI::App& verb) {
  verb.add_option(
          "--idle-after", text,
          "How long the lease is idle before lgpud asks it to give way, at least 1s; default: 1s, or twice "
          "its last release or moves, if longer")
      ->type_name("DUR");
}

absl::StatusOr<std::uint64_t> IdleAfterFlag::Milliseconds() const {
  if (text.empty()) return 0;
  const absl::StatusOr<std::chrono::milliseconds> time = ParseDuration(text);
  if (!time.ok()) return absl::InvalidArgumentError(absl::StrCat("--idle-after: ", time.status().message()));
  if (*time < std::chrono::seconds(1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--idle-after ", Printable(text),
        ": a lease is idle for 1s at least before it is asked to give way\ntry: --idle-after 1s"));
  }
  return static_cast<std::uint64_t>(time->count());
}

}  // namespace lgpu::cli
