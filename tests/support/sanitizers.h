#ifndef LGPU_TESTS_SUPPORT_SANITIZERS_H_
#define LGPU_TESTS_SUPPORT_SANITIZERS_H_

// The sanitizer that this program is built with: g++ defines a macro for each, clang answers __has_feature.
// Macros of that name in other libraries' headers answer 0.
#if defined(__SANITIZE_ADDRESS__)
#define LGPU_TEST_ASAN 1
#elif defined(__has_feature)
#define LGPU_TEST_ASAN __has_feature(address_sanitizer)
#else
#define LGPU_TEST_ASAN 0
#endif
#if defined(__SANITIZE_THREAD__)
#define LGPU_TEST_TSAN 1
#elif defined(__has_feature)
#define LGPU_TEST_TSAN __has_feature(thread_sanitizer)
#else
#define LGPU_TEST_TSAN 0
#endif

namespace lgpu::testing {

inline constexpr bool kAddressSanitizer = LGPU_TEST_ASAN;
inline constexpr bool kThreadSanitizer = LGPU_TEST_TSAN;
inline constexpr bool kSanitized = kAddressSanitizer || kThreadSanitizer;

/// Why a test skips under ThreadSanitizer: fork copies the locks of ThreadSanitizer's own runtime as they
/// are, and a thread of the parent may hold one of them. A child that then allocates memory waits for ever.
inline constexpr char kForkBesideThreads[] =
    "ThreadSanitizer's runtime takes no care of its own locks over a fork beside threads";

}  // namespace lgpu::testing

#endif  // LGPU_TESTS_SUPPORT_SANITIZERS_H_
