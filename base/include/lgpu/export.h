#ifndef LGPU_EXPORT_H_
#define LGPU_EXPORT_H_

// The standard that lgpu's headers need, said in one line by each of them.
#if __cplusplus < 202002L
#error "lgpu needs C++20: compile with -std=c++20, in CMake target_compile_features(APP PRIVATE cxx_std_20)"
#include <lgpu/see_the_error_above>  // ends the compilation: no errors of the headers follow
#endif

// LGPU_API marks what liblgpu.so exports; everything else in it is hidden.
#define LGPU_API __attribute__((visibility("default")))
// LGPU_HIDDEN keeps a class inside an exported one out of it.
#define LGPU_HIDDEN __attribute__((visibility("hidden")))

#endif  // LGPU_EXPORT_H_
