#include "allocator/device/simulated/memfd.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"

namespace lgpu {
namespace {

// A client that kept its descriptor can neither bring back pages that were reclaimed nor seal the
// daemon out of reclaiming them.
constexpr int kChunkSeals = F_SEAL_GROW | F_SEAL_SEAL;
// Under Linux's default overcommit an exhausted machine starts the OOM killer; fallocate does not fail.
constexpr Bytes kMachineReserve = 64_MiB;

template <typename Call>
int RetryInterrupted(Call call) {
  int result;
  do {
    result = call();
  } while (result != 0 && errno == EINTR);
  return result;
}

std::optional<Bytes> AvailableMachineMemory() {
  std::ifstream meminfo("/proc/meminfo");
  for (std::string line; std::getline(meminfo, line);) {
    unsigned long long kib = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %llu kB", &kib) == 1) return Bytes(kib << 10);
  }
  return std::nullopt;
}

bool MachineHasMemory(Bytes bytes) {
  struct sysinfo info {};
  const Bytes needed = SaturatingAdd(bytes, kMachineReserve);
  if (sysinfo(&info) == 0 && Bytes(std::uint64_t{info.freeram} * info.mem_unit) >= needed) return true;
  // The kernel can take memory back from the page cache; reading that number is slower.
  return AvailableMachineMemory().value_or(needed) >= needed;
}

}  // namespace

absl::Status SystemCallError(const char* call, int error) {
  return absl::InternalError(
      absl::StrCat(call, " failed: ", strerrordesc_np(error) ? strerrordesc_np(error) : "unknown error",
                   " (errno ", error, ")"));
}

absl::Status MachineRefusal(RefusalReason reason, std::string_view what, Bytes asked) {
  Refusal refusal;
  refusal.reason = reason;
  refusal.what = what;
  refusal.asked = asked;
  switch (reason) {
    case RefusalReason::kDescriptors:
      refusal.advice = {
          "raise the limit of open files: ulimit -n 16384, or LimitNOFILE= in the service unit"};
      break;
    case RefusalReason::kMapCount:
      refusal.advice = {"raise the number of mappings a process may have: sysctl -w vm.max_map_count=1048576",
                        "use larger chunks or a smaller limit"};
      break;
    case RefusalReason::kAddressRange:
      refusal.advice = {"this process may have no more addresses: ulimit -v unlimited (RLIMIT_AS)",
                        "ask for a smaller memory_limit"};
      break;
    default:
      refusal.advice = {
          "the machine is short of memory, not the simulated device: free some, or simulate less",
          "simulate with sparse chunks, which take memory only when they are touched"};
  }
  return RefusalStatus(refusal);
}

std::uint64_t MaxMappings() {
  std::uint64_t most = 0;
  return std::ifstream("/proc/sys/vm/max_map_count") >> most ? most : ~std::uint64_t{0};
}

absl::Status MappingError(const char* call, int error, Bytes asked) {
  if (error != ENOMEM) return SystemCallError(call, error);
  std::ifstream maps("/proc/self/maps");
  std::uint64_t mappings = 0;
  for (std::string line; std::getline(maps, line);) ++mappings;
  const std::uint64_t most = MaxMappings();
  constexpr std::uint64_t kNearly = 16;  // a call needs up to two; other threads may have added some since
  const bool out_of_mappings = mappings + kNearly >= most;
  return MachineRefusal(out_of_mappings ? RefusalReason::kMapCount : RefusalReason::kBackend,
                        absl::StrCat(call, ", with ", mappings, " mappings of at most ", most), asked);
}

std::string ChunkMemfdName(const std::string& uuid) {
  constexpr std::size_t kMostBytes = 200;  // memfd_create takes 249
  return kChunkMemfdName + uuid.substr(0, kMostBytes);
}

absl::StatusOr<UniqueFd> CreateChunkMemfd(Bytes bytes, bool sparse, const std::string& name) {
  constexpr std::string_view kWhat = "chunk of simulated device memory";
  if (!sparse && !MachineHasMemory(bytes)) return MachineRefusal(RefusalReason::kBackend, kWhat, bytes);
  UniqueFd fd(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) {
    const int error = errno;
    if (error == EMFILE || error == ENFILE) return MachineRefusal(RefusalReason::kDescriptors, kWhat, bytes);
    if (error == ENOMEM) return MachineRefusal(RefusalReason::kBackend, kWhat, bytes);
    return SystemCallError("memfd_create of a chunk", error);
  }
  const auto size = static_cast<off_t>(bytes.count());
  if (RetryInterrupted([&] { return ftruncate(fd.get(), size); }) != 0) {
    return SystemCallError("ftruncate of a new chunk", errno);
  }
  if (!sparse && RetryInterrupted([&] { return fallocate(fd.get(), 0, 0, size); }) != 0) {
    const int error = errno;
    if (error == ENOSPC || error == ENOMEM) return MachineRefusal(RefusalReason::kBackend, kWhat, bytes);
    return SystemCallError("fallocate of a new chunk", error);
  }
  if (fcntl(fd.get(), F_ADD_SEALS, kChunkSeals) != 0) return SystemCallError("sealing a new chunk", errno);
  return fd;
}

bool HasChunkSeals(int fd) {
  const int seals = fcntl(fd, F_GET_SEALS);
  return seals >= 0 && (seals & kChunkSeals) == kChunkSeals && (seals & F_SEAL_SHRINK) == 0;
}

absl::Status CheckChunkMemfd(int fd, Bytes bytes) {
  struct stat status {};
  if (fstat(fd, &status) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("descriptor ", fd, " is not open: a chunk was expected"));
  }
  if (!S_ISREG(status.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat("descriptor ", fd, " is no memory file: a chunk was expected"));
  }
  if ((fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDWR) {
    return absl::InvalidArgumentError(
        absl::StrCat("descriptor ", fd, " is not open for reading and writing: a chunk was expected"));
  }
  if (!HasChunkSeals(fd)) {
    return absl::InvalidArgumentError(
        absl::StrCat("descriptor ", fd, " is not sealed as a chunk is: it comes from somewhere else"));
  }
  if (static_cast<std::uint64_t>(status.st_size) != bytes.count()) {
    return absl::InvalidArgumentError(absl::StrCat("descriptor ", fd, " has ", status.st_size,
                                                   " bytes, but a chunk of ", bytes.count(),
                                                   " bytes was granted"));
  }
  return absl::OkStatus();
}

absl::Status EmptyChunkMemfd(int fd) {
  if (RetryInterrupted([&] { return ftruncate(fd, 0); }) != 0) {
    return SystemCallError("ftruncate of a chunk to nothing", errno);
  }
  return absl::OkStatus();
}

}  // namespace lgpu
