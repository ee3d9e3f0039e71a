#include "tests/simulation/machine/paths.h"

#include <charconv>
#include <cstdio>
#include <map>
#include <utility>

#include "tests/simulation/machine/mappings.h"

namespace lgpu::simulation {
namespace {

constexpr std::string_view kProc = "/proc/";

// The number that `text` begins with; nothing: none, or another character than '/' follows.
std::optional<int> LeadingNumber(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_whole = end == text.data() + text.size() || *end == '/';
  return error == std::errc() && is_whole ? std::optional(number) : std::nullopt;
}

std::map<std::uint64_t, std::uint64_t>& Inodes() {
  static auto* const inodes = new std::map<std::uint64_t, std::uint64_t>();
  return *inodes;
}

// In the kernel's hundredths of a second.
std::uint64_t Ticks(Time time) {
  return static_cast<std::uint64_t>(time / std::chrono::milliseconds(10)) + 1;
}

std::string StatText(const MachineProcess& process) {
  std::string text = std::to_string(process.pid) + " (" + process.name + ") " +
                     (process.is_stopped ? "T " : "S ") + std::to_string(process.parent);
  for (int field = 5; field < 22; ++field) text += " 0";
  return text + " " + std::to_string(Ticks(process.started)) + " 0 0\n";
}

// In the order of the mappings' making: that of their addresses differs from build to build.
std::string MapsText(const MachineProcess& process) {
  std::map<std::pair<std::uint64_t, std::uintptr_t>, const Mappings::Mapping*> mappings;
  for (const auto& [start, mapping] : Mappings::Get().all()) {
    if (mapping.process != &process || mapping.file.get() == nullptr) continue;
    mappings[{mapping.number, start}] = &mapping;
  }
  std::string text = "00400000-00401000 r-xp 00000000 00:00 0 \n";
  for (const auto& [place, mapping] : mappings) {
    const RealFile& file = *mapping->file.get();
    char line[128];
    std::snprintf(line, sizeof line, "%012lx-%012lx rw-s 00000000 00:01 %llu ", place.second, mapping->end,
                  static_cast<unsigned long long>(SimulatedInode(file.inode())));
    text += line + ProcLink(file) + "\n";
  }
  return text;
}

}  // namespace

std::string RealPath(const std::string& path) {
  constexpr std::string_view kOwn = "/proc/self/fd/";
  if (!path.starts_with(kOwn)) return path;
  const std::string_view rest = std::string_view(path).substr(kOwn.size());
  const std::optional<int> fd = LeadingNumber(rest);
  const std::shared_ptr<Descriptor> descriptor = fd ? Descriptors::Get().Find(*fd) : nullptr;
  if (descriptor == nullptr || descriptor->real() < 0) return path;
  const std::size_t end = rest.find('/');
  return std::string(kOwn) + std::to_string(descriptor->real()) +
         (end == std::string_view::npos ? "" : std::string(rest.substr(end)));
}

std::optional<ProcPath> ParseProcPath(std::string_view path) {
  if (path == "/proc" || path == "/proc/") return ProcPath{.process = nullptr, .is_root = true, .rest = ""};
  if (!path.starts_with(kProc)) return std::nullopt;
  path.remove_prefix(kProc.size());
  const std::size_t slash = path.find('/');
  const std::string rest(slash == std::string_view::npos ? "" : path.substr(slash + 1));
  if (path.starts_with("self")) {
    if (rest.starts_with("fd/")) return std::nullopt;  // RealPath's
    return ProcPath{.process = Scheduler::Self().process, .is_root = false, .rest = rest};
  }
  const std::optional<int> pid = LeadingNumber(path);
  if (!pid) return std::nullopt;
  return ProcPath{.process = Processes::Get().Find(*pid), .is_root = false, .rest = rest};
}

std::optional<std::string> ProcText(const ProcPath& path) {
  if (path.process == nullptr) return std::nullopt;
  if (path.rest == "stat") return StatText(*path.process);
  if (path.rest == "comm") return path.process->name.substr(0, 15) + "\n";
  if (path.rest == "cmdline") return path.process->name + std::string(1, '\0');
  if (path.rest == "maps") return MapsText(*path.process);
  return std::nullopt;
}

std::shared_ptr<Descriptor> ProcDescriptor(const ProcPath& path) {
  if (path.process == nullptr) return nullptr;
  if (path.rest.starts_with("fd/")) {
    const auto open = Descriptors::Get().Of(*path.process);
    const auto found = open.find(LeadingNumber(std::string_view(path.rest).substr(3)).value_or(-1));
    return found == open.end() ? nullptr : found->second;
  }
  unsigned long start = 0;
  if (std::sscanf(path.rest.c_str(), "map_files/%lx-", &start) != 1) return nullptr;
  return Mappings::Get().FileAt(start);
}

std::string ProcLink(const Descriptor& descriptor) {
  const auto* const file = dynamic_cast<const RealFile*>(&descriptor);
  if (file == nullptr) return "anon_inode:simulated";
  return file->memfd_name().empty() ? "/a/file" : "/memfd:" + file->memfd_name() + " (deleted)";
}

std::optional<std::vector<std::string>> ProcNames(const ProcPath& path) {
  std::vector<std::string> names;
  if (path.is_root) {
    for (const auto& [pid, process] : Processes::Get().live()) names.push_back(std::to_string(pid));
    return names;
  }
  if (path.process == nullptr) return std::nullopt;
  if (path.rest == "task") return std::vector<std::string>{std::to_string(path.process->pid)};
  if (path.rest != "fd") return std::nullopt;
  for (const auto& [fd, descriptor] : Descriptors::Get().Of(*path.process)) {
    names.push_back(std::to_string(fd));
  }
  return names;
}

std::uint64_t NewInode(std::uint64_t real) {
  static std::uint64_t last = 5000;
  return Inodes()[real] = ++last;
}

std::uint64_t SimulatedInode(std::uint64_t real) {
  const auto found = Inodes().find(real);
  return found == Inodes().end() ? real : found->second;
}

}  // namespace lgpu::simulation
