#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lgpu/mirrored_strategy.h"
#include "lgpu/training.h"
#include "python/module/bind.h"
#include "python/module/errors.h"
#include "python/module/scopes.h"

namespace lgpu::python {

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace {

/// A strategy, and the object that keeps its Context alive.
struct PyStrategy {
  nb::object keep;
  PyContext* context = nullptr;
  std::optional<MirroredStrategy> strategy;
  ~PyStrategy() {
    const WithoutLock without_lock;
    strategy.reset();
  }
};

/// A Replica as long as its step runs.
struct PyReplica {
  Replica* replica = nullptr;
  PyContext* context = nullptr;
  Replica& get() const {
    if (replica != nullptr) return *replica;
    throw StatusError(absl::FailedPreconditionError("the step of this replica has ended"));
  }
};

ReduceOp ReduceOpOf(const std::string& word) {
  if (word == "sum") return ReduceOp::kSum;
  if (word == "mean") return ReduceOp::kMean;
  throw StatusError(absl::InvalidArgumentError("the reduction \"" + word + "\" is not one of: sum, mean"));
}

/// The first Python exception of a run's steps. The others end because of it.
class FirstError {
 public:
  void Keep(nb::python_error error) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_.emplace(std::move(error));
  }
  void Rethrow() {
    if (error_) throw nb::python_error(std::move(*error_));
  }

 private:
  std::mutex mutex_;
  std::optional<nb::python_error> error_;
};

void Run(const PyStrategy& self, nb::handle step) {
  FirstError first;
  const absl::Status status = Waiting([&] {
    return self.strategy->Run([&](Replica& replica) -> absl::Status {
      const WithLock lock;
      if (!lock) return absl::AbortedError("the interpreter ends");
      nb::object seen = nb::cast(PyReplica{&replica, self.context});
      absl::Status ended;
      try {
        step(seen);
      } catch (nb::python_error& error) {
        ended = error.matches(PyExc_Exception)
                    ? absl::AbortedError("the step of this replica raised an exception")
                    : absl::CancelledError("the step of this replica was interrupted");
        first.Keep(std::move(error));
      }
      nb::cast<PyReplica&>(seen).replica = nullptr;
      return ended;
    });
  });
  first.Rethrow();
  Check(status);
}

void BindReplica(nb::module_& module) {
  nb::class_<MirroredVariable>(module, "MirroredVariable",
                               "A value on the device of each replica, the same on all of them.")
      .def(
          "value",
          [](const MirroredVariable& self, int replica) {
            const Tensor value = self.value(replica);
            if (!value.has_value()) throw nb::index_error("there is no such replica");
            return value;
          },
          "replica"_a = 0, "The value of a replica.");
  nb::class_<PerReplica>(module, "PerReplica", "One tensor for each replica.")
      .def(nb::init<std::vector<Tensor>>(), "values"_a)
      .def("__len__", &PerReplica::size)
      .def("__getitem__",
           [](const PerReplica& self, int replica) {
             if (replica < 0 || replica >= self.size()) throw nb::index_error("there is no such replica");
             return self[replica];
           })
      .def_prop_ro("values", &PerReplica::values, "The tensors, by replica.");
  nb::class_<PyReplica>(module, "Replica", "What a step sees of the replica that runs it, while it runs.")
      .def_prop_ro(
          "id", [](const PyReplica& self) { return self.get().id(); }, "Its number.")
      .def_prop_ro(
          "count", [](const PyReplica& self) { return self.get().count(); }, "How many replicas there are.")
      .def_prop_ro(
          "device", [](const PyReplica& self) { return self.get().device(); }, "The full name of its device.")
      .def(
          "all_reduce",
          [](const PyReplica& self, const std::string& op, const std::vector<Tensor>& tensors) {
            const ReduceOp reduce = ReduceOpOf(op);
            return Check(Waiting([&] { return self.get().AllReduce(reduce, tensors); }));
          },
          "op"_a, "tensors"_a,
          "The \"sum\" or \"mean\" of each tensor over all replicas, each of which calls this equally often.")
      .def(
          "read",
          [](const PyReplica& self, const MirroredVariable& variable) {
            return Check(self.get().Read(variable));
          },
          "variable"_a, "This replica's value.")
      .def(
          "assign",
          [](const PyReplica& self, MirroredVariable& variable, const Tensor& value) {
            Check(Waiting([&] { return self.get().Assign(variable, value); }));
          },
          "variable"_a, "value"_a, "Sets this replica's value.")
      .def(
          "loss_weight",
          [](const PyReplica& self, const PerReplica& batch) { return self.get().LossWeight(batch); },
          "batch"_a, "What the mean loss over this replica's part counts in the sum over all replicas.");
}

void BindProcesses(nb::module_& module) {
  nb::class_<MirroredProcesses>(module, "MirroredProcesses",
                                "The processes that form one strategy: see lgpu.distribute.Processes.")
      .def(
          "__init__",
          [](MirroredProcesses* self, int rank, int count, std::string meeting, std::int64_t timeout_ms) {
            new (self) MirroredProcesses{.rank = rank,
                                         .count = count,
                                         .meeting = std::move(meeting),
                                         .timeout = std::chrono::milliseconds(timeout_ms)};
          },
          "rank"_a, "count"_a, "meeting"_a, "timeout_ms"_a);
}

void BindStrategy(nb::module_& module) {
  nb::class_<PyStrategy>(module, "MirroredStrategy", "Runs steps on several logical devices at once.")
      .def(
          "__init__",
          [](PyStrategy* self, nb::object context, std::vector<std::string> devices,
             const std::optional<MirroredProcesses>& processes) {
            PyContext* const raw = nb::cast<PyContext*>(context);
            MirroredStrategy made = Check(Waiting([&] {
              return MirroredStrategy::Create(raw->get(),
                                              {.devices = std::move(devices), .processes = processes});
            }));
            new (self) PyStrategy{std::move(context), raw, std::move(made)};
          },
          "context"_a, "devices"_a, "processes"_a = nb::none())
      .def_prop_ro(
          "num_replicas_in_sync", [](const PyStrategy& self) { return self.strategy->replicas(); },
          "How many replicas there are.")
      .def_prop_ro(
          "devices", [](const PyStrategy& self) { return self.strategy->devices(); },
          "Full names, by replica.")
      .def("run", &Run, "step"_a,
           nb::sig("def run(self, step: collections.abc.Callable[[Replica], None]) -> None"))
      .def(
          "variable",
          [](const PyStrategy& self, const Tensor& initial) {
            return Check(Waiting([&] { return self.strategy->Variable(initial); }));
          },
          "initial"_a, "A variable with this value on every device.")
      .def(
          "split",
          [](const PyStrategy& self, const Tensor& batch) {
            return Check(Waiting([&] { return self.strategy->Split(batch); }));
          },
          "batch"_a, "Parts of a batch by its rows, each on its replica's device.")
      .def(
          "broadcast",
          [](const PyStrategy& self, const Tensor& value) {
            return Check(Waiting([&] { return self.strategy->Broadcast(value); }));
          },
          "value"_a, "The value on every device.")
      .def(
          "reduce",
          [](const PyStrategy& self, const std::string& op, const PerReplica& values) {
            const ReduceOp reduce = ReduceOpOf(op);
            return Check(Waiting([&] { return self.strategy->Reduce(reduce, values); }));
          },
          "op"_a, "values"_a, "The \"sum\" or \"mean\" of the values, on the device of replica 0.")
      .def(
          "gather",
          [](const PyStrategy& self, const PerReplica& values) {
            return Check(Waiting([&] { return self.strategy->Gather(values); }));
          },
          "values"_a, "The values behind one another, on the device of replica 0.");
}

void BindTraining(nb::module_& module) {
  module
      .def(
          "glorot_uniform",
          [](PyContext& context, const std::vector<std::int64_t>& shape, std::uint32_t seed) {
            const Shape to = Check(Shape::Make(shape));
            return Check(InScopes([&] { return GlorotUniform(context.get(), to, seed); }));
          },
          "context"_a, "shape"_a, "seed"_a)
      .def(
          "zeros",
          [](PyContext& context, const std::vector<std::int64_t>& shape) {
            const Shape to = Check(Shape::Make(shape));
            return Check(InScopes([&] { return Zeros(context.get(), to); }));
          },
          "context"_a, "shape"_a)
      .def(
          "dense",
          [](const Tensor& x, const Tensor& kernel, const Tensor& bias) {
            return Check(InScopes([&] { return Dense(x, kernel, bias); }));
          },
          "x"_a, "kernel"_a, "bias"_a, "x times kernel, plus bias.")
      .def(
          "dense_grad",
          [](const Tensor& x, const Tensor& kernel, const Tensor& output, bool of_x) {
            DenseGradients g = Check(InScopes([&] { return DenseGrad(x, kernel, output, {.of_x = of_x}); }));
            std::optional<Tensor> by_x;
            if (g.x.has_value()) by_x = std::move(g.x);
            return std::tuple(std::move(by_x), std::move(g.kernel), std::move(g.bias));
          },
          "x"_a, "kernel"_a, "output"_a, "of_x"_a = true,
          "The gradients by x (None unless of_x), kernel and bias; output is the loss's gradient by what "
          "dense "
          "returned.")
      .def(
          "mean_squared_error",
          [](const PyReplica& replica, const Tensor& predictions, const Tensor& targets, double weight) {
            Loss loss = Check(InScopes(
                [&] { return MeanSquaredError(replica.context->get(), predictions, targets, weight); }));
            return std::pair(std::move(loss.value), std::move(loss.gradient));
          },
          "replica"_a, "predictions"_a, "targets"_a, "weight"_a = 1.0,
          "The mean of the squared differences, and its gradient by the predictions.")
      .def(
          "sparse_categorical_crossentropy",
          [](const PyReplica& replica, const Tensor& logits, const Tensor& labels, double weight) {
            Loss loss = Check(InScopes([&] {
              return SparseCategoricalCrossEntropy(replica.context->get(), logits, labels, weight);
            }));
            return std::pair(std::move(loss.value), std::move(loss.gradient));
          },
          "replica"_a, "logits"_a, "labels"_a, "weight"_a = 1.0,
          "The mean cross entropy of the rows, and its gradient by the logits.");
  nb::class_<Sgd>(module, "SGD", "Keras' SGD; keeps the velocity of each variable.")
      .def(
          "__init__",
          [](Sgd* self, const PyStrategy& strategy, double learning_rate, double momentum) {
            new (self) Sgd(*strategy.strategy, {.learning_rate = learning_rate, .momentum = momentum});
          },
          "strategy"_a, "learning_rate"_a = 0.01, "momentum"_a = 0.0)
      .def(
          "apply",
          [](Sgd& self, const PyReplica& replica, const std::vector<MirroredVariable*>& variables,
             const std::vector<Tensor>& gradients) {
            Check(Waiting([&] { return self.Apply(replica.get(), variables, gradients); }));
          },
          "replica"_a, "variables"_a, "gradients"_a,
          "Within a step, with summed gradients: a new value for this replica's copy of each variable.");
}

}  // namespace

void BindDistribute(nb::module_& module) {
  BindReplica(module);
  BindProcesses(module);
  BindStrategy(module);
  BindTraining(module);
}

}  // namespace lgpu::python
