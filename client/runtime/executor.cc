#include "client/runtime/executor.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "base/interrupt.h"
#include "client/runtime/copies.h"
#include "client/runtime/memory_report.h"
#include "client/runtime/scope_stack.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/text.h"
#include "lgpu/status.h"

namespace lgpu::internal {

namespace {

constexpr std::size_t kInlineInputs = 4;
template <typename T>
using Inputs = absl::InlinedVector<T, kInlineInputs>;

/// The device of an op, with the request that named it.
struct Decision {
  const DeviceRequest* request = nullptr;
  Placement placement;
  Device* device = nullptr;
};

absl::StatusOr<Decision> Decide(ContextState& state, const Op& op, DType dtype,
                                int near = DeviceRequest::kNone) {
  Decision decision;
  decision.request = CurrentRequest(state);
  absl::StatusOr<Placement> placement =
      state.placer().Place(op, dtype, decision.request, state.soft_placement(), near);
  if (!placement.ok()) {
    const std::string node = state.recorder().NextNodeName(op);
    return node.empty() ? placement.status() : state.placer().GraphError(op, dtype, decision.request, node);
  }
  decision.placement = *placement;
  decision.device = &state.device(decision.placement.device);
  if (decision.placement.soft_placed) {
    state.recorder().NoteSoftPlacement(op, dtype, *decision.request, *decision.device);
  }
  return decision;
}

/// Where the kernel's library is missing or has nothing for the op, the op goes to the CPU, if soft placement
/// may take it there or no device was asked for; else `why`.
absl::Status DoWithoutLibrary(ContextState& state, const Op& op, DType dtype, const absl::Status& why,
                              Decision& decision) {
  const bool asked = decision.request != nullptr && decision.request->constrained;
  const int cpu = state.placer().cpu();
  const Kernel* const kernel = state.registry().Find(op, DeviceType::kCpu, dtype);
  if ((asked && !state.soft_placement()) || kernel == nullptr) return why;
  decision.placement = {cpu, kernel, asked};
  decision.device = &state.device(cpu);
  if (state.IsFirstWithoutLibrary()) {
    const absl::string_view text = why.message();
    state.recorder().Log(Cat("lgpu: note: op ", op.name, " runs on ", decision.device->name(), ": ",
                             std::string_view(text.data(), text.size())));
  }
  return absl::OkStatus();
}

/// The context that all inputs share.
absl::StatusOr<ContextState*> CommonState(const Op& op, std::span<const Tensor* const> inputs) {
  ContextState* state = nullptr;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto& buffer = TensorBuffer::Of(*inputs[i]);
    if (buffer == nullptr) {
      return absl::InvalidArgumentError(
          Cat("input #", i, " of op ", op.name, " is a Tensor without a value"));
    }
    if (state != nullptr && buffer->state().get() != state) {
      return absl::InvalidArgumentError(Cat("input #", i, " of op ", op.name,
                                            " belongs to another Context than input #0; copy it through the "
                                            "host (ToVector, Constant)"));
    }
    state = buffer->state().get();
  }
  return state;
}

/// Identity on another device than its input's is the copy itself.
absl::StatusOr<Tensor> CopyAsOp(ContextState& state, const Decision& decision,
                                const std::shared_ptr<TensorBuffer>& input) {
  LGPU_RETURN_IF_ERROR(CheckCopyPolicy(state, IdentityOp(), 0, *input, *decision.device));
  const std::uint64_t submitted = MonotonicNanoseconds();
  LGPU_ASSIGN_OR_RETURN(std::shared_ptr<TensorBuffer> output, CopyTo(input, *decision.device, IdentityOp()));
  state.recorder().AfterOp(IdentityOp(), input->spec().dtype, decision.request, *decision.device,
                           decision.placement.soft_placed, output->bytes(),
                           {submitted, MonotonicNanoseconds()});
  return TensorBuffer::MakeTensor(std::move(output));
}

absl::StatusOr<Outputs> AsOutputs(absl::StatusOr<Tensor> tensor) {
  if (!tensor.ok()) return tensor.status();
  Outputs outputs;
  outputs.push_back(*std::move(tensor));
  return outputs;
}

/// An op on a tensor's shape: its output is written on the host, and its input stays where it is.
absl::StatusOr<Tensor> RunMetadata(const Decision& decision, const Op& op,
                                   const std::shared_ptr<TensorBuffer>& input, const TensorSpec& spec) {
  ContextState& state = *input->state();
  const std::uint64_t submitted = MonotonicNanoseconds();
  std::vector<std::byte> values(TensorBuffer::SpecBytes(spec).count());
  CpuLauncher launcher;
  const TensorView view{nullptr, input->spec()};
  const TensorView written{values.data(), spec};
  LGPU_RETURN_IF_ERROR(decision.placement.kernel->run({&view, 1}, {&written, 1}, {}, launcher));
  LGPU_ASSIGN_OR_RETURN(std::shared_ptr<TensorBuffer> output,
                        MakeFromHost(input->state(), *decision.device, spec, op, values));
  state.recorder().AfterOp(op, input->spec().dtype, decision.request, *decision.device,
                           decision.placement.soft_placed, output->bytes(),
                           {submitted, MonotonicNanoseconds()});
  return TensorBuffer::MakeTensor(std::move(output));
}

/// Placer::NearInputs, without a look at the inputs where they cannot matter.
int NearInputs(const ContextState& state, const Op& op, std::span<const Tensor* const> inputs,
               std::span<const TensorSpec> specs) {
  if (!op.metadata && !state.pin_small_ops()) return DeviceRequest::kNone;
  Inputs<int> devices;
  for (const Tensor* input : inputs) devices.push_back(state.PositionOf(TensorBuffer::Of(*input)->device()));
  return state.placer().NearInputs(op, specs, devices, state.pin_small_ops());
}

/// The first input that is the same tensor as input `i`; `i` itself where a search would cost more than it
/// saves.
std::size_t FirstUse(std::span<const Tensor* const> inputs, std::size_t i) {
  constexpr std::size_t kMostSearched = 64;
  if (i >= kMostSearched) return i;
  const TensorBuffer* const buffer = TensorBuffer::Of(*inputs[i]).get();
  std::size_t first = 0;
  while (TensorBuffer::Of(*inputs[first]).get() != buffer) ++first;
  return first;
}

/// The inputs as the kernel sees them; `copies` keeps those alive that were made for it.
absl::Status BringInputs(ContextState& state, const Op& op, std::span<const Tensor* const> inputs,
                         Device& device, Inputs<TensorView>& views,
                         Inputs<std::shared_ptr<TensorBuffer>>& copies) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto& buffer = TensorBuffer::Of(*inputs[i]);
    if (&buffer->device() == &device) {
      views.push_back(buffer->view());
      continue;
    }
    LGPU_RETURN_IF_ERROR(CheckCopyPolicy(state, op, i, *buffer, device));
    const std::size_t same = FirstUse(inputs, i);
    if (same < i) {
      views.push_back(views[same]);
      continue;
    }
    absl::StatusOr<std::shared_ptr<TensorBuffer>> copied = CopyTo(buffer, device, op);
    if (!copied.ok()) {
      return PrefixedStatus(copied.status(), Cat("Failed copying input tensor from ", buffer->device().name(),
                                                 " to ", device.name(), " in order to run ", op.name, ": "));
    }
    std::shared_ptr<TensorBuffer> copy = *std::move(copied);
    views.push_back(copy->view());
    copies.push_back(std::move(copy));
  }
  return absl::OkStatus();
}

