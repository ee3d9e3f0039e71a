// Several GPUs out of one card: each multiplies the same two matrices, the CPU adds the products. With the
// two logical GPUs that are made here the sum is [[44 56] [98 128]].

#include <lgpu/lgpu.h>

#include <iostream>
#include <vector>

using namespace lgpu;

namespace {

absl::Status Run() {
  LGPU_ASSIGN_OR_RETURN(
      Context gpu, Context::Create({.logical_devices = {{.memory_limit = 256_MiB, .physical_device = "0"},
                                                        {.memory_limit = 256_MiB, .physical_device = "0"}},
                                    .log_device_placement = true}));
  std::cout << gpu.logical_devices().size() << " logical GPUs on card "
            << gpu.logical_devices().at(0).card_uuid << "\n";
  std::vector<Tensor> products;
  for (const LogicalDeviceInfo& device : gpu.logical_devices()) {
    const DeviceScope scope(gpu, device.name);
    LGPU_ASSIGN_OR_RETURN(Tensor a, gpu.Constant<float>({{1, 2, 3}, {4, 5, 6}}));
    LGPU_ASSIGN_OR_RETURN(Tensor b, gpu.Constant<float>({{1, 2}, {3, 4}, {5, 6}}));
    LGPU_ASSIGN_OR_RETURN(Tensor product, MatMul(a, b));
    products.push_back(product);
  }
  const DeviceScope cpu(gpu, "/CPU:0");
  LGPU_ASSIGN_OR_RETURN(Tensor sum, AddN(products));
  std::cout << sum << "\n";
  return absl::OkStatus();
}

}  // namespace

int main() {
  if (const absl::Status status = Run(); !status.ok()) {
    std::cerr << "03_simulate_multi_gpu: " << status.message() << "\n";
    return 1;
  }
  return 0;
}
