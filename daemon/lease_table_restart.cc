// What a LeaseTable writes down for the daemon after this one, and how it starts with what it finds.

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/unique_fd.h"
#include "daemon/journal_io.h"
#include "daemon/lease_table.h"
#include "lgpu/status.h"

namespace lgpu::daemon {
namespace {

constexpr char kFile[] = "leases";

v1::JournalLease ToRecord(const Lease& lease) {
  v1::JournalLease record;
  record.set_key(lease.key.value);
  record.set_id(lease.id);
  record.set_name(lease.name);
  record.set_owner_uid(lease.owner.uid);
  record.set_lasting(lease.lasting);
  record.set_created_unix_ns(
      std::chrono::duration_cast<std::chrono::nanoseconds>(lease.created_at.time_since_epoch()).count());
  record.set_request_id(lease.request_id);
  record.set_sessions_ever(lease.sessions_ever);
  record.set_removed(lease.removed);
  for (const LeaseDevice& device : lease.devices) {
    v1::JournalDevice& out = *record.add_devices();
    out.set_id(device.id.value);
    out.set_card_uuid(device.card.device.uuid);
    out.set_limit_bytes(device.limit.count());
    out.set_guarantee_bytes(device.guarantee.count());
    out.set_preallocate(device.preallocate);
    out.set_label(device.name);
  }
  return record;
}

}  // namespace

void LeaseTable::UseJournal(Journal& journal, std::string state_directory) {
  journal_ = &journal;
  state_directory_ = std::move(state_directory);
}

void LeaseTable::NoteLease(const Lease& lease) {
  if (journal_ == nullptr) {
    return;
  }
  v1::JournalRecord record;
  *record.mutable_lease() = ToRecord(lease);
  journal_->Note(record);
}

void LeaseTable::NoteSession(const Lease& lease, const SessionState& session) {
  if (journal_ == nullptr) {
    return;
  }
  v1::JournalRecord record;
  v1::JournalSession& out = *record.mutable_session();
  out.set_id(session.id().value);
  out.set_lease_key(lease.key.value);
  out.set_token(session.identity().token);
  out.set_uid(session.uid());
  out.set_pid(session.process().pid);
  out.set_start_time(session.process().start_time);
  out.set_command(session.identity().command);
  for (const std::uint64_t page : session.pages()) {
    out.add_page_inodes(page);
  }
  journal_->Note(record);
}

void LeaseTable::NoteSessionGone(SessionId session) {
  if (journal_ == nullptr) {
    return;
  }
  v1::JournalRecord record;
  record.mutable_session_gone()->set_id(session.value);
  journal_->Note(record);
}

void LeaseTable::NoteLeaseGone(LeaseKey lease) {
  if (journal_ == nullptr) {
    return;
  }
  v1::JournalRecord record;
  record.mutable_lease_gone()->set_key(lease.value);
  journal_->Note(record);
}

absl::Status LeaseTable::RecordSession(const SessionState& session) {
  {
    MutexLock lock(mutex_);
    const auto found = leases_.find(session.lease());
    if (found == leases_.end()) {
      return absl::FailedPreconditionError("the lease has ended");
    }
    NoteSession(found->second, session);
  }
  return Commit();
}

absl::Status LeaseTable::Commit() { return journal_ == nullptr ? absl::OkStatus() : journal_->Commit(); }

absl::Status LeaseTable::SaveLasting() {
  if (journal_ == nullptr || state_directory_.empty()) {
    return absl::OkStatus();
  }
  MutexLock file_lock(file_mutex_);
  std::string bytes = EncodeJournalHeader("");
  v1::JournalRecord record;
  std::vector<LeaseKey> saved_now;
  {
    MutexLock lock(mutex_);
    for (const auto& [key, lease] : leases_) {
      if (lease.lasting && lease.ready && !lease.ending) {
        *record.mutable_lease() = ToRecord(lease);
        AppendJournalRecord(record, bytes);
        saved_now.push_back(key);
      }
    }
    for (const v1::JournalLease& lease : kept_in_file_) {
      *record.mutable_lease() = lease;
      AppendJournalRecord(record, bytes);
    }
  }
  std::error_code error;
  std::filesystem::create_directories(state_directory_, error);
  const UniqueFd directory(::open(state_directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  absl::Status saved = directory ? ReplaceFile(directory.get(), kFile, bytes, /*sync=*/true)
                                 : absl::ErrnoToStatus(errno, "cannot open it");
  if (saved.ok()) {
    MutexLock lock(mutex_);
    for (const LeaseKey key : saved_now) {
      if (const auto found = leases_.find(key); found != leases_.end()) found->second.saved = true;
    }
    for (const LeaseKey key : std::exchange(in_file_still_, {})) NoteLeaseGone(key);
    return saved;
  }
  return absl::UnavailableError(
      absl::StrCat("lgpud cannot write ", state_directory_, "/", kFile, " (", std::string(saved.message()),
                   "), where leases are kept that last; make room there and try again"));
}

absl::Status LeaseTable::KeepOrRemove(LeaseKey key, absl::Status saved) {
  if (saved.ok()) {
    return saved;
  }
  std::string name;
  std::optional<Lease> taken;
  std::vector<LogicalId> devices;
  std::set<SessionId> live;
  {
    MutexLock lock(mutex_);
    const auto found = leases_.find(key);
    // The same request may have come again, and been answered that it is kept.
    if (found == leases_.end() || found->second.saved) {
      return saved;
    }
    found->second.ending = true;
    found->second.removed = true;
    name = found->second.name;
    live = found->second.live;
    NoteLease(found->second);
    devices = TakeIfOver(key, taken);
  }
  EndSessions(live, absl::FailedPreconditionError(
                        absl::StrCat("lease ", name, " could not be kept: ", std::string(saved.message()))));
  Finish(taken, devices);
  return saved;
}

absl::StatusOr<std::vector<v1::JournalLease>> LeaseTable::ReadLasting(const std::string& state_directory) {
  const std::string path = absl::StrCat(state_directory, "/", kFile);
  std::vector<v1::JournalLease> leases;
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    if (errno != ENOENT) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path));
    }
    return leases;
  }
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const ParsedJournal parsed = ParseJournal(bytes, "");
  // It is replaced whole, never appended to: a file that ends early is damaged too.
  if (parsed.condition != ParsedJournal::Condition::kWhole) {
    std::error_code error;
    std::filesystem::rename(path, path + ".damaged", error);
    spdlog::error("{} is damaged ({}) and was moved aside; leases in it that last are lost but for {}", path,
                  parsed.detail, parsed.state.leases().size());
  }
  for (const auto& [key, lease] : parsed.state.leases()) {
    leases.push_back(lease);
  }
  return leases;
}