/// A TimedLauncher is a GPU whose op is measured from its first launch on: the host's work before it, like
/// choosing an algorithm, is no time of the device.
class TimedLauncher final : public Launcher {
 public:
  explicit TimedLauncher(Device& device) : device_(device) {}
  absl::Status Launch(const KernelLaunch& launch) override {
    Start();
    return device_.Launch(launch);
  }
  absl::Status CallLibrary(absl::FunctionRef<absl::Status(const LibraryCall&)> call) override {
    return device_.CallLibrary([&](const LibraryCall& given) {
      return call({.stream = given.stream,
                   .matmul = given.matmul,
                   .workspace_bytes = given.workspace_bytes,
                   .with_workspace = given.with_workspace,
                   .before_work = [this] { Start(); }});
    });
  }
  absl::Status WithScratch(Bytes bytes,
                           absl::FunctionRef<absl::Status(std::span<std::byte> scratch)> launch) override {
    return device_.WithScratch(bytes, launch);
  }
  /// Null for an op that is not measured, or launched nothing.
  std::unique_ptr<StreamTimer> TakeTimer() { return std::move(timer_); }

 private:
  void Start() {
    if (!std::exchange(started_, true)) timer_ = device_.timers().Start();
  }
  Device& device_;
  bool started_ = false;
  std::unique_ptr<StreamTimer> timer_;
};

/// Whether the op takes some microseconds and no more: no GPU, no copy, few elements.
bool IsShort(std::span<const Tensor* const> inputs, const TensorSpec& output, const Device& device) {
  constexpr std::int64_t kFew = 4096;
  if (device.is_gpu() && device.cuda_device() >= 0) return false;
  std::int64_t elements = output.shape.elements();
  for (const Tensor* input : inputs) {
    const auto& buffer = TensorBuffer::Of(*input);
    if (&buffer->device() != &device) return false;
    elements += buffer->spec().shape.elements();
  }
  return elements <= kFew;
}

