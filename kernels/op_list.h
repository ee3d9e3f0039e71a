#ifndef LGPU_KERNELS_OP_LIST_H_
#define LGPU_KERNELS_OP_LIST_H_

// Every op, once. Tables, indices, the accessors of registry.h, and the calls of C++, C and Python that only
// pass tensors on come from here; CONTRIBUTING.md has the recipe for a new op.
//
// X(op, name, fewest inputs, most inputs, rule of the output, dtypes on GPUs, dtypes on the CPU, fields of
// Op...) `op`Op() is its accessor. The index of an op is its place in this list: new ones come last, since
// programs of the last version may share a page of names with this lgpud. Most inputs -1: any number. Cast
// has GPU kernels where KernelRegistry::Options say so.
// clang-format off
#define LGPU_OPS(X)                                                                                   \
  X(MatMul,    "MatMul",      2, 2,  InferMatMul,           kFloating, kAll)                           \
  X(AddN,      "AddN",        1, -1, InferAddN,             kAll,      kAll)                           \
  X(Cast,      "Cast",        1, 1,  InferCast,             kNone,     kAll)                           \
  X(Identity,  "Identity",    1, 1,  InferSame,             kAll,      kAll)                           \
  X(EagerConst, "_EagerConst", 1, 1, InferSame,             kAll,      kAll)                           \
  X(Shape,     "Shape",       1, 1,  InferShape,            kAll,      kAll, .metadata = true)         \
  X(Size,      "Size",        1, 1,  InferSize,             kAll,      kAll, .metadata = true)         \
  X(Rank,      "Rank",        1, 1,  InferRank,             kAll,      kAll, .metadata = true)         \
  X(Neg,       "Neg",         1, 1,  InferSame,             kAll,      kAll)                           \
  X(Relu,      "Relu",        1, 1,  InferSame,             kFloating, kAll)                           \
  X(ReluGrad,  "ReluGrad",    2, 2,  InferSameOfTwo,        kFloating, kAll)                           \
  X(AddV2,     "AddV2",       2, 2,  InferBroadcast,        kAll,      kAll)                           \
  X(Sub,       "Sub",         2, 2,  InferBroadcast,        kAll,      kAll)                           \
  X(Mul,       "Mul",         2, 2,  InferBroadcast,        kAll,      kAll)                           \
  X(RealDiv,   "RealDiv",     2, 2,  InferBroadcast,        kFloating, kFloating)                      \
  X(Fill,      "Fill",        1, 1,  InferFill,             kAll,      kAll)                           \
  X(Transpose, "Transpose",   1, 1,  InferTranspose,        kAll,      kAll)                           \
  X(Sum,       "Sum",         1, 1,  InferReduce,           kAll,      kAll)                           \
  X(Mean,      "Mean",        1, 1,  InferReduce,           kFloating, kAll)                           \
  X(SoftmaxCrossEntropy, "SparseSoftmaxCrossEntropyWithLogits", 2, 2, InferSoftmaxCrossEntropy,        \
    kFloating, kFloating, .infer_second = InferSoftmaxGradient)                                        \
  X(Concat,    "ConcatV2",    1, -1, InferConcat,           kAll,      kAll)                           \
  X(Tanh,      "Tanh",        1, 1,  InferSame,             kFloating, kFloating)                      \
  X(TanhGrad,  "TanhGrad",    2, 2,  InferSameOfTwo,        kFloating, kFloating)

// Calls of one tensor, and of two: X(call in C++, call in C (after lgpu_) and Python, op, parameters of Python...,
// text for Python's help).
#define LGPU_CALLS_OF_ONE(X)                                                                          \
  X(Negative, negative, Neg, "input", "The elements with their signs changed.")                        \
  X(Relu, relu, Relu, "input", "The larger of each element and 0.")                                    \
  X(Tanh, tanh, Tanh, "input", "The hyperbolic tangent of each element; floating types.")              \
  X(Identity, identity, Identity, "input", "A copy on the device of the scope.")                       \
  X(ShapeOf, shape_of, Shape, "input", "The shape as an int32 tensor: the op Shape.")                  \
  X(SizeOf, size_of, Size, "input", "The number of elements as an int32 tensor: the op Size.")         \
  X(RankOf, rank_of, Rank, "input", "The number of dimensions as an int32 tensor: the op Rank.")
#define LGPU_CALLS_OF_TWO(X)                                                                          \
  X(Add, add, AddV2, "a", "b", "Elementwise, with broadcasting.")                                      \
  X(Subtract, subtract, Sub, "a", "b", "Elementwise, with broadcasting.")                              \
  X(Multiply, multiply, Mul, "a", "b", "Elementwise, with broadcasting.")                              \
  X(Divide, divide, RealDiv, "a", "b", "Elementwise, with broadcasting; floating types.")              \
  X(ReluGrad, relu_grad, ReluGrad, "gradients", "features",                                            \
    "The gradients where the features are above 0, else 0.")                                           \
  X(TanhGrad, tanh_grad, TanhGrad, "y", "gradients", "The gradient of tanh: gradients * (1 - y * y), with y = tanh(x).")
// clang-format on

#endif  // LGPU_KERNELS_OP_LIST_H_
