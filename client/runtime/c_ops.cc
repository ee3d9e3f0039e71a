// The ops of <lgpu/ops.h> that training needs, in C.

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/runtime/c_handles.h"
#include "lgpu/status.h"

using lgpu::c::Deliver;
using lgpu::c::Missing;
using lgpu::c::Report;

namespace {

using Reduction = absl::StatusOr<lgpu::Tensor> (*)(const lgpu::Tensor&, const lgpu::ReduceOptions&);

lgpu_code Run(Reduction op, const lgpu_tensor* input, const int* axes, size_t count, int keep_dims,
              lgpu_tensor** output, lgpu_status* status) {
  if (input == nullptr) return Missing("the input of the op", status);
  if (axes == nullptr && count > 0) return Missing("the list of axes", status);
  lgpu::ReduceOptions options;
  options.keep_dims = keep_dims != 0;
  if (axes != nullptr) options.axes = std::vector<int>(axes, axes + count);
  return Deliver(op(input->tensor, options), output, status);
}

absl::StatusOr<lgpu::Shape> ShapeFrom(const int64_t* dimensions, int rank) {
  if (rank < 0 || (rank > 0 && dimensions == nullptr)) {
    return absl::InvalidArgumentError("rank is " + std::to_string(rank) +
                                      (dimensions == nullptr ? ", and the dimensions are NULL" : ""));
  }
  return lgpu::Shape::Make({dimensions, static_cast<std::size_t>(rank)});
}

}  // namespace

lgpu_code lgpu_fill(const int64_t* dimensions, int rank, const lgpu_tensor* value, lgpu_tensor** filled,
                    lgpu_status* status) {
  if (value == nullptr) return Missing("the value of lgpu_fill", status);
  const absl::StatusOr<lgpu::Shape> shape = ShapeFrom(dimensions, rank);
  if (!shape.ok()) return Report(shape.status(), status);
  return Deliver(lgpu::Fill(*shape, value->tensor), filled, status);
}
#define LGPU_CALL(call, name, ...)                                                             \
  lgpu_code lgpu_##name(const lgpu_tensor* input, lgpu_tensor** output, lgpu_status* status) { \
    if (input == nullptr) return Missing("the input of lgpu_" #name, status);                  \
    return Deliver(lgpu::call(input->tensor), output, status);                                 \
  }
LGPU_CALLS_OF_ONE(LGPU_CALL)
#undef LGPU_CALL
#define LGPU_CALL(call, name, ...)                                                        \
  lgpu_code lgpu_##name(const lgpu_tensor* a, const lgpu_tensor* b, lgpu_tensor** output, \
                        lgpu_status* status) {                                            \
    if (a == nullptr || b == nullptr) return Missing("an input of lgpu_" #name, status);  \
    return Deliver(lgpu::call(a->tensor, b->tensor), output, status);                     \
  }
LGPU_CALLS_OF_TWO(LGPU_CALL)
#undef LGPU_CALL
lgpu_code lgpu_concat(const lgpu_tensor* const* inputs, size_t count, lgpu_tensor** output,
                      lgpu_status* status) {
  if (count > 0 && inputs == nullptr) return Missing("the list of inputs", status);
  std::vector<lgpu::Tensor> tensors;
  for (const lgpu_tensor* input : std::span(inputs, count)) {
    if (input == nullptr) return Missing("an input of lgpu_concat", status);
    tensors.push_back(input->tensor);
  }
  return Deliver(lgpu::Concat(tensors), output, status);
}
lgpu_code lgpu_transpose(const lgpu_tensor* input, const int* permutation, lgpu_tensor** output,
                         lgpu_status* status) {
  if (input == nullptr) return Missing("the input of lgpu_transpose", status);
  if (permutation == nullptr) return Deliver(lgpu::Transpose(input->tensor), output, status);
  const std::span<const int> order(permutation, static_cast<std::size_t>(input->tensor.shape().rank()));
  return Deliver(lgpu::Transpose(input->tensor, order), output, status);
}
lgpu_code lgpu_reduce_sum(const lgpu_tensor* input, const int* axes, size_t count, int keep_dims,
                          lgpu_tensor** output, lgpu_status* status) {
  return Run(lgpu::ReduceSum, input, axes, count, keep_dims, output, status);
}
lgpu_code lgpu_reduce_mean(const lgpu_tensor* input, const int* axes, size_t count, int keep_dims,
                           lgpu_tensor** output, lgpu_status* status) {
  return Run(lgpu::ReduceMean, input, axes, count, keep_dims, output, status);
}
lgpu_code lgpu_sparse_softmax_cross_entropy_with_logits(const lgpu_tensor* logits, const lgpu_tensor* labels,
                                                        lgpu_tensor** loss, lgpu_tensor** backprop,
                                                        lgpu_status* status) {
  if (logits == nullptr || labels == nullptr) return Missing("an input of the op", status);
  if (loss == nullptr || backprop == nullptr) return Missing("a place for the results", status);
  absl::StatusOr<lgpu::CrossEntropy> both =
      lgpu::SparseSoftmaxCrossEntropyWithLogits(logits->tensor, labels->tensor);
  if (!both.ok()) return Report(both.status(), status);
  Deliver(std::move(both->loss), loss, status);
  return Deliver(std::move(both->backprop), backprop, status);
}
lgpu_code lgpu_reshape(const lgpu_tensor* input, const int64_t* dimensions, int rank, lgpu_tensor** output,
                       lgpu_status* status) {
  if (input == nullptr) return Missing("the input of lgpu_reshape", status);
  const absl::StatusOr<lgpu::Shape> shape = ShapeFrom(dimensions, rank);
  if (!shape.ok()) return Report(shape.status(), status);
  return Deliver(lgpu::Reshape(input->tensor, *shape), output, status);
}
lgpu_code lgpu_slice_rows(const lgpu_tensor* input, int64_t begin, int64_t count, lgpu_tensor** output,
                          lgpu_status* status) {
  if (input == nullptr) return Missing("the input of lgpu_slice_rows", status);
  return Deliver(lgpu::SliceRows(input->tensor, begin, count), output, status);
}
