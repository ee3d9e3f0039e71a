#include "daemon/sessions/session_state.h"

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lgpu::daemon {
namespace {

bool HasChargeWords(int fd) {
  struct stat info = {};
  return ::fstat(fd, &info) == 0 && info.st_size == static_cast<off_t>(sizeof(ClientPage));
}

// 0: of no open file, a page that no client has.
std::uint64_t InodeOf(int fd) {
  struct stat info = {};
  return ::fstat(fd, &info) == 0 ? info.st_ino : 0;
}

}  // namespace

SessionState::SessionState(Identity identity, Process process, std::shared_ptr<Waker> waker,
                           SharedPage<StatsPage> stats_page, SharedPage<const ClientPage> client_page)
    : identity_(std::move(identity)),
      process_(std::move(process)),
      waker_(std::move(waker)),
      stats_page_(std::move(stats_page)),
      client_page_(std::move(client_page)),
      page_inode_(InodeOf(client_page_.fd())),
      has_charge_words_(HasChargeWords(client_page_.fd())),
      placements_(client_page_.get(), identity_.id, process_.pid),
      snapshots_(waker_),
      earlier_pages_(identity_.earlier_pages),
      pages_unknown_(identity_.pages_unknown) {
  WriteTick(TickAt(UseTimeNow()));
}

std::vector<std::uint64_t> SessionState::pages() const {
  MutexLock lock(mutex_);
  if (pages_unknown_) return {};
  std::vector<std::uint64_t> pages = earlier_pages_;
  if (page_inode_ != 0) pages.push_back(page_inode_);
  return pages;
}

bool MapsOneOf(const std::vector<std::uint64_t>& pages, const std::set<std::uint64_t>& mapped) {
  return std::any_of(pages.begin(), pages.end(), [&](std::uint64_t page) { return mapped.contains(page); });
}

void SessionState::ClosePageFds() {
  stats_page_.CloseFd();
  client_page_.CloseFd();
}

void SessionState::ForgetEarlierPages() {
  MutexLock lock(mutex_);
  earlier_pages_.clear();
  pages_unknown_ = false;
}

SessionState::Phase SessionState::phase() const {
  MutexLock lock(mutex_);
  return phase_;
}

LeaseKey SessionState::lease() const {
  MutexLock lock(mutex_);
  return lease_;
}

absl::Status SessionState::Attach(LeaseKey lease) {
  MutexLock lock(mutex_);
  if (phase_ != Phase::kLive || !end_request_.ok()) {
    return absl::FailedPreconditionError(absl::StrCat("session ", id().value, " has ended; connect again"));
  }
  if (lease_ && lease_ != lease) {
    return absl::FailedPreconditionError(absl::StrCat(
        "session ", id().value, " is attached to another lease; a session has one, connect once more"));
  }
  lease_ = lease;
  return absl::OkStatus();
}

void SessionState::StartDraining() {
  MutexLock lock(mutex_);
  phase_ = Phase::kDraining;
}

void SessionState::SetAbsent(LeaseKey lease) {
  MutexLock lock(mutex_);
  phase_ = Phase::kAbsent;
  lease_ = lease;
}

bool SessionState::LeaveAbsent() {
  MutexLock lock(mutex_);
  if (phase_ != Phase::kAbsent) return false;
  phase_ = Phase::kDraining;
  return true;
}

void SessionState::RequestEnd(const absl::Status& why) {
  {
    MutexLock lock(mutex_);
    // Made anew: one removal ends many sessions, and their threads share no status. (ThreadSanitizer does not
    // see how libabsl_status counts the references to one.)
    if (end_request_.ok()) end_request_ = absl::Status(why.code(), why.message());
  }
  waker_->Wake();
}

absl::Status SessionState::end_request() const {
  MutexLock lock(mutex_);
  return end_request_;
}

bool SessionState::has_lost_context() const {
  return client_page_->context_lost.load(std::memory_order_relaxed) != 0;
}

void SessionState::NoteLoss() {
  ended_by_itself_.store(client_page_->exiting.load(std::memory_order_relaxed) != 0);
}

bool SessionState::TakeLostContext() { return has_lost_context() && !loss_is_known_.exchange(true); }

void SessionState::WriteStats(const std::vector<DeviceFigures>& devices) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  // A reader that sees one of the new values sees the odd epoch too.
  constexpr auto kRelease = std::memory_order_release;
  MutexLock lock(stats_mutex_);
  StatsPage& page = *stats_page_;
  const std::uint64_t epoch = page.epoch.load(kRelaxed);
  page.epoch.store(epoch + 1, kRelaxed);
  const std::size_t count = std::min<std::size_t>(devices.size(), StatsPage::kMaxDevices);
  for (std::size_t i = 0; i < count; ++i) {
    const auto& [id, info, unused_by_others] = devices[i];
    StatsPage::Device& device = page.devices[i];
    device.id.store(id.value, kRelease);
    device.limit.store(info.limit.count(), kRelease);
    device.guarantee.store(info.guarantee.count(), kRelease);
    device.held.store(info.held.count(), kRelease);
    device.card_free.store(info.card_free.count(), kRelease);
    device.unused_by_others.store(unused_by_others.count(), kRelease);
  }
  page.device_count.store(count, kRelease);
  page.epoch.store(epoch + 2, std::memory_order_release);
}

