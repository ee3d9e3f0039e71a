#ifndef LGPU_KERNELS_OP_LIST_H_
#define LGPU_KERNELS_OP_LIST_H_

// Every op, once. The table of ops, their indices, and the accessors of registry.h come from here;
// CONTRIBUTING.md has the recipe for a new op.
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
// clang-format on

#endif  // LGPU_KERNELS_OP_LIST_H_
