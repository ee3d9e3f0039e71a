/* Uses the installed library from C, without a daemon: this process alone, with a simulated GPU. */

#include <lgpu/c/lgpu.h>
#include <stdio.h>

int main(void) {
  static const float kValues[] = {1, 2, 3, 4};
  static const int64_t kShape[] = {2, 2};
  float product_values[4] = {0, 0, 0, 0};
  lgpu_status* status = lgpu_status_new();
  lgpu_options* options = lgpu_options_new();
  lgpu_context* context = NULL;
  lgpu_tensor* a = NULL;
  lgpu_tensor* product = NULL;
  lgpu_options_set_endpoint(options, "local:1x64MiB");
  lgpu_options_add_device(options, 32u << 20, 0);
  const int ok =
      lgpu_context_create(options, &context, status) == LGPU_OK &&
      lgpu_constant(context, LGPU_FLOAT32, kShape, 2, kValues, sizeof kValues, &a, status) == LGPU_OK &&
      lgpu_matmul(a, a, 0, 0, &product, status) == LGPU_OK &&
      lgpu_tensor_copy_to_host(product, product_values, sizeof product_values, status) == LGPU_OK;
  printf("%s: %g %g %g %g%s\n", ok ? lgpu_tensor_device(product) : "error", product_values[0],
         product_values[1], product_values[2], product_values[3], ok ? "" : lgpu_status_message(status));
  lgpu_tensor_delete(product);
  lgpu_tensor_delete(a);
  lgpu_context_delete(context);
  lgpu_options_delete(options);
  lgpu_status_delete(status);
  return ok && product_values[0] == 7 && product_values[3] == 22 ? 0 : 1;
}
