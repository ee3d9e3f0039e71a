#include "client/copies.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "client/explain.h"
#include "client/scope_stack.h"
#include "lgpu/status.h"

namespace lgpu::internal {

namespace {

constexpr std::uint64_t kStagingBytes = std::uint64_t{4} << 20;

/// Two logical devices of one card: a device copy on the target's stream, which waits for the source's;
/// the source's stream waits for the copy, so that its next owner of the block does not overwrite it.
absl::Status CopyWithinCard(const TensorBuffer& from, const TensorBuffer& to) {
  Device& source = from.device();
  Device& target = to.device();
  DeviceBackend& backend = target.backend();
  LGPU_ASSIGN_OR_RETURN(const Fence written, backend.Record(source.stream()));
  LGPU_RETURN_IF_ERROR(backend.WaitOnStream(target.stream(), written));
  LGPU_RETURN_IF_ERROR(backend.CopyOnDevice(target.stream(), to.data(), from.data(), from.bytes()));
  LGPU_ASSIGN_OR_RETURN(const Fence copied, backend.Record(target.stream()));
  return backend.WaitOnStream(source.stream(), copied);
}

/// Two cards: through the host, a piece at a time.
absl::Status CopyBetweenCards(const TensorBuffer& from, const TensorBuffer& to) {
  const std::uint64_t bytes = from.bytes().count();
  std::vector<std::byte> staging(std::min(bytes, kStagingBytes));
  DeviceBackend& backend = to.device().backend();
  for (std::uint64_t done = 0; done < bytes; done += kStagingBytes) {
    const Bytes piece(std::min(kStagingBytes, bytes - done));
    LGPU_RETURN_IF_ERROR(
        backend.CopyToHost(from.device().stream(), staging.data(), from.data() + done, piece));
    LGPU_RETURN_IF_ERROR(backend.CopyToDevice(to.device().stream(), to.data() + done, staging.data(), piece));
  }
  return absl::OkStatus();
}

absl::Status CopyContents(const TensorBuffer& from, TensorBuffer& to) {
  if (from.bytes().is_zero()) return absl::OkStatus();
  const std::size_t size = from.bytes().count();
  if (!from.device().is_gpu()) return CopyFromHost(to, {from.data(), size});
  if (!to.device().is_gpu()) return CopyToHost(from, {to.data(), size});
  return from.device().card() == to.device().card() ? CopyWithinCard(from, to) : CopyBetweenCards(from, to);
}

}  // namespace

absl::StatusOr<std::shared_ptr<TensorBuffer>> CopyTo(const std::shared_ptr<TensorBuffer>& from, Device& to,
                                                     const Op& op) {
  LGPU_ASSIGN_OR_RETURN(std::shared_ptr<TensorBuffer> copy,
                        ContextState::Allocate(from->state(), to, from->spec(), op));
  LGPU_RETURN_IF_ERROR(CopyContents(*from, *copy));
  from->state()->recorder().CountCopy(from->device(), to, from->bytes());
  return copy;
}

absl::Status CheckCopyPolicy(ContextState& state, const Op& op, std::size_t index, const TensorBuffer& input,
                             const Device& to) {
  const DevicePolicy policy = CurrentPolicy(state);
  if (policy == DevicePolicy::kSilent) return absl::OkStatus();
  const CopyVerdict verdict =
      JudgeCopy(policy, {op, index, input.spec().dtype, to.name(), input.device().name()});
  if (!verdict.warning.empty()) state.recorder().Log(verdict.warning);
  return verdict.status;
}

absl::Status CopyFromHost(TensorBuffer& to, std::span<const std::byte> from) {
  if (from.empty()) return absl::OkStatus();
  if (to.device().is_gpu()) {
    return to.device().backend().CopyToDevice(to.device().stream(), to.data(), from.data(),
                                              Bytes(from.size()));
  }
  std::memcpy(to.data(), from.data(), from.size());
  return absl::OkStatus();
}

absl::Status CopyToHost(const TensorBuffer& from, std::span<std::byte> to) {
  if (to.empty()) return absl::OkStatus();
  if (from.device().is_gpu()) {
    return from.device().backend().CopyToHost(from.device().stream(), to.data(), from.data(),
                                              Bytes(to.size()));
  }
  std::memcpy(to.data(), from.data(), to.size());
  return absl::OkStatus();
}

}  // namespace lgpu::internal
