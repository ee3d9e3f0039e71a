#include "base/check.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/launchers/common_kernels.h"
#include "kernels/registry.h"

namespace lgpu {

namespace {

decltype(Kernel::run) CodeOf(const Op& op) {
  for (const CommonKernel& code : CommonKernels()) {
    if (code.op == &op) return code.run;
  }
  if (&op == &MatMulOp()) return RunMatMul;
  if (&op == &AddNOp()) return RunAddN;
  if (&op == &ShapeOp()) return RunShape;
  if (&op == &SizeOp()) return RunSize;
  if (&op == &RankOp()) return RunRank;
  LGPU_CHECK(&op == &IdentityOp() || &op == &EagerConstOp());
  return RunIdentity;
}

}  // namespace

KernelRegistry KernelRegistry::ForSimulatedDevices(const Options& options) {
  KernelRegistry registry = WithoutCode(options);
  for (Kernel& kernel : registry.kernels_) kernel.run = CodeOf(*kernel.op);
  return registry;
}

}  // namespace lgpu
