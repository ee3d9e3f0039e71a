#include "cli/driver_files.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>

#include "absl/strings/str_split.h"
#include "cli/shim_file.h"

namespace lgpu::cli {
namespace {

namespace fs = std::filesystem;

// The folders of drivers of packages, containers, NixOS and WSL. The loader may not search them.
constexpr const char* kUsualFolders[] = {
#if defined(__aarch64__)
    "/usr/lib/aarch64-linux-gnu",
#else
    "/usr/lib/x86_64-linux-gnu",
#endif
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/local/cuda/compat",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib"};

/// A shared library for programs of this machine's kind.
bool IsLibrary(const fs::path& path) {
  std::array<char, EI_NIDENT> head{};
  std::ifstream file(path, std::ios::binary);
  if (!file.read(head.data(), head.size())) return false;
  return std::memcmp(head.data(), ELFMAG, SELFMAG) == 0 && head[EI_CLASS] == ELFCLASS64;
}

std::optional<fs::path> FindLibrary(const fs::path& path) {
  std::error_code error;
  const fs::path found = fs::canonical(path, error);
  if (error || !IsLibrary(found)) return std::nullopt;
  return found;
}

/// The file that the loader of this process finds for the library.
std::optional<fs::path> FindByLoader(const ShimmedLibrary& library) {
  void* const handle = ::dlopen(library.name, RTLD_LAZY | RTLD_LOCAL);
  const link_map* map = nullptr;
  if (handle == nullptr || ::dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0) return std::nullopt;
  return FindLibrary(map->l_name);
}

/// `found`, or the real library behind it where `found` is lgpu's.
std::optional<std::string> Behind(const ShimmedLibrary& library, const fs::path& found) {
  const absl::StatusOr<std::optional<shim::ShimFile>> shim = ReadShimFile(found.string(), library.real);
  if (!shim.ok()) return std::nullopt;
  if (!*shim) return found.string();
  const std::string folder = (*shim)->folder();
  const std::optional<fs::path> real =
      folder.empty() ? std::nullopt : FindLibrary(fs::path(folder) / library.real);
  return real ? std::optional(real->string()) : std::nullopt;
}

std::vector<std::string> FoldersOf(const std::string& search_path) {
  return absl::StrSplit(search_path, absl::ByAnyChar(":;"), absl::SkipEmpty());
}

bool IsInstalledShim(const ShimmedLibrary& library, const fs::path& file) {
  const absl::StatusOr<std::optional<shim::ShimFile>> shim = ReadShimFile(file.string(), library.real);
  return shim.ok() && *shim && (*shim)->folder().empty();
}

}  // namespace

std::optional<std::string> FindReal(const ShimmedLibrary& library, const std::string& search_path) {
  for (const std::string& folder : FoldersOf(search_path)) {
    // Inside another `lgpu run` the first folder is a folder of links.
    for (const char* const name : {library.real, library.name}) {
      const std::optional<fs::path> found = FindLibrary(fs::path(folder) / name);
      if (!found) continue;
      if (std::optional<std::string> real = Behind(library, *found)) return real;
    }
  }
  const std::optional<fs::path> found = FindByLoader(library);
  return found ? Behind(library, *found) : std::nullopt;
}

std::vector<Isolation::Covered> FilesToCover(const std::string& search_path) {
  std::vector<Isolation::Covered> covered;
  for (const ShimmedLibrary& library : {kCuda, kNvml}) {
    std::set<fs::path> files;
    std::vector<std::string> folders = FoldersOf(search_path);
    folders.insert(folders.end(), std::begin(kUsualFolders), std::end(kUsualFolders));
    for (const fs::path folder : folders) {
      // A folder of links has the real library for an outer `lgpu run`.
      if (FindLibrary(folder / library.real)) continue;
      for (const char* const name : {library.name, library.unversioned}) {
        if (const auto found = FindLibrary(folder / name)) files.insert(*found);
      }
    }
    if (const auto found = FindByLoader(library)) files.insert(*found);
    if (const auto real = FindReal(library, search_path)) files.insert(*real);
    for (const fs::path& file : files) {
      if (file.filename() == library.real || IsInstalledShim(library, file)) continue;
      covered.push_back({.soname = library.name, .file = file.string()});
    }
  }
  return covered;
}

}  // namespace lgpu::cli
