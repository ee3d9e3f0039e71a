#include "client/hook/container.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "client/hook/refuse.h"

namespace lgpu::hook {
namespace {

using nlohmann::json;

constexpr std::size_t kMostJson = std::size_t{64} << 20;
constexpr std::string_view kSearchPath = "LD_LIBRARY_PATH=";

/// The member, or null where the value is no object or has none.
json Member(const json& value, const char* name) {
  return value.is_object() && value.contains(name) ? value[name] : json();
}

std::string Text(const json& value) { return value.is_string() ? value.get<std::string>() : ""; }

/// A user namespace may keep the hook from the bundle. The runtime starts the hook in the root then.
UniqueFd OpenRoot(const std::string& path) {
  UniqueFd root(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (root) return root;
  UniqueFd here(::open(".", O_PATH | O_DIRECTORY | O_CLOEXEC));
  struct stat own = {};
  struct stat machine = {};
  if (!here || ::fstat(here.get(), &own) != 0 || ::stat("/", &machine) != 0 ||
      (own.st_dev == machine.st_dev && own.st_ino == machine.st_ino)) {
    Refuse("the runtime names no root of a container that can be opened (" + path + ")");
  }
  return here;
}

}  // namespace

std::vector<std::string> FoldersOf(const std::string& search_path) {
  std::vector<std::string> folders;
  for (std::size_t begin = 0; begin <= search_path.size();) {
    const std::size_t end = std::min(search_path.find_first_of(":;", begin), search_path.size());
    if (end > begin && search_path[begin] == '/') folders.push_back(search_path.substr(begin, end - begin));
    begin = end + 1;
  }
  return folders;
}

Container ReadContainer(int state) {
  const json said = json::parse(ReadSome(state, kMostJson), nullptr, /*allow_exceptions=*/false);
  const std::string bundle = Text(Member(said, "bundle"));
  if (bundle.empty()) {
    Refuse("a container's runtime starts this program, with the container's state on its standard input");
  }
  const UniqueFd file(::open((bundle + "/config.json").c_str(), O_RDONLY | O_CLOEXEC));
  const json config =
      json::parse(file ? ReadSome(file.get(), kMostJson) : "null", nullptr, /*allow_exceptions=*/false);
  std::string path = Text(Member(Member(config, "root"), "path"));
  // crun's state has it too, for a hook that a user namespace keeps from the bundle.
  if (path.empty()) path = Text(Member(said, "root"));
  if (!path.empty() && path[0] != '/') path = bundle + "/" + path;
  Container container{.root = Root(OpenRoot(path)), .search_path = {}, .mounts = {}, .mount_label = {}};
  for (const json& variable : Member(Member(config, "process"), "env")) {
    const std::string text = Text(variable);
    if (text.starts_with(kSearchPath)) container.search_path = FoldersOf(text.substr(kSearchPath.size()));
  }
  for (const json& mount : Member(config, "mounts")) {
    const std::string at = Text(Member(mount, "destination"));
    if (!at.empty()) container.mounts.push_back(at);
  }
  container.mount_label = Text(Member(Member(config, "linux"), "mountLabel"));
  return container;
}

}  // namespace lgpu::hook