absl::Status LeaseTable::Restore(const v1::JournalLease& record) {
  const std::vector<Broker::CardInfo> cards = broker_.Cards();
  Lease lease;
  lease.key = LeaseKey{record.key()};
  lease.id = record.id();
  lease.name = record.name();
  lease.owner = LookUpUser(record.owner_uid());
  lease.lasting = lease.saved = record.lasting();
  lease.created_at =
      std::chrono::system_clock::time_point(std::chrono::duration_cast<std::chrono::system_clock::duration>(
          std::chrono::nanoseconds(record.created_unix_ns())));
  lease.request_id = record.request_id();
  lease.sessions_ever = record.sessions_ever();
  lease.removed = lease.ending = record.removed();
  lease.ready = true;
  {
    MutexLock lock(mutex_);
    lease.placements = std::make_shared<PlacementLog>(policy_.placement_records);
  }
  absl::Status status;
  std::vector<LogicalId> made;
  for (const v1::JournalDevice& device : record.devices()) {
    const auto card = std::find_if(cards.begin(), cards.end(), [&](const Broker::CardInfo& info) {
      return info.card.device.uuid == device.card_uuid();
    });
    if (card == cards.end()) {
      status = absl::NotFoundError(absl::StrCat("GPU ", device.card_uuid(), " is not served here now"));
      break;
    }
    const LogicalId id{device.id()};
    const int index = static_cast<int>(lease.devices.size());
    status = broker_.RestoreDevice(id, {.card = card->id,
                                        .limit = Bytes(device.limit_bytes()),
                                        .guarantee = Bytes(device.guarantee_bytes()),
                                        .preallocate = device.preallocate(),
                                        .index = index,
                                        .lease = lease.key,
                                        .lease_name = lease.name,
                                        .owner = lease.owner.name});
    if (!status.ok()) {
      break;
    }
    made.push_back(id);
    lease.devices.push_back({.id = id,
                             .index = index,
                             .card = card->card,
                             .preallocate = device.preallocate(),
                             .name = device.label(),
                             .limit = Bytes(device.limit_bytes()),
                             .guarantee = Bytes(device.guarantee_bytes())});
  }
  if (!status.ok()) {
    for (const LogicalId device : made) {
      broker_.RemoveDevice(device);
    }
    return status;
  }
  MutexLock lock(mutex_);
  last_key_ = std::max(last_key_, lease.key.value);
  NoteLease(lease);
  leases_.insert_or_assign(lease.key, std::move(lease));
  return absl::OkStatus();
}

