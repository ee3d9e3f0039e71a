#include "daemon/recovery/journal.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "daemon/recovery/journal_io.h"
#include "lgpu/status.h"

namespace lgpu::daemon {
namespace {

constexpr char kName[] = "journal";
// A file shorter than this is never written anew.
constexpr std::uint64_t kWorthWhile = std::uint64_t{1} << 20;

// Without O_APPEND, with which Linux would append the length too.
absl::StatusOr<UniqueFd> OpenToAppend(int directory) {
  UniqueFd file(::openat(directory, kName, O_WRONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!file || ::lseek(file.get(), 0, SEEK_END) < 0) {
    return absl::ErrnoToStatus(errno, "cannot open the journal");
  }
  return file;
}

// Takes back what a failed append wrote.
bool CutBackTo(std::uint64_t size, int file) {
  const auto end = static_cast<off_t>(size);
  return ::ftruncate(file, end) == 0 && ::lseek(file, end, SEEK_SET) == end;
}

// The findings that an unfinished start leaves to the next one, the worst first.
constexpr std::array<std::pair<const char*, Journal::Found>, 3> kDoubts = {{
    {Journal::kWasDamaged, Journal::Found::kDamaged},
    {Journal::kWasMissing, Journal::Found::kNone},
    {Journal::kWasOfAnotherBoot, Journal::Found::kForeignBoot},
}};

v1::JournalRecord Unexplained(const char* what, bool explained) {
  v1::JournalRecord record;
  record.mutable_unexplained()->set_card_uuid(what);
  record.mutable_unexplained()->set_explained(explained);
  return record;
}

}  // namespace

absl::StatusOr<std::string> ReadBootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  if (id.size() != kBootIdBytes) return absl::InternalError("/proc/sys/kernel/random/boot_id has no boot id");
  return id;
}

absl::StatusOr<Journal::Opened> Journal::Open(const std::string& directory, const std::string& boot_id) {
  Opened opened;
  const std::string path = directory + "/" + kName;
  // An unreadable journal does not count as a missing one: its memory would be granted twice.
  LGPU_ASSIGN_OR_RETURN(const std::optional<std::string> bytes, ReadFile(path));
  if (bytes) {
    ParsedJournal parsed = ParseJournal(*bytes, boot_id);
    opened.detail = std::move(parsed.detail);
    opened.state = std::move(parsed.state);
    opened.found = parsed.condition == ParsedJournal::Condition::kDamaged       ? Found::kDamaged
                   : parsed.condition == ParsedJournal::Condition::kForeignBoot ? Found::kForeignBoot
                                                                                : Found::kWhole;
    if (opened.found == Found::kDamaged) KeepDamaged(path);
  }
  const std::set<std::string> doubts = opened.state.unexplained();
  for (const auto& [doubt, was] : kDoubts) {
    if (opened.found != Found::kWhole || !doubts.contains(doubt)) continue;
    opened.found = was;
    opened.detail = "found so by an lgpud that did not come to serve";
  }
  for (const auto& [doubt, was] : kDoubts) {
    if (opened.found == was) {
      LGPU_RETURN_IF_ERROR(opened.state.Apply(Unexplained(doubt, /*explained=*/false)));
    }
  }
  std::unique_ptr<Journal> journal(new Journal(path));
  journal->boot_id_ = boot_id;
  journal->directory_ = UniqueFd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!journal->directory_) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", directory));
  {
    MutexLock file_lock(journal->file_mutex_);
    {
      MutexLock lock(journal->mutex_);
      journal->state_ = opened.state;
    }
    LGPU_RETURN_IF_ERROR(journal->WriteAnew());
  }
  opened.journal = std::move(journal);
  return opened;
}

void Journal::Settled() {
  for (const auto& [doubt, was] : kDoubts) {
    {
      MutexLock lock(mutex_);
      if (!state_.unexplained().contains(doubt)) continue;
    }
    Note(Unexplained(doubt, /*explained=*/true));
  }
}