/// Brings the inputs to the device that was chosen, and runs the op there.
absl::StatusOr<Outputs> RunOn(ContextState& state, const Op& op, std::span<const Tensor* const> inputs,
                              const Inputs<TensorSpec>& specs, const TensorSpec& spec,
                              const OpAttributes& attributes, const Decision& decision) {
  Inputs<TensorView> views;
  Inputs<std::shared_ptr<TensorBuffer>> copies;
  LGPU_RETURN_IF_ERROR(BringInputs(state, op, inputs, *decision.device, views, copies));
  const std::uint64_t submitted = MonotonicNanoseconds();
  Inputs<std::shared_ptr<TensorBuffer>> made;
  Inputs<TensorView> written;
  std::uint64_t bytes = 0;
  const auto make = [&](const TensorSpec& output) -> absl::Status {
    LGPU_ASSIGN_OR_RETURN(std::shared_ptr<TensorBuffer> buffer,
                          ContextState::Allocate(TensorBuffer::Of(*inputs[0])->state(), *decision.device,
                                                 output, op, Device::FilledBy::kKernel));
    written.push_back(buffer->view());
    bytes += buffer->bytes().count();
    made.push_back(std::move(buffer));
    return absl::OkStatus();
  };
  LGPU_RETURN_IF_ERROR(make(spec));
  if (op.infer_second != nullptr) LGPU_RETURN_IF_ERROR(make(op.infer_second(specs, attributes)));
  TimedLauncher timed(*decision.device);
  Launcher& launcher = decision.device->is_gpu() ? static_cast<Launcher&>(timed) : *decision.device;
  LGPU_RETURN_IF_ERROR(decision.placement.kernel->run(views, written, attributes, launcher));
  state.recorder().AfterOp(op, specs[0].dtype, decision.request, *decision.device,
                           decision.placement.soft_placed, Bytes(bytes),
                           {submitted, MonotonicNanoseconds(), timed.TakeTimer()});
  Outputs outputs;
  for (std::shared_ptr<TensorBuffer>& buffer : made) {
    outputs.push_back(TensorBuffer::MakeTensor(std::move(buffer)));
  }
  return outputs;
}

}  // namespace

absl::StatusOr<Tensor> Execute(const Op& op, std::span<const Tensor* const> inputs,
                               const OpAttributes& attributes) {
  LGPU_ASSIGN_OR_RETURN(Outputs outputs, ExecuteAll(op, inputs, attributes));
  return std::move(outputs[0]);
}

absl::StatusOr<Outputs> ExecuteAll(const Op& op, std::span<const Tensor* const> inputs,
                                   const OpAttributes& attributes) {
  LGPU_ASSIGN_OR_RETURN(ContextState * state, CommonState(op, inputs));
  if (state->IsForked()) return state->ClosedError();
  const GatePass pass = state->Pass();
  if (!pass) return state->ClosedError();

  Inputs<TensorSpec> specs;
  for (const Tensor* input : inputs) specs.push_back(TensorBuffer::Of(*input)->spec());
  LGPU_ASSIGN_OR_RETURN(const TensorSpec spec, op.Infer(specs, attributes));
  const DType dtype = specs[0].dtype;
  LGPU_ASSIGN_OR_RETURN(Decision decision, Decide(*state, op, dtype, NearInputs(*state, op, inputs, specs)));
  if (!IsShort(inputs, spec, *decision.device)) Interrupt::BeforeWait();
  if (decision.placement.kernel->needs_library) {
    // Other errors than a missing library may pass.
    const absl::Status opened = decision.device->OpenLibrary();
    if (absl::IsFailedPrecondition(opened)) {
      LGPU_RETURN_IF_ERROR(DoWithoutLibrary(*state, op, dtype, opened, decision));
    } else {
      LGPU_RETURN_IF_ERROR(opened);
    }
  }
  state->recorder().BeforeOp(op, *decision.device);
  const auto& first = TensorBuffer::Of(*inputs[0]);
  if (&op == &IdentityOp() && &first->device() != decision.device) {
    return AsOutputs(CopyAsOp(*state, decision, first));
  }
  if (op.metadata) return AsOutputs(RunMetadata(decision, op, first, spec));

  absl::StatusOr<Outputs> outputs = RunOn(*state, op, inputs, specs, spec, attributes, decision);
  if (decision.placement.kernel->needs_library && absl::IsUnimplemented(outputs.status())) {
    LGPU_RETURN_IF_ERROR(DoWithoutLibrary(*state, op, dtype, outputs.status(), decision));
    state->recorder().BeforeOp(op, *decision.device);
    return RunOn(*state, op, inputs, specs, spec, attributes, decision);
  }
  return outputs;
}

