#include "client/runtime/copies.h"

#include <string>
#include <vector>

#include "client/runtime/explain.h"
#include "client/runtime/scope_stack.h"
#include "lgpu/status.h"

namespace lgpu::internal {

namespace {

/// Runs `copy` and records it, if one of both is a GPU; a null device is the host.
template <typename Copy>
absl::Status Recorded(ContextState& state, const Device* from, const Device* to, DType dtype, Bytes bytes,
                      const Copy& copy) {
  const bool is_recorded = (from != nullptr && from->is_gpu()) || (to != nullptr && to->is_gpu());
  if (!is_recorded) return copy();
  const std::uint64_t submitted = MonotonicNanoseconds();
  LGPU_RETURN_IF_ERROR(copy());
  state.recorder().AfterCopy(from, to, dtype, bytes, {submitted, MonotonicNanoseconds()});
  return absl::OkStatus();
}

/// On the target's stream, which waits for the source's; the source's waits for the copy, so that the next
/// owner of the block does not overwrite memory that is still read.
absl::Status CopyBetweenGpus(const TensorBuffer& from, const TensorBuffer& to) {
  Device& source = from.device();
  Device& target = to.device();
  DeviceWork& backend = target.backend();
  if (&source == &target) return backend.CopyOnDevice(target.stream(), to.data(), from.data(), from.bytes());
  LGPU_RETURN_IF_ERROR(OrderAfter(backend, target.stream(), source.stream()));
  LGPU_RETURN_IF_ERROR(backend.CopyOnDevice(target.stream(), to.data(), from.data(), from.bytes()));
  return OrderAfter(backend, source.stream(), target.stream());
}

}  // namespace

absl::StatusOr<std::shared_ptr<TensorBuffer>> MakeFromHost(const std::shared_ptr<ContextState>& state,
                                                           Device& device, const TensorSpec& spec,
                                                           const Op& op, std::span<const std::byte> values) {
  LGPU_ASSIGN_OR_RETURN(std::shared_ptr<TensorBuffer> made,
                        ContextState::Allocate(state, device, spec, op, Device::FilledBy::kHost));
  if (values.empty()) return made;
  LGPU_RETURN_IF_ERROR(Recorded(*state, nullptr, &device, spec.dtype, Bytes(values.size()),
                                [&] { return device.CopyFromHost(made->data(), values); }));
  return made;
}

absl::StatusOr<std::shared_ptr<TensorBuffer>> MakeFromOutside(const std::shared_ptr<ContextState>& state,
                                                              Device& device, const TensorSpec& spec,
                                                              const Op& op, const void* from) {
  LGPU_ASSIGN_OR_RETURN(std::shared_ptr<TensorBuffer> made,
                        ContextState::Allocate(state, device, spec, op, Device::FilledBy::kKernel));
  if (made->bytes().is_zero()) return made;
  LGPU_RETURN_IF_ERROR(Recorded(*state, &device, &device, spec.dtype, made->bytes(), [&] {
    return device.CopyFromOutside(made->data(), static_cast<const std::byte*>(from), made->bytes());
  }));
  return made;
}

absl::StatusOr<std::shared_ptr<TensorBuffer>> CopyTo(const std::shared_ptr<TensorBuffer>& from, Device& to,
                                                     const Op& op) {
  LGPU_ASSIGN_OR_RETURN(std::shared_ptr<TensorBuffer> copy, MakeCopy(from, to, op));
  from->state()->recorder().CountCopy(from->device(), to, from->bytes());
  return copy;
}

absl::StatusOr<std::shared_ptr<TensorBuffer>> MakeCopy(const std::shared_ptr<TensorBuffer>& from, Device& to,
                                                       const Op& op) {
  std::shared_ptr<TensorBuffer> copy;
  if (!from->device().is_gpu()) {
    LGPU_ASSIGN_OR_RETURN(
        copy, MakeFromHost(from->state(), to, from->spec(), op, {from->data(), from->bytes().count()}));
  } else {
    LGPU_ASSIGN_OR_RETURN(
        copy, ContextState::Allocate(from->state(), to, from->spec(), op, Device::FilledBy::kKernel));
    if (!from->bytes().is_zero()) {
      LGPU_RETURN_IF_ERROR(to.is_gpu()
                               ? Recorded(*from->state(), &from->device(), &to, from->spec().dtype,
                                          from->bytes(), [&] { return CopyBetweenGpus(*from, *copy); })
                               : CopyToHost(*from, {copy->data(), copy->bytes().count()}));
    }
  }
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

absl::Status CopyToHost(const TensorBuffer& from, std::span<std::byte> to) {
  if (to.empty()) return absl::OkStatus();
  return Recorded(*from.state(), &from.device(), nullptr, from.spec().dtype, from.bytes(),
                  [&] { return from.device().CopyToHost(to, from.data()); });
}

}  // namespace lgpu::internal
