// Calls a library that throws: throwing_user LIBRARY.

#include <dlfcn.h>

#include <cstdio>

int main(int argc, char** argv) {
  void* const library = argc == 2 ? ::dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : nullptr;
  const auto frames =
      reinterpret_cast<int (*)(int)>(library == nullptr ? nullptr : ::dlsym(library, "FramesOfAnException"));
  if (frames == nullptr) {
    const char* const why = ::dlerror();
    std::fprintf(stderr, "%s\n", why == nullptr ? "usage: throwing_user LIBRARY" : why);
    return 2;
  }
  return frames(3) == 4 ? 0 : 1;
}
