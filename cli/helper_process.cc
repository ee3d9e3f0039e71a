#include "cli/helper_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
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

std::vector<std::string> Environment(const HelperProcess::Variables& variables) {
  std::map<std::string, std::string> merged;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::size_t equals = text.find('=');
    if (equals != std::string::npos) merged[text.substr(0, equals)] = text.substr(equals + 1);
  }
  for (const auto& [name, value] : variables) merged[name] = value;
  std::vector<std::string> entries;
  for (const auto& variable : merged) {
    const bool dropped = variable.second.empty() &&
                         std::any_of(variables.begin(), variables.end(),
                                     [&](const auto& entry) { return entry.first == variable.first; });
    if (!dropped) entries.push_back(variable.first + "=" + variable.second);
  }
  return entries;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

struct Pipe {
  UniqueFd read, write;
};

absl::StatusOr<Pipe> MakePipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return absl::InternalError(absl::StrCat("pipe: ", std::strerror(errno)));
  return Pipe{.read = UniqueFd(fds[0]), .write = UniqueFd(fds[1])};
}

}  // namespace

absl::StatusOr<HelperProcess> HelperProcess::Start(const std::vector<std::string>& arguments,
                                                   const Variables& variables) {
  LGPU_ASSIGN_OR_RETURN(const std::string path, FindHelper());
  LGPU_ASSIGN_OR_RETURN(Pipe in, MakePipe());
  LGPU_ASSIGN_OR_RETURN(Pipe out, MakePipe());
  std::vector<std::string> words = {path};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> environment = Environment(variables);
  const std::vector<char*> argv = Pointers(words);
  const std::vector<char*> envp = Pointers(environment);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in.read.get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out.write.get(), STDOUT_FILENO);
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, path.c_str(), &actions, nullptr, argv.data(), envp.data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return absl::InternalError(absl::StrCat("cannot run ", path, ": ", std::strerror(error)));
  return HelperProcess(pid, std::move(in.write), std::move(out.read));
}

HelperProcess::HelperProcess(HelperProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      in_(std::move(other.in_)),
      out_(std::move(other.out_)),
      buffer_(std::move(other.buffer_)) {}

HelperProcess::~HelperProcess() {
  if (pid_ < 0) return;
  // Without a stdin it ends by itself, giving everything back; what does not end in time is killed.
  in_ = UniqueFd();
  pollfd polled{out_.get(), POLLIN, 0};
  char bytes[256];
  while (::poll(&polled, 1, 2000) > 0 && ::read(out_.get(), bytes, sizeof(bytes)) > 0) {
  }
  if (::waitpid(pid_, nullptr, WNOHANG) == 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
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
  if (!json.is_object()) return absl::InternalError(absl::StrCat(kName, " wrote something that is no JSON"));
  return json;
}

absl::Status HelperProcess::Continue() {
  if (::write(in_.get(), "\n", 1) == 1) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("write to ", kName, ": ", std::strerror(errno)));
}

}  // namespace lgpu::cli
