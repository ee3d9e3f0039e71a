#include "client/session/daemon_program.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_split.h"

namespace lgpu {
namespace {

namespace fs = std::filesystem;

constexpr char kName[] = "lgpud";

bool HasProgram(const fs::path& folder) {
  std::error_code error;
  const fs::path program = folder / kName;
  return fs::is_regular_file(program, error) && ::access(program.c_str(), X_OK) == 0;
}

}  // namespace

std::string DaemonProgram(const std::string& search_path, const std::vector<std::string>& folders) {
  for (const std::string& folder : std::vector<std::string>(absl::StrSplit(search_path, ':'))) {
    if (HasProgram(folder.empty() ? "." : folder)) return kName;
  }
  for (const std::string& folder : folders) {
    if (HasProgram(folder)) return (fs::path(folder) / kName).lexically_normal().string();
  }
  return kName;
}

std::string DaemonProgramOfThisProcess() {
  const char* const path = std::getenv("PATH");
  std::error_code error;
  std::vector<std::string> folders = {fs::read_symlink("/proc/self/exe", error).parent_path().string()};
  Dl_info here = {};
  if (::dladdr(reinterpret_cast<const void*>(&DaemonProgramOfThisProcess), &here) != 0 &&
      here.dli_fname != nullptr) {
    // In a program that has no liblgpu this is the program's own name.
    folders.push_back((fs::absolute(here.dli_fname, error).parent_path() / ".." / "bin").string());
  }
  return DaemonProgram(path == nullptr ? "" : path, folders);
}

}  // namespace lgpu
