#include "base/host_memory.h"

#include <algorithm>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/read_file.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

std::string TextOf(const std::string& path) { return ReadWholeFile(path).value_or(""); }

std::optional<Bytes> ReadBytes(const std::string& path) {
  std::uint64_t number = 0;
  if (!absl::SimpleAtoi(TextOf(path), &number)) return std::nullopt;  // "max" among others
  return Bytes(number);
}

std::optional<Bytes> Available(const std::string& proc) {
  for (const absl::string_view line : absl::StrSplit(TextOf(absl::StrCat(proc, "/meminfo")), '\n')) {
    absl::string_view rest = line;
    std::uint64_t kib = 0;
    if (!absl::ConsumePrefix(&rest, "MemAvailable:") || !absl::ConsumeSuffix(&rest, "kB")) continue;
    if (absl::SimpleAtoi(rest, &kib)) return Bytes(kib << 10);
  }
  return std::nullopt;
}

// The folder of the process's cgroup below the root of cgroups; empty: it is not known.
std::string CgroupOf(std::int64_t pid, const std::string& proc) {
  for (const absl::string_view line : absl::StrSplit(TextOf(absl::StrCat(proc, "/", pid, "/cgroup")), '\n')) {
    absl::string_view folder = line;
    if (absl::ConsumePrefix(&folder, "0::")) return std::string(folder);
  }
  return {};
}

absl::Status CheckCgroups(std::string folder, Bytes bytes, const std::string& root) {
  while (!folder.empty() && folder != "/") {
    const std::string path = root + folder;
    const std::optional<Bytes> most = ReadBytes(path + "/memory.max");
    const std::optional<Bytes> used = ReadBytes(path + "/memory.current");
    if (most && used && bytes > SaturatingSub(*most, *used)) {
      return absl::ResourceExhaustedError(
          absl::StrCat("its cgroup ", folder, " may have ", FormatBytes(SaturatingSub(*most, *used)),
                       " more of host memory (memory.max), and ", FormatBytes(bytes), " are needed"));
    }
    folder.resize(folder.rfind('/'));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckHostMemory(const std::vector<std::int64_t>& pids, Bytes bytes,
                             const HostMemoryFiles& files) {
  if (const std::optional<Bytes> available = Available(files.proc)) {
    const Bytes left = SaturatingSub(*available, kHostMemoryKept);
    if (bytes > left) {
      return absl::ResourceExhaustedError(absl::StrCat(
          FormatBytes(bytes), " of host memory are needed, and the machine has ", FormatBytes(*available),
          " available, of which ", FormatBytes(kHostMemoryKept), " stay free"));
    }
  }
  for (const std::int64_t pid : pids) {
    LGPU_RETURN_IF_ERROR(CheckCgroups(CgroupOf(pid, files.proc), bytes, files.cgroups));
  }
  return absl::OkStatus();
}

}  // namespace lgpu
