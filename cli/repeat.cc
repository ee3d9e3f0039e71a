#include "cli/repeat.h"

#include <CLI/CLI.hpp>
#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "cli/output.h"
#include "lgpu/status.h"

namespace lgpu::cli {

void RepeatFlags::AddTo(CLI::App& verb) {
  CLI::Option* option =
      verb.add_option("-i,--interval", interval,
                      "Print repeatedly, with this time in between; JSON: one object a line")
          ->type_name("SEC");
  verb.add_option("--count", count, "With --interval: print this many times")->type_name("N")->needs(option);
}

absl::Status RepeatFlags::Run(const std::function<absl::Status()>& once) const {
  if (interval.empty()) return once();
  if (count < 0) {
    return absl::InvalidArgumentError(absl::StrCat("--count ", count, " is below 0\ntry: --count 10"));
  }
  const absl::StatusOr<std::chrono::milliseconds> pause = ParseDuration(interval);
  if (!pause.ok()) return absl::InvalidArgumentError(absl::StrCat("--interval: ", pause.status().message()));
  if (pause->count() == 0) return absl::InvalidArgumentError("--interval must be above 0\ntry: --interval 1");
  for (int i = 0; count == 0 || i < count; ++i) {
    if (i > 0) std::this_thread::sleep_for(*pause);
    LGPU_RETURN_IF_ERROR(once());
  }
  return absl::OkStatus();
}

}  // namespace lgpu::cli
