#include "client/hook/driver_search.h"

#include <algorithm>
#include <set>
#include <sstream>
#include <string_view>

#include "client/hook/refuse.h"

namespace lgpu::hook {
namespace {

#if defined(__aarch64__)
#define LGPU_MULTIARCH "aarch64-linux-gnu"
#else
#define LGPU_MULTIARCH "x86_64-linux-gnu"
#endif
constexpr const char* kUsualFolders[] = {
    "/usr/lib/" LGPU_MULTIARCH,
    "/lib/" LGPU_MULTIARCH,
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
    "/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/local/lib",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
    "/usr/lib/" LGPU_MULTIARCH "/nvidia/current",
    "/usr/local/lib64",
    "/usr/local/cuda/compat",
    "/usr/local/cuda/lib64",
};
constexpr const char* kCompatFolders[] = {"/compat", "/compat/lib", "/compat/lib.real"};
// No image has nearly as many.
constexpr std::size_t kMostFolders = 1024;
constexpr std::size_t kMostNamed = 4096;
constexpr std::size_t kMostIncludes = 64;

bool IsNameOf(const Library& library, std::string_view name) {
  const std::string_view stem = library.stem;
  return name.starts_with(stem) && (name.size() == stem.size() || name[stem.size()] == '.');
}

std::string FileName(const std::string& path) { return path.substr(path.rfind('/') + 1); }

/// Adds the folders of one file of ld.so.conf(5), and the files that it includes to `files`.
void ReadLoaderFile(const Container& container, const std::string& file, std::vector<std::string>& folders,
                    std::vector<std::string>& files) {
  std::istringstream lines(container.root.ReadText(file));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string word;
    words >> word;
    if (word != "include") {
      std::replace(line.begin(), line.end(), '\t', ':');
      std::replace(line.begin(), line.end(), ' ', ':');
      std::replace(line.begin(), line.end(), ',', ':');
      for (std::string& folder : FoldersOf(line.substr(0, line.find('#')))) folders.push_back(folder);
      continue;
    }
    while (words >> word) {
      if (word[0] != '/') word = "/etc/" + word;
      const std::string folder = word.substr(0, word.rfind('/'));
      for (const std::string& name : container.root.List(folder)) {
        if (name.ends_with(".conf")) files.push_back(folder + "/" + name);
      }
    }
  }
}

}  // namespace

std::vector<std::string> LibraryFolders(const Container& container) {
  std::vector<std::string> folders(std::begin(kUsualFolders), std::end(kUsualFolders));
  for (const std::string& name : container.root.List("/usr/local")) {
    if (!name.starts_with("cuda")) continue;
    for (const char* const compat : kCompatFolders) folders.push_back("/usr/local/" + name + compat);
  }
  std::vector<std::string> files = {"/etc/ld.so.conf"};
  for (std::size_t i = 0; i < files.size() && i < kMostIncludes; ++i) {
    ReadLoaderFile(container, std::string(files[i]), folders, files);
  }
  folders.insert(folders.end(), container.search_path.begin(), container.search_path.end());
  // A driver may be mounted as a folder.
  folders.insert(folders.end(), container.mounts.begin(), container.mounts.end());
  std::set<std::string> seen;
  std::erase_if(folders, [&seen](const std::string& folder) { return !seen.insert(folder).second; });
  if (folders.size() > kMostFolders) {
    Refuse("the container names " + std::to_string(folders.size()) + " folders of libraries, above " +
           std::to_string(kMostFolders));
  }
  return folders;
}

std::vector<std::string> FilesNamed(const Container& container, const std::vector<std::string>& folders,
                                    const Library& library) {
  std::vector<std::string> files;
  for (const std::string& folder : folders) {
    for (const std::string& name : container.root.List(folder)) {
      if (IsNameOf(library, name)) files.push_back(folder + "/" + name);
    }
  }
  for (const std::string& mount : container.mounts) {
    if (IsNameOf(library, FileName(mount))) files.push_back(mount);
  }
  if (files.size() > kMostNamed) {
    Refuse("the container has " + std::to_string(files.size()) + " files named " + library.stem);
  }
  return files;
}

}  // namespace lgpu::hook
