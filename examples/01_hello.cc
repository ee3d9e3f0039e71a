// The first program: two matrices on a logical GPU of 256 MiB, and a sum on the CPU.

#include <lgpu/lgpu.h>

#include <iostream>

using namespace lgpu;

absl::Status Run() {
  LGPU_ASSIGN_OR_RETURN(Context gpu, Context::Create({.logical_devices = {{.memory_limit = 256_MiB}},
                                                      .log_device_placement = true}));
  LGPU_ASSIGN_OR_RETURN(Tensor a, gpu.Constant<float>({{1, 2, 3}, {4, 5, 6}}));
  LGPU_ASSIGN_OR_RETURN(Tensor b, gpu.Constant<float>({{1, 2}, {3, 4}, {5, 6}}));
  LGPU_ASSIGN_OR_RETURN(Tensor c, MatMul(a, b));  // Executing op MatMul in device .../device:GPU:0
  DeviceScope cpu(gpu, "/CPU:0");
  LGPU_ASSIGN_OR_RETURN(Tensor sum, AddN({c, c}));  // copied to the CPU, added there
  std::cout << sum << "\n";                         // [[44 56] [98 128]]
  return absl::OkStatus();
}

int main() {
  if (const absl::Status status = Run(); !status.ok()) {
    std::cerr << "01_hello: " << status.message() << "\n";
    return 1;
  }
  return 0;
}