void Journal::Note(const v1::JournalRecord& record) {
  MutexLock lock(mutex_);
  const absl::Status applied = state_.Apply(record);
  // A session or chunk that could not be restored at the start may prevent the end of its lease or session:
  // the ended one stays in the file. The file may have too much, and never too little.
  if (!applied.ok() && !record.has_granted() && !record.has_charged()) {
    spdlog::error("the journal keeps a record that has ended: {}", std::string(applied.message()));
    return;
  }
  LGPU_CHECK(applied.ok());
  AppendJournalRecord(record, pending_);
}

void Journal::NoteGranted(const Granted& granted) {
  v1::JournalRecord record;
  v1::JournalGranted& out = *record.mutable_granted();
  out.set_chunk_id(granted.chunk.value);
  out.set_session_id(granted.session.value);
  out.set_device_id(granted.device.value);
  out.set_bytes(granted.bytes.count());
  out.set_identity(granted.identity);
  Note(record);
}

void Journal::NoteFreed(ChunkId chunk) {
  v1::JournalRecord record;
  record.mutable_freed()->set_chunk_id(chunk.value);
  Note(record);
}

void Journal::NoteCharged(const Charged& charged) {
  v1::JournalRecord record;
  v1::JournalCharged& out = *record.mutable_charged();
  out.set_session_id(charged.session.value);
  out.set_device_id(charged.device.value);
  out.set_bytes(charged.bytes.count());
  Note(record);
}

absl::Status Journal::Commit() {
  MutexLock file_lock(file_mutex_);
  std::string bytes;
  {
    MutexLock lock(mutex_);
    if (pending_.empty() && !broken_) return absl::OkStatus();
    bytes.swap(pending_);
  }
  // The records of `bytes` are in the state too, so a new file has them.
  if (broken_) return WriteAnew();
  absl::Status written = AppendToFile(file_.get(), bytes);
  const bool appended = written.ok();
  if (appended) written = WriteJournalLength(file_.get(), size_ + bytes.size());
  if (written.ok()) {
    size_ += bytes.size();
    return absl::OkStatus();
  }
  // Half a record in the middle of the file would hide all that comes behind it, and the header may have half
  // a length.
  broken_ = appended || !CutBackTo(size_, file_.get());
  MutexLock lock(mutex_);
  pending_.insert(0, bytes);
  // Repeated requests must not fill the memory with records: the state is shorter, and the next Commit writes
  // it.
  broken_ = broken_ || pending_.size() > kWorthWhile;
  return Explain(written);
}

absl::Status Journal::WriteAnew() {
  std::string bytes = EncodeJournalHeader(boot_id_);
  std::string pending;
  {
    MutexLock lock(mutex_);
    state_.Encode(bytes);
    pending.swap(pending_);
  }
  SetJournalLength(bytes);
  if (const absl::Status replaced = ReplaceFile(directory_.get(), kName, bytes, /*sync=*/false);
      !replaced.ok()) {
    // The file before is as whole as it was.
    MutexLock lock(mutex_);
    pending_.insert(0, pending);
    return Explain(replaced);
  }
  broken_ = true;  // until the new one is open
  absl::StatusOr<UniqueFd> file = OpenToAppend(directory_.get());
  if (!file.ok()) return Explain(file.status());
  file_ = *std::move(file);
  size_ = bytes.size();
  anew_at_ = 0;
  broken_ = false;
  return absl::OkStatus();
}

absl::Status Journal::Explain(const absl::Status& status) const {
  return absl::UnavailableError(absl::StrCat(
      "lgpud cannot write ", path_, " (", std::string(status.message()),
      "), and grants nothing that it could not account for after a restart; make room there and try again"));
}

void Journal::Tend() {
  if (const absl::Status status = Commit(); !status.ok()) {
    spdlog::error("{}", std::string(status.message()));
    return;
  }
  MutexLock file_lock(file_mutex_);
  std::size_t needed = 0;
  {
    MutexLock lock(mutex_);
    needed = state_.encoded_bytes();
  }
  if (size_ < std::max<std::uint64_t>({kWorthWhile, 4 * needed, anew_at_})) return;
  // On an error the old file is still whole: it only grows further.
  if (const absl::Status status = WriteAnew(); !status.ok()) {
    anew_at_ = size_ + kWorthWhile;
    spdlog::warn("{}", std::string(status.message()));
  }
}

}  // namespace lgpu::daemon
