#ifndef LGPU_DAEMON_RECOVERY_JOURNAL_IO_H_
#define LGPU_DAEMON_RECOVERY_JOURNAL_IO_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lgpu::daemon {

// A journal's calls of the file system, in a file of their own: the lgpud of the tests has another one,
// which dies at the n-th of these calls.

/// All of a file; nothing where there is none.
absl::StatusOr<std::optional<std::string>> ReadFile(const std::string& path);
/// Writes all of `bytes` at the file's offset, which is its end. On an error some of it may be written.
absl::Status AppendToFile(int fd, std::string_view bytes);
/// Writes the length of the file into the header of a journal. These are few bytes of one page, so that the
/// death of this process leaves the old length or the new one.
absl::Status WriteJournalLength(int fd, std::uint64_t length);
/// Makes or replaces the file `name` in `directory` with `bytes`: written beside it and renamed, so that a
/// death in between leaves the old file or the new one. `sync`: it survives the machine's death too.
absl::Status ReplaceFile(int directory, const std::string& name, std::string_view bytes, bool sync);

/// Gives a damaged file a second name, `path`.damaged, for the administrator. The file stays where it
/// is until ReplaceFile has made a whole one, so the next daemon can read it if this one dies before.
void KeepDamaged(const std::string& path);

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_RECOVERY_JOURNAL_IO_H_
