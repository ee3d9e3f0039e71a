#ifndef LGPU_BASE_CHECK_H_
#define LGPU_BASE_CHECK_H_

#include <cstdio>
#include <cstdlib>

// LGPU_CHECK aborts with file, line and the broken condition. It is for bugs of lgpu itself; bad
// input, a full card or a dead peer is an absl::Status.
#define LGPU_CHECK(condition)                                                            \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)

// As LGPU_CHECK(left op right), for whole numbers, and prints both values.
#define LGPU_CHECK_OP(left, op, right)                                                                       \
  do {                                                                                                       \
    const auto lgpu_left = (left);                                                                           \
    const auto lgpu_right = (right);                                                                         \
    if (!(lgpu_left op lgpu_right)) {                                                                        \
      std::fprintf(stderr, "%s:%d: check failed: %s %s %s (%lld against %lld)\n", __FILE__, __LINE__, #left, \
                   #op, #right, static_cast<long long>(lgpu_left), static_cast<long long>(lgpu_right));      \
      std::abort();                                                                                          \
    }                                                                                                        \
  } while (false)

#endif  // LGPU_BASE_CHECK_H_
