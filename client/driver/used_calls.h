#ifndef LGPU_CLIENT_DRIVER_USED_CALLS_H_
#define LGPU_CLIENT_DRIVER_USED_CALLS_H_

// The calls of the CUDA driver that submit work to a GPU or wait for it, and that the shim does not change.
// The shim notes when the program last made one of them. Queries are not in the list: a program that only
// looks at a GPU is idle. Calls that submit work and are in surface.h note it by themselves.
//
// X(symbol): each version and each per-thread twin. A look-up by cuGetProcAddress goes by the name without
// both, so it finds versions that are not listed as well.
// clang-format off
#define LGPU_SHIM_USED(X) \
  X(cuCtxRecordEvent)                                                                                          \
  X(cuCtxSynchronize) X(cuCtxSynchronize_v2)                                                                   \
  X(cuCtxWaitEvent)                                                                                            \
  X(cuEventRecord) X(cuEventRecord_ptsz)                                                                       \
  X(cuEventRecordWithFlags) X(cuEventRecordWithFlags_ptsz)                                                     \
  X(cuEventSynchronize)                                                                                        \
  X(cuGraphicsMapResources) X(cuGraphicsMapResources_ptsz)                                                     \
  X(cuGraphicsUnmapResources) X(cuGraphicsUnmapResources_ptsz)                                                 \
  X(cuGreenCtxRecordEvent)                                                                                     \
  X(cuGreenCtxWaitEvent)                                                                                       \
  X(cuLaunch)                                                                                                  \
  X(cuLaunchCooperativeKernel) X(cuLaunchCooperativeKernel_ptsz)                                               \
  X(cuLaunchCooperativeKernelMultiDevice)                                                                      \
  X(cuLaunchGrid)                                                                                              \
  X(cuLaunchGridAsync)                                                                                         \
  X(cuLaunchHostFunc) X(cuLaunchHostFunc_ptsz)                                                                 \
  X(cuLaunchKernel) X(cuLaunchKernel_ptsz)                                                                     \
  X(cuLaunchKernelEx) X(cuLaunchKernelEx_ptsz)                                                                 \
  X(cuMemBatchDecompressAsync) X(cuMemBatchDecompressAsync_ptsz)                                               \
  X(cuMemDiscardAndPrefetchBatchAsync) X(cuMemDiscardAndPrefetchBatchAsync_ptsz)                               \
  X(cuMemDiscardBatchAsync) X(cuMemDiscardBatchAsync_ptsz)                                                     \
  X(cuMemPrefetchAsync) X(cuMemPrefetchAsync_ptsz) X(cuMemPrefetchAsync_v2) X(cuMemPrefetchAsync_v2_ptsz)      \
  X(cuMemPrefetchBatchAsync) X(cuMemPrefetchBatchAsync_ptsz)                                                   \
  X(cuMemcpy) X(cuMemcpy_ptds)                                                                                 \
  X(cuMemcpy2D) X(cuMemcpy2D_v2) X(cuMemcpy2D_v2_ptds)                                                         \
  X(cuMemcpy2DAsync) X(cuMemcpy2DAsync_v2) X(cuMemcpy2DAsync_v2_ptsz)                                          \
  X(cuMemcpy2DUnaligned) X(cuMemcpy2DUnaligned_v2) X(cuMemcpy2DUnaligned_v2_ptds)                              \
  X(cuMemcpy3D) X(cuMemcpy3D_v2) X(cuMemcpy3D_v2_ptds)                                                         \
  X(cuMemcpy3DAsync) X(cuMemcpy3DAsync_v2) X(cuMemcpy3DAsync_v2_ptsz)                                          \
  X(cuMemcpy3DBatchAsync) X(cuMemcpy3DBatchAsync_ptsz) X(cuMemcpy3DBatchAsync_v2) X(cuMemcpy3DBatchAsync_v2_ptsz) \
  X(cuMemcpy3DPeer) X(cuMemcpy3DPeer_ptds)                                                                     \
  X(cuMemcpy3DPeerAsync) X(cuMemcpy3DPeerAsync_ptsz)                                                           \
  X(cuMemcpyAsync) X(cuMemcpyAsync_ptsz)                                                                       \
  X(cuMemcpyAtoA) X(cuMemcpyAtoA_v2) X(cuMemcpyAtoA_v2_ptds)                                                   \
  X(cuMemcpyAtoD) X(cuMemcpyAtoD_v2) X(cuMemcpyAtoD_v2_ptds)                                                   \
  X(cuMemcpyAtoH) X(cuMemcpyAtoH_v2) X(cuMemcpyAtoH_v2_ptds)                                                   \
  X(cuMemcpyAtoHAsync) X(cuMemcpyAtoHAsync_v2) X(cuMemcpyAtoHAsync_v2_ptsz)                                    \
  X(cuMemcpyBatchAsync) X(cuMemcpyBatchAsync_ptsz) X(cuMemcpyBatchAsync_v2) X(cuMemcpyBatchAsync_v2_ptsz)      \
  X(cuMemcpyDtoA) X(cuMemcpyDtoA_v2) X(cuMemcpyDtoA_v2_ptds)                                                   \
  X(cuMemcpyDtoD) X(cuMemcpyDtoD_v2) X(cuMemcpyDtoD_v2_ptds)                                                   \
  X(cuMemcpyDtoDAsync) X(cuMemcpyDtoDAsync_v2) X(cuMemcpyDtoDAsync_v2_ptsz)                                    \
  X(cuMemcpyDtoH) X(cuMemcpyDtoH_v2) X(cuMemcpyDtoH_v2_ptds)                                                   \
  X(cuMemcpyDtoHAsync) X(cuMemcpyDtoHAsync_v2) X(cuMemcpyDtoHAsync_v2_ptsz)                                    \
  X(cuMemcpyHtoA) X(cuMemcpyHtoA_v2) X(cuMemcpyHtoA_v2_ptds)                                                   \
  X(cuMemcpyHtoAAsync) X(cuMemcpyHtoAAsync_v2) X(cuMemcpyHtoAAsync_v2_ptsz)                                    \
  X(cuMemcpyHtoD) X(cuMemcpyHtoD_v2) X(cuMemcpyHtoD_v2_ptds)                                                   \
  X(cuMemcpyHtoDAsync) X(cuMemcpyHtoDAsync_v2) X(cuMemcpyHtoDAsync_v2_ptsz)                                    \
  X(cuMemcpyPeer) X(cuMemcpyPeer_ptds)                                                                         \
  X(cuMemcpyPeerAsync) X(cuMemcpyPeerAsync_ptsz)                                                               \
  X(cuMemsetD16) X(cuMemsetD16_v2) X(cuMemsetD16_v2_ptds)                                                      \
  X(cuMemsetD16Async) X(cuMemsetD16Async_ptsz)                                                                 \
  X(cuMemsetD2D16) X(cuMemsetD2D16_v2) X(cuMemsetD2D16_v2_ptds)                                                \
  X(cuMemsetD2D16Async) X(cuMemsetD2D16Async_ptsz)                                                             \
  X(cuMemsetD2D32) X(cuMemsetD2D32_v2) X(cuMemsetD2D32_v2_ptds)                                                \
  X(cuMemsetD2D32Async) X(cuMemsetD2D32Async_ptsz)                                                             \
  X(cuMemsetD2D8) X(cuMemsetD2D8_v2) X(cuMemsetD2D8_v2_ptds)                                                   \
  X(cuMemsetD2D8Async) X(cuMemsetD2D8Async_ptsz)                                                               \
  X(cuMemsetD32) X(cuMemsetD32_v2) X(cuMemsetD32_v2_ptds)                                                      \
  X(cuMemsetD32Async) X(cuMemsetD32Async_ptsz)                                                                 \
  X(cuMemsetD8) X(cuMemsetD8_v2) X(cuMemsetD8_v2_ptds)                                                         \
  X(cuMemsetD8Async) X(cuMemsetD8Async_ptsz)                                                                   \
  X(cuSignalExternalSemaphoresAsync) X(cuSignalExternalSemaphoresAsync_ptsz)                                   \
  X(cuStreamAddCallback) X(cuStreamAddCallback_ptsz)                                                           \
  X(cuStreamAttachMemAsync) X(cuStreamAttachMemAsync_ptsz)                                                     \
  X(cuStreamBatchMemOp) X(cuStreamBatchMemOp_ptsz) X(cuStreamBatchMemOp_v2) X(cuStreamBatchMemOp_v2_ptsz)      \
  X(cuStreamSynchronize) X(cuStreamSynchronize_ptsz)                                                           \
  X(cuStreamWaitEvent) X(cuStreamWaitEvent_ptsz)                                                               \
  X(cuStreamWaitValue32) X(cuStreamWaitValue32_ptsz) X(cuStreamWaitValue32_v2) X(cuStreamWaitValue32_v2_ptsz)  \
  X(cuStreamWaitValue64) X(cuStreamWaitValue64_ptsz) X(cuStreamWaitValue64_v2) X(cuStreamWaitValue64_v2_ptsz)  \
  X(cuStreamWriteValue32) X(cuStreamWriteValue32_ptsz) X(cuStreamWriteValue32_v2) X(cuStreamWriteValue32_v2_ptsz) \
  X(cuStreamWriteValue64) X(cuStreamWriteValue64_ptsz) X(cuStreamWriteValue64_v2) X(cuStreamWriteValue64_v2_ptsz) \
  X(cuWaitExternalSemaphoresAsync) X(cuWaitExternalSemaphoresAsync_ptsz)
// clang-format on

#endif  // LGPU_CLIENT_DRIVER_USED_CALLS_H_
