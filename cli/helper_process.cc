#include "cli/helper_process.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "lgpu/status.h"

namespace lgpu::cli {
namespace {

constexpr char kName[] = "lgpu-selftest";

absl::StatusOr<std::string> FindHelper() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path beside = self.parent_path() / kName;
  const std::filesystem::path installed =
      (self.parent_path() / ".." / "libexec" / "lgpu" / kName).lexically_normal();
  for (const std::filesystem::path& path : {beside, installed}) {
    if (::access(path.c_str(), X_OK) == 0) return path.string();
  }
  return absl::NotFoundError(absl::StrCat("the program ", kName, " is not there; looked for ",
                                          beside.string(), " and ", installed.string(),
                                          "\ntry: install lgpu again"));
}

}  // namespace

absl::StatusOr<HelperProcess> HelperProcess::Start(const std::vector<std::string>& arguments,
                                                   const SpawnOptions::Environment& variables) {
  LGPU_ASSIGN_OR_RETURN(const std::string path, FindHelper());
  LGPU_ASSIGN_OR_RETURN(Pipe in, Pipe::Make());
  LGPU_ASSIGN_OR_RETURN(Pipe out, Pipe::Make());
  std::vector<std::string> words = {path};
  words.insert(words.end(), arguments.begin(), arguments.end());
  absl::StatusOr<SpawnedProcess> process = SpawnedProcess::Start(
      {.argv = words,
       .environment = variables,
       .descriptors = {{in.read.get(), STDIN_FILENO}, {out.write.get(), STDOUT_FILENO}}});
  if (!process.ok()) {
    return absl::InternalError(absl::StrCat("cannot run ", path, ": ", process.status().message()));
  }
  return HelperProcess(*std::move(process), std::move(in.write), std::move(out.read));
}

HelperProcess::~HelperProcess() {
  if (pid() < 0) return;
  // Without a stdin the program ends by itself and returns its memory; after a timeout it is killed.
  in_.Reset();
  pollfd polled{out_.get(), POLLIN, 0};
  char bytes[256];
  while (::poll(&polled, 1, 2000) > 0 && ::read(out_.get(), bytes, sizeof(bytes)) > 0) {
  }
}

absl::StatusOr<nlohmann::json> HelperProcess::Read(std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  std::size_t end = buffer_.find('\n');
  while (end == std::string::npos) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd polled{out_.get(), POLLIN, 0};
    const int ready = ::poll(&polled, 1, static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) {
      return absl::DeadlineExceededError(
          absl::StrCat(kName, " did not answer in ", patience.count() / 1000, "s"));
    }
    char bytes[4096];
    const ssize_t count = ::read(out_.get(), bytes, sizeof(bytes));
    if (count <= 0) return absl::InternalError(absl::StrCat(kName, " ended before its answer"));
    buffer_.append(bytes, static_cast<std::size_t>(count));
    end = buffer_.find('\n');
  }
  nlohmann::json json = nlohmann::json::parse(buffer_.substr(0, end), nullptr, /*allow_exceptions=*/false);
  buffer_.erase(0, end + 1);
  if (!json.is_object()) return absl::InternalError(absl::StrCat(kName, " wrote a line that is not JSON"));
  return json;
}

absl::Status HelperProcess::Continue() {
  if (::write(in_.get(), "\n", 1) == 1) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("write to ", kName, ": ", std::strerror(errno)));
}

}  // namespace lgpu::cli
