// Uses the installed library without a daemon: this process alone shares one simulated GPU.

#include <lgpu/lgpu.h>

#include <iostream>
#include <sstream>
#include <vector>

namespace {

absl::Status Run() {
  LGPU_ASSIGN_OR_RETURN(lgpu::Context gpu,
                        lgpu::Context::Create({.logical_devices = {{.memory_limit = lgpu::Bytes(32 << 20)}},
                                               .endpoint = "local:1x64MiB"}));
  LGPU_ASSIGN_OR_RETURN(const lgpu::Tensor a, gpu.Constant<float>({{1, 2, 3}, {4, 5, 6}}));
  LGPU_ASSIGN_OR_RETURN(const lgpu::Tensor b, gpu.Constant<float>({{1, 2}, {3, 4}, {5, 6}}));
  LGPU_ASSIGN_OR_RETURN(const lgpu::Tensor c, lgpu::MatMul(a, b));
  std::ostringstream text;
  text << c;
  std::cout << c.device() << ": " << text.str() << "\n";
  LGPU_ASSIGN_OR_RETURN(const std::vector<float> values, c.ToVector<float>());
  if (values != std::vector<float>{22, 28, 49, 64}) return absl::InternalError("wrong product");
  return gpu.Close();
}

}  // namespace

int main() {
  const absl::Status status = Run();
  if (!status.ok()) std::cerr << status.message() << "\n";
  return status.ok() ? 0 : 1;
}