void LeaseTable::KeepInFile(const v1::JournalLease& lease) {
  MutexLock lock(mutex_);
  kept_in_file_.push_back(lease);
}

void LeaseTable::RestoreSession(SessionState& session) {
  MutexLock lock(mutex_);
  Lease& lease = leases_.at(session.lease());
  lease.live.insert(session.id());
  if (lease.removed) session.RequestEnd(WasRemoved(lease.name));
  Tell(v1::Event::KIND_SESSION_ABSENT, lease, &session,
       absl::StrCat(session.identity().command, " (pid ", session.process().pid, ") of lease ", lease.name,
                    " holds ", FormatBytes(broker_.Held(session.id())),
                    " from before lgpud was started again"));
}

void LeaseTable::EndUnused() {
  std::vector<std::pair<std::optional<Lease>, std::vector<LogicalId>>> over;
  {
    MutexLock lock(mutex_);
    for (auto& [key, lease] : leases_) {
      if (!lease.live.empty() || (lease.lasting && !lease.removed)) continue;
      lease.ending = true;
      over.emplace_back();
      over.back().second = TakeIfOver(key, over.back().first);
    }
  }
  for (const auto& [lease, devices] : over) Finish(lease, devices);
}

void LeaseTable::SkipKeys(LeaseKey last) {
  MutexLock lock(mutex_);
  last_key_ = std::max(last_key_, last.value);
}

void LeaseTable::SessionBack(SessionState& session) {
  MutexLock lock(mutex_);
  const auto found = leases_.find(session.lease());
  if (found != leases_.end()) {
    Tell(v1::Event::KIND_SESSION_BACK, found->second, &session,
         absl::StrCat(session.identity().command, " (pid ", session.process().pid, ") of lease ",
                      found->second.name, " is back and holds ", FormatBytes(broker_.Held(session.id()))));
  }
}

void LeaseTable::MakeMissing() {
  std::vector<std::pair<LogicalId, Lease>> preallocated;
  {
    MutexLock lock(mutex_);
    for (const auto& [key, lease] : leases_) {
      for (const LeaseDevice& device : lease.devices) {
        if (device.preallocate && lease.ready && !lease.ending && !lease.resizing) {
          preallocated.emplace_back(device.id, lease);
        }
      }
    }
  }
  for (const auto& [device, lease] : preallocated) {
    const std::optional<Broker::DeviceInfo> before = broker_.Find(device);
    if (!before || before->missing.is_zero()) {
      continue;
    }
    if (const absl::Status made = broker_.MakeMissing(device); !made.ok()) {
      const std::string text = absl::StrCat("lease ", lease.name, " lacks ", FormatBytes(before->missing),
                                            " of its preallocated memory: ", std::string(made.message()));
      spdlog::warn("{}", text);
      Tell(v1::Event::KIND_LEASE_DEGRADED, lease, nullptr, text.substr(0, text.find('\n')));
    }
  }
}

}  // namespace lgpu::daemon