absl::Status SessionDirectory::Add(std::shared_ptr<SessionState> session) {
  const std::uint32_t uid = session->uid();
  if (!shares_.TryTake(uid)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "your programs have ", shares_.CountOf(uid), " sessions, which is your share of the ",
        shares_.places(),
        " of this lgpud; a session that has lost its connection counts until its memory is back\n  try: end"
        " some of the programs, or have its daemon.max_sessions or its limit of open files raised"));
  }
  Insert(std::move(session));
  return absl::OkStatus();
}

void SessionDirectory::Restore(std::shared_ptr<SessionState> session) {
  shares_.Take(session->uid(), 1);
  Insert(std::move(session));
}

void SessionDirectory::Insert(std::shared_ptr<SessionState> session) {
  MutexLock lock(mutex_);
  tokens_.emplace(session->identity().token, session);
  sessions_.emplace(session->id(), session);
}

void SessionDirectory::Remove(SessionId id) {
  MutexLock lock(mutex_);
  const auto found = sessions_.find(id);
  if (found != sessions_.end()) {
    shares_.GiveBack(found->second->uid());
    tokens_.erase(found->second->identity().token);
    sessions_.erase(found);
  }
}

void SessionDirectory::Replace(std::shared_ptr<SessionState> session) {
  MutexLock lock(mutex_);
  tokens_.insert_or_assign(session->identity().token, session);
  const SessionId id = session->id();
  sessions_.insert_or_assign(id, std::move(session));
}

std::shared_ptr<SessionState> SessionDirectory::Find(SessionId id) const {
  MutexLock lock(mutex_);
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : found->second;
}

std::shared_ptr<SessionState> SessionDirectory::FindToken(std::string_view token) const {
  MutexLock lock(mutex_);
  const auto found = tokens_.find(token);
  return found == tokens_.end() ? nullptr : found->second;
}

std::vector<std::shared_ptr<SessionState>> SessionDirectory::All() const {
  std::vector<std::shared_ptr<SessionState>> all;
  MutexLock lock(mutex_);
  for (const auto& [id, session] : sessions_) all.push_back(session);
  return all;
}

void SessionDirectory::AddWaiting(std::string token, Waiting session) {
  MutexLock lock(mutex_);
  waiting_.emplace(std::move(token), std::move(session));
}

std::optional<SessionDirectory::Waiting> SessionDirectory::FindWaiting(std::string_view token) const {
  MutexLock lock(mutex_);
  const auto found = waiting_.find(token);
  return found == waiting_.end() ? std::nullopt : std::optional(found->second);
}

void SessionDirectory::RemoveWaiting(LeaseKey lease) {
  MutexLock lock(mutex_);
  std::erase_if(waiting_, [lease](const auto& entry) { return entry.second.lease == lease; });
}

std::size_t SessionDirectory::size() const {
  MutexLock lock(mutex_);
  return sessions_.size();
}

}  // namespace lgpu::daemon
