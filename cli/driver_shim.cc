#include "cli/driver_shim.h"

#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/driver_files.h"
#include "client/driver/surface.h"
#include "lgpu/bytes.h"
#include "lgpu/status.h"

namespace lgpu::cli {
namespace {

namespace fs = std::filesystem;

std::uint64_t Fnv(std::uint64_t hash, std::string_view text) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

/// The folder's name: another driver, another file of it or another shim has another folder.
std::string NameOf(const std::vector<std::pair<std::string, std::string>>& links) {
  std::uint64_t hash = Fnv(0xcbf29ce484222325ULL, LGPU_VERSION);
  for (const auto& [name, target] : links) {
    struct stat info = {};
    (void)::stat(target.c_str(), &info);
    hash = Fnv(hash,
               absl::StrCat(name, "=", target, ":", info.st_dev, ":", info.st_ino, ":", info.st_mtime, "\n"));
  }
  return absl::StrFormat("%016x", hash);
}

bool HasLinks(const fs::path& folder, const std::vector<std::pair<std::string, std::string>>& links) {
  std::error_code error;
  return std::all_of(links.begin(), links.end(), [&](const auto& link) {
    return fs::read_symlink(folder / link.first, error) == link.second && !error;
  });
}

/// The folder of links in `parent`. It is made beside its place and renamed, so that no command sees a half
/// of it.
absl::StatusOr<std::string> MakeFolder(const fs::path& parent,
                                       const std::vector<std::pair<std::string, std::string>>& links) {
  std::error_code error;
  fs::create_directories(parent, error);
  struct stat info = {};
  if (::stat(parent.c_str(), &info) != 0) return absl::FailedPreconditionError(std::strerror(errno));
  const bool is_trusted = (info.st_uid == ::geteuid() || info.st_uid == 0) && (info.st_mode & S_IWOTH) == 0;
  if (!is_trusted) return absl::FailedPreconditionError("other users can write there");
  const fs::path folder = parent / NameOf(links);
  if (HasLinks(folder, links)) return folder.string();
  const fs::path fresh = absl::StrCat(folder.string(), ".", ::getpid());
  fs::remove_all(fresh, error);
  if (::mkdir(fresh.c_str(), 0755) != 0) return absl::FailedPreconditionError(std::strerror(errno));
  for (const auto& [name, target] : links) {
    if (::symlink(target.c_str(), (fresh / name).c_str()) == 0) continue;
    const int cause = errno;
    fs::remove_all(fresh, error);
    return absl::FailedPreconditionError(std::strerror(cause));
  }
  if (::rename(fresh.c_str(), folder.c_str()) != 0 && !HasLinks(folder, links)) {
    const int cause = errno;
    fs::remove_all(fresh, error);
    return absl::FailedPreconditionError(std::strerror(cause));
  }
  fs::remove_all(fresh, error);  // where another run was first
  return folder.string();
}

/// 2 of "cuMemAlloc_v2", 1 of a symbol without a number.
int SymbolVersion(std::string_view symbol, std::string_view name) {
  const std::string_view suffix = symbol.substr(name.size());
  return suffix.size() > 2 && suffix.substr(0, 2) == "_v" ? suffix[2] - '0' : 1;
}

/// The folder of lgpu's libraries; empty: not installed.
std::string FindShims(const DriverShimPlaces& places) {
  const auto found = std::find_if(places.shims.begin(), places.shims.end(), [](const std::string& folder) {
    return ::access((fs::path(folder) / kCuda.name).c_str(), R_OK) == 0;
  });
  return found == places.shims.end() ? "" : *found;
}

/// `first` before the variable's value; never an empty element, which would mean the current directory.
std::string Before(const std::string& first, const std::optional<std::string>& value, char separator) {
  std::vector<std::string> elements = {first};
  for (const std::string& element : std::vector<std::string>(
           absl::StrSplit(value.value_or(""), absl::ByAnyChar(separator == ':' ? ":;" : ": ")))) {
    if (!element.empty() && element != first) elements.push_back(element);
  }
  return absl::StrJoin(elements, std::string(1, separator));
}

}  // namespace

DriverShimPlaces DriverShimPlaces::OfThisProgram(const std::string& runtime_dir,
                                                 const VariableReader& variable) {
  std::error_code error;
  const fs::path bin = fs::read_symlink("/proc/self/exe", error).parent_path();
  DriverShimPlaces places;
  places.shims = {(bin / ".." / LGPU_SHIM_FROM_BIN).lexically_normal().string(),
                  (bin / ".." / "client" / "driver" / "lib").lexically_normal().string()};
  places.parents = {runtime_dir + "/driver"};
  if (const std::optional<std::string> own = variable("XDG_RUNTIME_DIR"); own && !own->empty()) {
    places.parents.push_back(*own + "/lgpu/driver");
  }
  places.parents.push_back(absl::StrCat("/tmp/lgpu-driver-", ::geteuid()));
  return places;
}

absl::StatusOr<std::optional<DriverShim>> MakeDriverShim(const DriverShimPlaces& places,
                                                         const VariableReader& variable) {
  const std::optional<std::string> search_path = variable("LD_LIBRARY_PATH");
  const std::optional<std::string> cuda = FindReal(kCuda, search_path.value_or(""));
  if (!cuda) return std::nullopt;
  const std::string shims = FindShims(places);
  if (shims.empty()) {
    return absl::NotFoundError(absl::StrCat(
        "lgpu's ", kCuda.name, " is not installed; looked in ", absl::StrJoin(places.shims, " and "),
        "\ntry: install the package lgpu-driver-shim, or LGPU_SHIM=off for a "
        "command that limits itself"));
  }
  std::vector<std::pair<std::string, std::string>> links = {{kCuda.name, shims + "/" + kCuda.name},
                                                            {"libcuda.so", shims + "/" + kCuda.name},
                                                            {kCuda.real, *cuda},
                                                            {kRedirectName, shims + "/" + kRedirectName}};
  if (const std::optional<std::string> nvml = FindReal(kNvml, search_path.value_or(""))) {
    links.insert(links.end(), {{kNvml.name, shims + "/" + kNvml.name}, {kNvml.real, *nvml}});
  }
  std::vector<std::string> failures;
  for (const std::string& parent : places.parents) {
    absl::StatusOr<std::string> folder = MakeFolder(parent, links);
    if (!folder.ok()) {
      failures.push_back(absl::StrCat(parent, ": ", folder.status().message()));
      continue;
    }
    DriverShim shim{.folder = *folder, .variables = {}};
    shim.variables["LD_LIBRARY_PATH"] = Before(*folder, search_path, ':');
    shim.variables["LD_PRELOAD"] = Before(*folder + "/" + kRedirectName, variable("LD_PRELOAD"), ' ');
    return shim;
  }
  return absl::FailedPreconditionError(absl::StrCat("no place for the links to lgpu's driver (",
                                                    absl::StrJoin(failures, "; "),
                                                    ")\ntry: XDG_RUNTIME_DIR set to a directory of your own, "
                                                    "or LGPU_SHIM=off for a command that limits itself"));
}

std::optional<DriverCalls> CompareDriver(const DriverShimPlaces& places, const VariableReader& variable) {
  const std::optional<std::string> driver = FindReal(kCuda, variable("LD_LIBRARY_PATH").value_or(""));
  if (!driver) return std::nullopt;
  DriverCalls calls{.shim = FindShims(places), .driver = *driver, .newer = {}};
  void* const library = ::dlopen(driver->c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return calls;
  std::set<std::string> known;
  std::map<std::string, int> newest;  // by name: the version in the symbol
#define LGPU_SHIM_KNOWN(symbol, name, version, stream, ...) \
  known.insert(#symbol);                                    \
  newest[name] = std::max(newest[name], SymbolVersion(#symbol, name));
  LGPU_SHIM_SURFACE(LGPU_SHIM_KNOWN)
#undef LGPU_SHIM_KNOWN
  constexpr int kAhead = 3;
  for (const auto& [name, version] : newest) {
    for (int next = version + 1; next <= version + kAhead; ++next) {
      for (const char* const twin : {"", "_ptsz"}) {
        const std::string symbol = absl::StrCat(name, "_v", next, twin);
        if (!known.contains(symbol) && ::dlsym(library, symbol.c_str()) != nullptr) {
          calls.newer.push_back(symbol);
        }
      }
    }
  }
  return calls;
}

bool HasRealGpu(const v1::Lease& lease) {
  return std::any_of(lease.devices().begin(), lease.devices().end(),
                     [](const v1::LogicalDevice& device) { return !device.simulated(); });
}

std::string CardUuids(const v1::Lease& lease) {
  std::vector<std::string> uuids;
  for (const v1::LogicalDevice& device : lease.devices()) {
    if (std::find(uuids.begin(), uuids.end(), device.card_uuid()) == uuids.end()) {
      uuids.push_back(device.card_uuid());
    }
  }
  return absl::StrJoin(uuids, ",");
}

std::vector<std::string> DescribeSharedCards(const v1::Lease& lease) {
  struct Sum {
    Bytes limits, card_total;
    int devices = 0;
  };
  std::map<std::uint32_t, Sum> sums;  // by the card's index
  for (const v1::LogicalDevice& device : lease.devices()) {
    if (device.simulated()) continue;
    Sum& sum = sums[device.card_index()];
    sum.limits = SaturatingAdd(sum.limits, Bytes(device.memory_limit_bytes()));
    sum.card_total = Bytes(device.card_total_bytes());
    ++sum.devices;
  }
  std::vector<std::string> lines;
  for (const auto& [card, sum] : sums) {
    if (sum.devices < 2) continue;
    lines.push_back(absl::StrCat("a program that does not use liblgpu sees one GPU of ",
                                 FormatBytes(std::min(sum.limits, sum.card_total)), " in place of the ",
                                 sum.devices, " logical devices on GPU ", card));
  }
  return lines;
}

absl::StatusOr<LeaseEnvironment> EnvironmentOf(const v1::Lease& lease, const std::string& runtime_dir,
                                               const VariableReader& variable) {
  LeaseEnvironment result;
  result.variables = {{"LGPU_LEASE", lease.id()}, {"LGPU_ENDPOINT", runtime_dir}};
  if (!HasRealGpu(lease)) {
    // A value of the caller counts the machine's GPUs, and the command's counts the lease's.
    if (variable("CUDA_VISIBLE_DEVICES")) result.variables["CUDA_VISIBLE_DEVICES"] = CardUuids(lease);
    return result;
  }
  result.variables["CUDA_VISIBLE_DEVICES"] = CardUuids(lease);
  if (variable("LGPU_SHIM") == "off") {
    result.notes.push_back("LGPU_SHIM=off: only programs that use liblgpu are limited");
    return result;
  }
  LGPU_ASSIGN_OR_RETURN(const std::optional<DriverShim> shim,
                        MakeDriverShim(DriverShimPlaces::OfThisProgram(runtime_dir, variable), variable));
  if (!shim) {
    result.notes.push_back("no libcuda.so.1 is found from here: the command has no GPU driver to be limited");
    return result;
  }
  result.has_shim = true;
  result.shim_folder = shim->folder;
  const std::vector<std::string> shared = DescribeSharedCards(lease);
  result.notes.insert(result.notes.end(), shared.begin(), shared.end());
  result.variables.insert(shim->variables.begin(), shim->variables.end());
  return result;
}

}  // namespace lgpu::cli
