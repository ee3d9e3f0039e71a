// A program on the fake driver for the tests of its checkpoint calls. It obeys lines of standard input and
// answers each with a line: "ok", or the number of the first driver's call that failed.
//
//   start            the driver, with a context and a stream
//   alloc BYTES      plain memory, with contents of its own
//   create BYTES     the same of cuMemCreate, mapped
//   pooled BYTES     the same of a pool
//   managed BYTES, shared BYTES   managed memory, or memory that it has exported
//   busy, idle       begins work that goes on until "idle"
//   work MILLISECONDS   begins work that takes so long
//   cycle PID TIMES  suspends a process and resumes it, so often
//   user             becomes another user, as root may
//   exec             becomes this program anew
//   touch            a call that waits for no work
//   compare          whether all contents are as they were made, by copies on the stream
//   exit
//   call CALL PID [MILLISECONDS]   a checkpoint call: lock, checkpoint, restore, unlock or state; its result,
//                    and of "state" the state after it

#include <cuda.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace {

struct Memory {
  CUdeviceptr address;
  std::vector<std::uint64_t> contents;
};

CUcontext context = nullptr;
CUstream stream = nullptr;
std::vector<Memory> memories;
std::atomic<bool> is_busy = false;

CUresult Start() {
  CUresult result = cuInit(0);
  if (result == CUDA_SUCCESS) result = cuDevicePrimaryCtxRetain(&context, 0);
  if (result == CUDA_SUCCESS) result = cuCtxSetCurrent(context);
  if (result == CUDA_SUCCESS) result = cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  return result;
}

CUresult Fill(CUdeviceptr address, std::size_t bytes) {
  Memory memory{address, std::vector<std::uint64_t>(bytes / sizeof(std::uint64_t))};
  std::uint64_t number = address + memories.size();
  for (std::uint64_t& word : memory.contents) word = number = number * 6364136223846793005u + 1;
  memories.push_back(std::move(memory));
  const auto& contents = memories.back().contents;
  return cuMemcpyHtoD_v2(address, contents.data(), contents.size() * sizeof(contents[0]));
}

CUresult Create(std::size_t bytes, CUmemGenericAllocationHandle* handle) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return cuMemCreate(handle, bytes, &properties, 0);
}

CUresult MakeMemory(const std::string& kind, std::size_t bytes) {
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle handle = 0;
  CUresult result = CUDA_SUCCESS;
  if (kind == "alloc") {
    result = cuMemAlloc_v2(&address, bytes);
  } else if (kind == "pooled") {
    result = cuMemAllocAsync(&address, bytes, stream);
  } else if (kind == "managed") {
    result = cuMemAllocManaged(&address, bytes, CU_MEM_ATTACH_GLOBAL);
  } else {
    CUmemAccessDesc access{};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    result = Create(bytes, &handle);
    if (result == CUDA_SUCCESS) result = cuMemAddressReserve(&address, bytes, 0, 0, 0);
    if (result == CUDA_SUCCESS) result = cuMemMap(address, bytes, 0, handle, 0);
    if (result == CUDA_SUCCESS) result = cuMemSetAccess(address, bytes, &access, 1);
  }
  int descriptor = -1;
  if (result == CUDA_SUCCESS && kind == "shared") {
    result = cuMemExportToShareableHandle(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  }
  return result == CUDA_SUCCESS ? Fill(address, bytes) : result;
}

void Work(void* milliseconds) {
  ::usleep(static_cast<useconds_t>(reinterpret_cast<std::uintptr_t>(milliseconds)) * 1000);
}

void WaitForIdle(void*) {
  while (is_busy) ::usleep(500);
}

std::string Compare() {
  for (const Memory& memory : memories) {
    std::vector<std::uint64_t> found(memory.contents.size());
    const CUresult result =
        cuMemcpyDtoHAsync_v2(found.data(), memory.address, found.size() * sizeof(found[0]), stream);
    const CUresult waited = cuStreamSynchronize(stream);
    if (result != CUDA_SUCCESS || waited != CUDA_SUCCESS) return std::to_string(result + waited);
    if (found != memory.contents) return "different";
  }
  return "same";
}

std::string MakeCall(const std::string& call, int pid, unsigned milliseconds) {
  CUprocessState state{};
  CUcheckpointLockArgs lock{};
  lock.timeoutMs = milliseconds;
  CUresult result = CUDA_ERROR_NOT_FOUND;
  if (call == "lock") result = cuCheckpointProcessLock(pid, &lock);
  if (call == "checkpoint") result = cuCheckpointProcessCheckpoint(pid, nullptr);
  if (call == "restore") result = cuCheckpointProcessRestore(pid, nullptr);
  if (call == "unlock") result = cuCheckpointProcessUnlock(pid, nullptr);
  if (call == "state") result = cuCheckpointProcessGetState(pid, &state);
  const std::string answer = std::to_string(result);
  return call == "state" && result == CUDA_SUCCESS ? answer + " " + std::to_string(state) : answer;
}

/// "ok", or the first call that failed and its result.
std::string Cycle(int pid, int times) {
  for (int i = 0; i < times; ++i) {
    for (const char* const call : {"lock", "checkpoint", "restore", "unlock"}) {
      const std::string result = MakeCall(call, pid, 0);
      if (result != "0") return std::string(call) + " " + result;
    }
  }
  return "ok";
}

std::string Obey(const std::string& line) {
  std::istringstream words(line);
  std::string verb, call;
  std::size_t bytes = 0;
  words >> verb;
  if (verb == "compare") return Compare();
  if (verb == "call") {
    int pid = 0;
    unsigned milliseconds = 0;
    words >> call >> pid >> milliseconds;
    return MakeCall(call, pid, milliseconds);
  }
  if (verb == "cycle") {
    int pid = 0, times = 0;
    words >> pid >> times;
    return Cycle(pid, times);
  }
  if (verb == "user") return ::setuid(65534) == 0 ? "ok" : "no user";
  if (verb == "exec") {
    ::execl("/proc/self/exe", "checkpoint_client", nullptr);
    return "no exec";
  }
  CUresult result = CUDA_SUCCESS;
  if (verb == "start") {
    result = Start();
  } else if (verb == "touch") {
    result = cuMemGetInfo_v2(&bytes, nullptr);
  } else if (verb == "busy") {
    is_busy = true;
    result = cuLaunchHostFunc(stream, WaitForIdle, nullptr);
  } else if (verb == "work") {
    words >> bytes;
    result = cuLaunchHostFunc(stream, Work, reinterpret_cast<void*>(bytes));
  } else if (verb == "idle") {
    is_busy = false;
  } else {
    words >> bytes;
    result = MakeMemory(verb, bytes);
  }
  return result == CUDA_SUCCESS ? "ok" : std::to_string(result);
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line) && line != "exit";) {
    std::cout << Obey(line) << std::endl;
  }
  ::_exit(0);
}
