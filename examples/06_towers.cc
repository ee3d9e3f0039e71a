// The towers of TensorFlow's GPU guide: the same matmul on several GPUs, the sum on the CPU. Both editions:
// the one that lists the logical GPUs, and the oldest one, which names GPU:2 and GPU:3 and prints as a
// session did.

#include <lgpu/lgpu.h>

#include <iostream>
#include <string>
#include <vector>

using namespace lgpu;

namespace {

// gpus = tf.config.list_logical_devices('GPU'); for gpu in gpus: with tf.device(gpu.name): ...
absl::Status NewEdition() {
  LGPU_ASSIGN_OR_RETURN(Config config, Config::Create({}));
  LGPU_RETURN_IF_ERROR(config.SetVisibleDevices({"GPU:0"}, "GPU"));
  LGPU_RETURN_IF_ERROR(
      config.SetLogicalDeviceConfiguration("GPU:0", {{.memory_limit = 128_MiB}, {.memory_limit = 128_MiB}}));
  config.SetLogDevicePlacement(true);
  LGPU_ASSIGN_OR_RETURN(Context context, Context::Create(config));

  std::vector<Tensor> c;
  for (const LogicalDeviceName& gpu : context.ListLogicalDevices("GPU")) {
    const DeviceScope scope(context, gpu.name);
    LGPU_ASSIGN_OR_RETURN(Tensor a, context.Constant<float>({{1, 2, 3}, {4, 5, 6}}));
    LGPU_ASSIGN_OR_RETURN(Tensor b, context.Constant<float>({{1, 2}, {3, 4}, {5, 6}}));
    LGPU_ASSIGN_OR_RETURN(Tensor product, MatMul(a, b));
    c.push_back(product);
  }
  const DeviceScope cpu(context, "/CPU:0");
  LGPU_ASSIGN_OR_RETURN(Tensor sum, AddN(c));
  std::cout << "new edition: " << sum << "\n";
  return absl::OkStatus();
}

// for d in ['/device:GPU:2', '/device:GPU:3']: with tf.device(d): ...
absl::Status OldestEdition() {
  LGPU_ASSIGN_OR_RETURN(Config config, Config::Create({}));
  for (const PhysicalDeviceInfo& card : config.ListPhysicalDevices("GPU")) {
    LGPU_RETURN_IF_ERROR(config.SetLogicalDeviceConfiguration(
        card.name, {{.memory_limit = 128_MiB}, {.memory_limit = 128_MiB}}));
  }
  config.SetLogDevicePlacement(true);
  config.SetPlacementLogFormat(PlacementLogFormat::kGraph);
  config.SetSoftDevicePlacement(false);
  LGPU_ASSIGN_OR_RETURN(Context context, Context::Create(config));

  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  std::vector<Tensor> c;
  for (const char* device : {"/device:GPU:2", "/device:GPU:3"}) {
    const DeviceScope scope(context, device);
    LGPU_ASSIGN_OR_RETURN(Tensor a, context.Constant<float>({2, 3}, values));
    LGPU_ASSIGN_OR_RETURN(Tensor b, context.Constant<float>({3, 2}, values));
    LGPU_ASSIGN_OR_RETURN(Tensor product, MatMul(a, b));
    c.push_back(product);
  }
  const DeviceScope cpu(context, "/cpu:0");
  LGPU_ASSIGN_OR_RETURN(Tensor sum, AddN(c));
  std::cout << "oldest edition: " << sum << "\n";
  return absl::OkStatus();
}

}  // namespace

int main() {
  for (const auto edition : {NewEdition, OldestEdition}) {
    if (const absl::Status status = edition(); !status.ok()) {
      std::cerr << "06_towers: " << status.message() << "\n";
      return 1;
    }
  }
  return 0;
}
