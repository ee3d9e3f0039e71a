#ifndef LGPU_TESTS_CLIENT_C_CHECK_H_
#define LGPU_TESTS_CLIENT_C_CHECK_H_

/* CHECK of the C tests: counts what is not so, and goes on. main returns `failures != 0`. */

#include <stdio.h>

static int failures = 0;

#define CHECK(condition)                                                      \
  do {                                                                        \
    if (!(condition)) {                                                       \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                             \
    }                                                                         \
  } while (0)

#endif /* LGPU_TESTS_CLIENT_C_CHECK_H_ */
