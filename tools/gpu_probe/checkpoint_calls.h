#ifndef LGPU_TOOLS_GPU_PROBE_CHECKPOINT_CALLS_H_
#define LGPU_TOOLS_GPU_PROBE_CHECKPOINT_CALLS_H_

#include <sys/types.h>

#include <string>

namespace lgpu::gpu_probe {

/// Makes one of the driver's checkpoint calls for another process: "state", "lock", "checkpoint", "restore"
/// or "unlock". Returns "ok ms=DURATION", for "state" with "state=NUMBER" (of CUprocessState) too, or "error
/// CALL gave CODE after MS ms". Drivers before 570 do not have the calls. A lock waits 10 s at most.
std::string CheckpointCall(const std::string& call, pid_t pid);

}  // namespace lgpu::gpu_probe

#endif  // LGPU_TOOLS_GPU_PROBE_CHECKPOINT_CALLS_H_
