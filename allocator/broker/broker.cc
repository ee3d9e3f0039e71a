#include "allocator/broker/broker.h"

#include <algorithm>
#include <utility>

#include "allocator/broker/broker_impl.h"
#include "lgpu/status.h"

namespace lgpu {

absl::StatusOr<std::unique_ptr<Broker>> Broker::Create(DeviceMemory& backend, GrantLog& log,
                                                       const Options& options) {
  auto impl = std::make_unique<BrokerImpl>(backend, log, options);
  LGPU_RETURN_IF_ERROR(impl->AddCards(options));
  return std::unique_ptr<Broker>(new Broker(std::move(impl)));
}

Broker::Broker(std::unique_ptr<BrokerImpl> impl) : impl_(std::move(impl)) {}
Broker::~Broker() = default;

Bytes Broker::WholeCard(const CardInfo& card) {
  return RoundDown(SaturatingSub(card.view.total, card.view.reserve), card.view.granularity);
}

std::vector<const Broker::CardInfo*> Broker::ByRoom(std::vector<const CardInfo*> candidates,
                                                    const std::map<CardId, Bytes>& planned) {
  const auto room = [&](const CardInfo* info) {
    const auto found = planned.find(info->id);
    const double taken = found == planned.end() ? 0 : static_cast<double>(found->second.count());
    return static_cast<double>(info->view.free().count()) - taken;
  };
  std::stable_sort(candidates.begin(), candidates.end(),
                   [&](const CardInfo* a, const CardInfo* b) { return room(a) > room(b); });
  return candidates;
}

std::vector<Broker::CardInfo> Broker::Cards() const { return impl_->Cards(); }

std::size_t Broker::cards() const { return impl_->cards(); }

absl::StatusOr<LogicalId> Broker::AddDevice(const DeviceSpec& spec, TimePoint deadline) {
  return impl_->AddDevice(spec, deadline);
}

absl::Status Broker::ResizeDevice(LogicalId device, Bytes limit, Bytes guarantee, TimePoint deadline) {
  return impl_->ResizeDevice(device, limit, guarantee, deadline);
}

void Broker::RemoveDevice(LogicalId device) { impl_->RemoveDevice(device); }

std::optional<Broker::DeviceInfo> Broker::Find(LogicalId device) const { return impl_->Find(device); }

WaiterId Broker::QueueRoom(const RoomSpec& spec) { return impl_->QueueRoom(spec); }

Broker::RoomView Broker::LookAtRoom(WaiterId id) { return impl_->LookAtRoom(id); }

void Broker::LeaveRoom(WaiterId id) { impl_->LeaveRoom(id); }

void Broker::AddSession(SessionId session, SessionSpec spec) { impl_->AddSession(session, std::move(spec)); }

void Broker::AttachSession(SessionId session, LeaseKey lease) { impl_->AttachSession(session, lease); }

void Broker::RemoveSession(SessionId session) { impl_->RemoveSession(session); }

Bytes Broker::Held(SessionId session) const { return impl_->Held(session); }

absl::Status Broker::RestoreDevice(LogicalId device, const DeviceSpec& spec) {
  return impl_->RestoreDevice(device, spec);
}

absl::Status Broker::RestoreSession(SessionId session, std::int64_t pid, std::shared_ptr<Waker> waker,
                                    LeaseKey lease, std::span<const RestoredChunk> chunks,
                                    std::span<const RestoredCharge> charges) {
  return impl_->RestoreSession(session, pid, std::move(waker), lease, chunks, charges);
}

void Broker::ChargeRestoredOverhead() { impl_->ChargeRestoredOverhead(); }

void Broker::SkipIds(LogicalId device, ChunkId chunk) { impl_->SkipIds(device, chunk); }

absl::Status Broker::MakeMissing(LogicalId device) { return impl_->MakeMissing(device); }

void Broker::StartAttesting(SessionId session, SessionSpec spec) {
  impl_->StartAttesting(session, std::move(spec));
}

absl::Status Broker::Attest(SessionId session, LogicalId device, const Chunk& chunk, UniqueFd fd) {
  return impl_->Attest(session, device, chunk, std::move(fd));
}

absl::Status Broker::AttestCharge(SessionId session, const std::string& card_uuid, Bytes bytes) {
  return impl_->AttestCharge(session, card_uuid, bytes);
}

void Broker::FinishAttesting(SessionId session) { impl_->FinishAttesting(session); }

void Broker::GoAbsent(SessionId session) { impl_->GoAbsent(session); }

void Broker::SetForeign(CardId card, Bytes bytes) { impl_->SetForeign(card, bytes); }

std::vector<std::uint64_t> Broker::Identities(CardId card) const { return impl_->Identities(card); }

Broker::GrowAnswer Broker::Grow(const GrowSpec& spec) { return impl_->Grow(spec); }

Broker::GrowAnswer Broker::Continue(GrowId grow) { return impl_->Continue(grow); }

void Broker::ShareAllowances(SessionId session, std::shared_ptr<Allowances> allowances) {
  impl_->ShareAllowances(session, std::move(allowances));
}

Broker::GrowAnswer Broker::ChargeCard(const ChargeSpec& spec) { return impl_->ChargeCard(spec); }

absl::Status Broker::Uncharge(SessionId session, const std::string& card_uuid, Bytes bytes) {
  return impl_->Uncharge(session, card_uuid, bytes);
}

std::vector<Broker::Charged> Broker::ChargesOf(SessionId session) const { return impl_->ChargesOf(session); }

void Broker::EndCharges(const std::vector<SessionId>& sessions) { impl_->EndCharges(sessions); }

std::set<SessionId> Broker::StillListed(const std::vector<SessionId>& sessions) {
  return impl_->StillListed(sessions);
}

void Broker::LowerCharges(SessionId session, const std::map<std::string, Bytes>& by_card) {
  impl_->LowerCharges(session, by_card);
}

absl::StatusOr<MemoryHandle> Broker::MemoryOf(SessionId session, ChunkId chunk) const {
  return impl_->MemoryOf(session, chunk);
}

absl::StatusOr<ExportedFd> Broker::Export(SessionId session, ChunkId chunk) {
  return impl_->Export(session, chunk);
}

absl::Status Broker::ExplainExport(LogicalId device, Bytes asked, const absl::Status& status) const {
  return impl_->ExplainExport(device, asked, status);
}

absl::Status Broker::Return(SessionId session, LogicalId device, std::span<const ChunkId> chunks) {
  return impl_->Return(session, device, chunks);
}

void Broker::ReturnAll(SessionId session) { impl_->ReturnAll(session); }

void Broker::StartDraining(SessionId session) { impl_->StartDraining(session); }

std::vector<SessionId> Broker::FinishDraining(const std::vector<SessionId>& sessions) {
  return impl_->FinishDraining(sessions);
}

bool Broker::RetryUnconfirmed() { return impl_->RetryUnconfirmed(); }

std::vector<TrimOrder> Broker::TakeTrims(SessionId session) { return impl_->TakeTrims(session); }

absl::Status Broker::Trimmed(SessionId session, TrimId trim, bool pending) {
  return impl_->Trimmed(session, trim, pending);
}

Broker::TrimRequest Broker::StartTrim(std::span<const LogicalId> devices) {
  return impl_->StartTrim(devices);
}

void Broker::ContinueTrim(TrimRequest& request) { impl_->ContinueTrim(request); }

std::vector<Broker::IgnoredTrim> Broker::TakeIgnoredTrims() { return impl_->TakeIgnoredTrims(); }

Broker::TrimRecord Broker::TrimsOf(SessionId session) const { return impl_->TrimsOf(session); }

Bytes Broker::UnreturnedBy(SessionId session) const { return impl_->UnreturnedBy(session); }

std::vector<Broker::Unreturned> Broker::TakeUnreturned() { return impl_->TakeUnreturned(); }

void Broker::ObserveCards() { impl_->ObserveCards(); }

std::vector<Broker::Uncharged> Broker::UnchargedUse() const { return impl_->UnchargedUse(); }

void Broker::SetStopped(LeaseKey lease, bool is_stopped) { impl_->SetStopped(lease, is_stopped); }

Broker::Overheads Broker::overheads() const { return impl_->overheads(); }

void Broker::StopWaiting() { impl_->StopWaiting(); }

Broker::Counters Broker::counters() const { return impl_->counters(); }

absl::Status Broker::CheckInvariants() const { return impl_->CheckInvariants(); }

}  // namespace lgpu
