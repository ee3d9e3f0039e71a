#ifndef LGPU_CXX20_H_
#define LGPU_CXX20_H_

// The standard that lgpu's headers need, said in one line.

#if __cplusplus < 202002L
#error "lgpu needs C++20: compile with -std=c++20, in CMake target_compile_features(APP PRIVATE cxx_std_20)"
#endif

#endif  // LGPU_CXX20_H_
