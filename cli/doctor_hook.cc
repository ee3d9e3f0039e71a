// The part of `lgpu doctor` that is about containers.

#include <fcntl.h>

#include <array>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/spawn.h"
#include "cli/doctor.h"

namespace lgpu::cli {
namespace {

using Level = Check::Level;

std::string ReadLine(int fd) {
  std::array<char, 512> text;
  const ssize_t got = ::read(fd, text.data(), text.size());
  std::string line(text.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
  line.resize(line.find('\n') == std::string::npos ? line.size() : line.find('\n'));
  return line;
}

}  // namespace

Check CheckHook(const std::string& runtime_dir) {
  std::error_code error;
  const std::string hook = std::filesystem::read_symlink(runtime_dir + "/hook", error).string();
  if (error) {
    return {"containers",
            Level::kSkip,
            "lgpu-hook is not installed: programs in containers that do not use liblgpu cannot be limited",
            {"try: install the package lgpu-driver-shim"}};
  }
  absl::StatusOr<Pipe> said = Pipe::Make();
  if (!said.ok()) return {"containers", Level::kSkip, std::string(said.status().message())};
  auto process = SpawnedProcess::Start(
      {.argv = {hook, "check"},
       .environment = {},
       .descriptors = {{said->write.get(), STDOUT_FILENO}, {said->write.get(), STDERR_FILENO}}});
  if (!process.ok()) {
    return {"containers", Level::kWarn, absl::StrCat(hook, ": ", process.status().message())};
  }
  said->write.Reset();
  const std::string line = ReadLine(said->read.get());
  if (process->Wait() == 0) return {"containers", Level::kOk, absl::StrCat(hook, " can limit containers")};
  return {"containers", Level::kWarn, std::string(absl::StripPrefix(line, "lgpu-hook: "))};
}

}  // namespace lgpu::cli
