#ifndef LGPU_DAEMON_RECOVERY_JOURNAL_H_
#define LGPU_DAEMON_RECOVERY_JOURNAL_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/broker/grant_log.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "daemon/recovery/journal_format.h"

namespace lgpu::daemon {

/// A Journal is the file from which the next lgpud learns the chunks of each session: `journal` in the
/// runtime directory. It has every chunk that a client has: a grant is in the file before it leaves (Note,
/// then Commit), a freed chunk may be in it a little longer. There is no fsync: it is to survive the daemon,
/// not the machine.
///
/// Thread-safe. Note is cheap and may be called under other locks, so that records have the order of their
/// events. Commit writes; the one lock that it holds meanwhile is the file's own.
class Journal final : public GrantLog {
 public:
  enum class Found {
    kNone,         // no file: the first daemon here, or it was removed
    kWhole,        // `state` is the daemon's last state, or a little more
    kForeignBoot,  // the machine was started again since: its processes are gone
    kDamaged,      // or cut short; `state` may be less than the daemon's last state
  };
  struct Opened {
    std::unique_ptr<Journal> journal;
    JournalState state;  // of the daemon before
    Found found = Found::kNone;
    std::string detail;
  };
  /// A mark on every card in the new file, until Settled: that the file before was damaged, missing or of
  /// another boot. A start that does not come to its end leaves it to the next one.
  static constexpr char kWasDamaged[] = "*damaged";
  static constexpr char kWasMissing[] = "*missing";
  static constexpr char kWasOfAnotherBoot[] = "*other boot";
  /// Reads the file, and begins a new one with the same state. `directory`: exists; `boot_id`: 36 characters.
  /// The file's errors.
  static absl::StatusOr<Opened> Open(const std::string& directory, const std::string& boot_id);

  /// Records that the doubts about a damaged or missing earlier file are explained.
  void Settled();
  /// The record is true from here on, and will be in the file.
  void Note(const v1::JournalRecord& record);
  void NoteGranted(const Granted& granted) override;
  void NoteFreed(ChunkId chunk) override;
  void NoteCharged(const Charged& charged) override;
  /// Writes all earlier notes to the file. UNAVAILABLE, with the cause: that failed, and the next call tries
  /// again.
  absl::Status Commit() override;
  /// To be called now and then: commits, and writes the file anew where most of it is past.
  void Tend();

 private:
  explicit Journal(std::string path) : path_(std::move(path)) {}
  absl::Status WriteAnew() ABSL_EXCLUSIVE_LOCKS_REQUIRED(file_mutex_);
  absl::Status Explain(const absl::Status& status) const;

  const std::string path_;
  UniqueFd directory_;
  std::string boot_id_;

  Mutex file_mutex_;  // before mutex_
  UniqueFd file_ ABSL_GUARDED_BY(file_mutex_);
  std::uint64_t size_ ABSL_GUARDED_BY(file_mutex_) = 0;     // of its whole records
  std::uint64_t anew_at_ ABSL_GUARDED_BY(file_mutex_) = 0;  // size_ when WriteAnew failed last
  bool broken_ ABSL_GUARDED_BY(file_mutex_) = false;        // it may have half a record or half a length

  Mutex mutex_;
  JournalState state_ ABSL_GUARDED_BY(mutex_);
  std::string pending_ ABSL_GUARDED_BY(mutex_);
};

/// Identifies this boot of the machine.
absl::StatusOr<std::string> ReadBootId();

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_RECOVERY_JOURNAL_H_
