// Replaces daemon/recovery/journal_io.cc in the tests' own lgpud: the same, but it dies, or forgets, when the
// environment says so. The installed lgpud has none of this.
//
//   LGPU_TEST_JOURNAL_DIE=N[:half|:after]  SIGKILL at the N-th write of the journal: before it, in its
//                                          middle, or behind it (before the length of the file is written)
//   LGPU_TEST_BREAK_LEDGER=1               a seeded bug: every seventh append is forgotten

#define AppendToFile RealAppendToFile
#define ReplaceFile RealReplaceFile
#define WriteJournalLength RealWriteJournalLength
#include "daemon/recovery/journal_io.cc"
#undef AppendToFile
#undef ReplaceFile
#undef WriteJournalLength

#include <atomic>
#include <csignal>
#include <cstdlib>

namespace lgpu::daemon {
namespace {

enum class Moment { kBefore, kHalf, kAfter };

bool DiesNow(Moment moment) {
  static const char* const plan = std::getenv("LGPU_TEST_JOURNAL_DIE");
  static std::atomic<int> calls = 0;
  if (plan == nullptr) return false;
  const std::string_view text(plan);
  const Moment wanted = text.find(":half") != std::string_view::npos    ? Moment::kHalf
                        : text.find(":after") != std::string_view::npos ? Moment::kAfter
                                                                        : Moment::kBefore;
  // The first moment of a write counts it.
  const int call = moment == Moment::kBefore ? ++calls : calls.load();
  return call == std::atoi(plan) && moment == wanted;
}

void MaybeDie(Moment moment) {
  if (DiesNow(moment)) ::raise(SIGKILL);
}

bool IsLedgerBroken() {
  static const bool broken = std::getenv("LGPU_TEST_BREAK_LEDGER") != nullptr;
  return broken;
}

bool ForgetsNow() {
  static std::atomic<int> calls = 0;
  return IsLedgerBroken() && ++calls % 7 == 0;
}

}  // namespace

absl::Status AppendToFile(int fd, std::string_view bytes);
absl::Status ReplaceFile(int directory, const std::string& name, std::string_view bytes, bool sync);
absl::Status WriteJournalLength(int fd, std::uint64_t length);

absl::Status AppendToFile(int fd, std::string_view bytes) {
  MaybeDie(Moment::kBefore);
  if (DiesNow(Moment::kHalf)) {
    RealAppendToFile(fd, bytes.substr(0, bytes.size() / 2)).IgnoreError();
    ::raise(SIGKILL);
  }
  if (ForgetsNow()) return absl::OkStatus();
  absl::Status status = RealAppendToFile(fd, bytes);
  MaybeDie(Moment::kAfter);
  return status;
}

absl::Status WriteJournalLength(int fd, std::uint64_t length) {
  // The seeded bug is in the ledger: the next daemon is to take the file for whole.
  if (IsLedgerBroken()) length = static_cast<std::uint64_t>(::lseek(fd, 0, SEEK_CUR));
  return RealWriteJournalLength(fd, length);
}

absl::Status ReplaceFile(int directory, const std::string& name, std::string_view bytes, bool sync) {
  MaybeDie(Moment::kBefore);
  if (DiesNow(Moment::kHalf)) {
    // It lies beside the old one, and is not there yet.
    const std::string beside = name + ".new";
    const UniqueFd file(::openat(directory, beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    RealAppendToFile(file.get(), bytes.substr(0, bytes.size() / 2)).IgnoreError();
    ::raise(SIGKILL);
  }
  absl::Status status = RealReplaceFile(directory, name, bytes, sync);
  MaybeDie(Moment::kAfter);
  return status;
}

}  // namespace lgpu::daemon