absl::StatusOr<Tensor> CopyToNamed(const Tensor& tensor, std::string_view device) {
  const auto& buffer = TensorBuffer::Of(tensor);
  if (buffer == nullptr) return absl::InvalidArgumentError("this Tensor has no value");
  ContextState& state = *buffer->state();
  if (state.IsForked()) return state.ClosedError();
  const GatePass pass = state.Pass();
  if (!pass) return state.ClosedError();
  LGPU_ASSIGN_OR_RETURN(const int position, state.placer().Lookup(device));
  if (&state.device(position) == &buffer->device()) return tensor;
  LGPU_ASSIGN_OR_RETURN(std::shared_ptr<TensorBuffer> copy,
                        CopyTo(buffer, state.device(position), IdentityOp()));
  return TensorBuffer::MakeTensor(std::move(copy));
}

absl::StatusOr<Tensor> MakeConstant(std::shared_ptr<ContextState> state, const TensorSpec& spec,
                                    std::span<const std::byte> values) {
  if (state->IsForked()) return state->ClosedError();
  const GatePass pass = state->Pass();
  if (!pass) return state->ClosedError();
  const std::size_t element = ElementBytes(spec.dtype);
  if (element == 0 || values.size() % element != 0 ||
      values.size() / element != static_cast<std::uint64_t>(spec.shape.elements())) {
    return absl::InvalidArgumentError(Cat("a ", DTypeName(spec.dtype), " constant of shape ",
                                          spec.shape.ToString(), " takes ", spec.shape.elements(),
                                          " values of ", element, " bytes; got ", values.size(), " bytes"));
  }
  LGPU_ASSIGN_OR_RETURN(const Decision decision, Decide(*state, EagerConstOp(), spec.dtype));
  state->recorder().BeforeOp(EagerConstOp(), *decision.device);
  const std::uint64_t submitted = MonotonicNanoseconds();
  LGPU_ASSIGN_OR_RETURN(
      std::shared_ptr<TensorBuffer> output,
      MakeFromHost(ContextState::ForTensors(state), *decision.device, spec, EagerConstOp(), values));
  state->recorder().AfterOp(EagerConstOp(), spec.dtype, decision.request, *decision.device,
                            decision.placement.soft_placed, output->bytes(),
                            {submitted, MonotonicNanoseconds()});
  return TensorBuffer::MakeTensor(std::move(output));
}

absl::StatusOr<int> ChooseImporter(ContextState& state, int cuda_device) {
  const DeviceRequest* const request = CurrentRequest(state);
  if (cuda_device >= 0 && request != nullptr && request->constrained) {
    const int asked = request->match[static_cast<std::size_t>(DeviceType::kGpu)];
    if (asked != DeviceRequest::kNone && state.device(asked).cuda_device() == cuda_device) return asked;
  }
  std::string cards;
  for (int i = 0; i < state.placer().gpu_count(); ++i) {
    const int card = state.device(i).cuda_device();
    if (card >= 0 && card == cuda_device) return i;
    if (card >= 0) {
      cards += Cat(cards.empty() ? "" : ", ", state.device(i).name(), " is on CUDA device ", card);
    }
  }
  return absl::NotFoundError(Cat("no logical GPU of this Context is on CUDA device ", cuda_device, ": ",
                                 cards.empty() ? std::string("it has no real GPU") : cards,
                                 "; copy the array to the host first"));
}

absl::StatusOr<Tensor> MakeImported(const std::shared_ptr<ContextState>& state, const TensorSpec& spec,
                                    int gpu, const void* data) {
  if (state->IsForked()) return state->ClosedError();
  const GatePass pass = state->Pass();
  if (!pass) return state->ClosedError();
  if (ElementBytes(spec.dtype) == 0) return absl::InvalidArgumentError("the array has no element type");
  LGPU_ASSIGN_OR_RETURN(const Decision decision, Decide(*state, EagerConstOp(), spec.dtype));
  const bool asked = decision.request != nullptr && decision.request->constrained;
  Device& reader = state->device(gpu);
  Device& device = asked ? *decision.device : reader;
  state->recorder().BeforeOp(EagerConstOp(), device);
  const std::uint64_t submitted = MonotonicNanoseconds();
  LGPU_ASSIGN_OR_RETURN(std::shared_ptr<TensorBuffer> output,
                        MakeFromOutside(ContextState::ForTensors(state), reader, spec, EagerConstOp(), data));
  if (&device != &reader) {
    LGPU_ASSIGN_OR_RETURN(output, CopyTo(output, device, EagerConstOp()));
  }
  state->recorder().AfterOp(EagerConstOp(), spec.dtype, decision.request, device,
                            decision.placement.soft_placed, output->bytes(),
                            {submitted, MonotonicNanoseconds()});
  return TensorBuffer::MakeTensor(std::move(output));
}

}  // namespace lgpu::internal
