// Uses the installed library without a daemon: this process alone shares one simulated GPU.

#include <lgpu/lgpu.h>

#include <iostream>
#include <span>
#include <vector>

namespace {

absl::Status Run() {
  LGPU_ASSIGN_OR_RETURN(lgpu::Context gpu,
                        lgpu::Context::Create({.logical_devices = {{.memory_limit = lgpu::Bytes(32 << 20)}},
                                               .endpoint = "local:1x64MiB"}));
  std::vector<float> values = {1, 2, 3, 4, 5, 6};
  LGPU_ASSIGN_OR_RETURN(const lgpu::Tensor a, gpu.Constant<float>({2, 3}, values));
  LGPU_ASSIGN_OR_RETURN(const lgpu::Tensor b, gpu.Constant<float>({{1, 2}, {3, 4}, {5, 6}}));
  LGPU_ASSIGN_OR_RETURN(const lgpu::Tensor half, gpu.Fill<float>({2, 2}, 0.5));
  LGPU_ASSIGN_OR_RETURN(const lgpu::Tensor product, lgpu::MatMul(a, b));
  LGPU_ASSIGN_OR_RETURN(const lgpu::Tensor c, lgpu::Multiply(product, half));
  LGPU_RETURN_IF_ERROR(c.CopyToHost<float>(std::span(values).first(4)));  // 11, 14, 24.5, 32
  std::cout << c.device() << ": " << c << "\n";
  if (values != std::vector<float>{11, 14, 24.5, 32, 5, 6}) return absl::InternalError("wrong values");
  return gpu.Close();
}

}  // namespace

int main() {
  const absl::Status status = Run();
  if (!status.ok()) std::cerr << status.message() << "\n";
  return status.ok() ? 0 : 1;
}
