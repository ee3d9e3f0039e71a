#ifndef LGPU_TESTS_CLIENT_C_CHECK_H_
#define LGPU_TESTS_CLIENT_C_CHECK_H_

/* What the C tests share. CHECK counts what is not so, and goes on; main returns `failures != 0`. */

#include <stdio.h>
#include <string.h>

#include "lgpu/c/lgpu.h"

static int failures = 0;

#define CHECK(condition)                                                      \
  do {                                                                        \
    if (!(condition)) {                                                       \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                             \
    }                                                                         \
  } while (0)

/* Whether the float tensor has these values; deletes it. */
static inline int Has(lgpu_tensor* tensor, const float* values, size_t count) {
  float found[8];
  const int same = tensor != NULL && lgpu_tensor_bytes(tensor) == count * sizeof(float) &&
                   lgpu_tensor_copy_to_host(tensor, found, count * sizeof(float), NULL) == LGPU_OK &&
                   memcmp(found, values, count * sizeof(float)) == 0;
  lgpu_tensor_delete(tensor);
  return same;
}

#endif /* LGPU_TESTS_CLIENT_C_CHECK_H_ */
