#include "daemon/leases/lease_store.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>

#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/unique_fd.h"
#include "daemon/leases/lease_file.h"
#include "daemon/leases/management.h"
#include "daemon/recovery/journal.h"
#include "daemon/recovery/journal_format.h"
#include "daemon/recovery/journal_io.h"
#include "lgpu/status.h"

namespace lgpu::daemon {
namespace {

constexpr char kFile[] = "leases";

}  // namespace

absl::StatusOr<LeaseStore::Found> LeaseStore::Read() const {
  const std::string path = absl::StrCat(directory_, "/", kFile);
  Found found;
  LGPU_ASSIGN_OR_RETURN(const std::optional<std::string> bytes, ReadFile(path));
  if (!bytes) {
    found.is_whole = false;  // whether there were leases is not known
    return found;
  }
  const ParsedLeaseFile parsed = ParseLeaseFile(*bytes);
  found.is_whole = parsed.damages.empty();
  if (!found.is_whole) {
    KeepDamaged(path);
    for (const std::string& damage : parsed.damages) spdlog::error("{}: {}", path, damage);
    spdlog::error("{} is damaged and is kept as {}.damaged; {} of its lasting leases can be read", path, path,
                  parsed.leases.size());
  }
  LGPU_ASSIGN_OR_RETURN(const std::string boot_id, ReadBootId());
  for (const v1::JournalLease& lease : parsed.leases) {
    if (!IsOfAnotherBoot(lease.management(), boot_id) && !IsOfAnotherBoot(lease.ends(), boot_id)) {
      found.leases.push_back(lease);
    }
  }
  return found;
}

absl::Status LeaseStore::Write(const std::vector<v1::JournalLease>& leases) const {
  std::string bytes = EncodeJournalHeader("");
  v1::JournalRecord record;
  for (const v1::JournalLease& lease : leases) {
    *record.mutable_lease() = lease;
    AppendJournalRecord(record, bytes);
  }
  SetJournalLength(bytes);
  std::error_code error;
  std::filesystem::create_directories(directory_, error);
  const UniqueFd directory(::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const absl::Status saved = directory ? ReplaceFile(directory.get(), kFile, bytes, /*sync=*/true)
                                       : absl::ErrnoToStatus(errno, "cannot open it");
  if (saved.ok()) return saved;
  return absl::UnavailableError(
      absl::StrCat("lgpud cannot write ", directory_, "/", kFile, " (", std::string(saved.message()),
                   "), which keeps the lasting leases; make room there and try again"));
}

}  // namespace lgpu::daemon
