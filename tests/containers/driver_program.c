// A program that knows nothing of lgpu, for containers: opens the driver and asks it for memory.
//
//   driver_program [--hold] [deep:|new:]LIBRARY   deep: RTLD_DEEPBIND; new: dlmopen. Without --hold: the card's size and the
//                                                 result of 96 MiB. With it: takes 40 MiB, then 4 MiB for each line that it
//                                                 reads, and says each result.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef int (*Init)(unsigned);
typedef int (*Retain)(void**, int);
typedef int (*SetCurrent)(void*);
typedef int (*Info)(size_t*, size_t*);
typedef int (*Alloc)(unsigned long long*, size_t);

static void* Open(const char* library) {
  if (strncmp(library, "deep:", 5) == 0) return dlopen(library + 5, RTLD_NOW | RTLD_DEEPBIND);
  if (strncmp(library, "new:", 4) == 0) return dlmopen(LM_ID_NEWLM, library + 4, RTLD_NOW);
  return dlopen(library, RTLD_NOW);
}

int main(int argc, char** argv) {
  const int hold = argc > 1 && strcmp(argv[1], "--hold") == 0;
  void* const driver = Open(argc > 1 + hold ? argv[1 + hold] : "libcuda.so.1");
  if (driver == NULL) {
    printf("no driver: %s\n", dlerror());
    return 1;
  }
  void* context = NULL;
  size_t available = 0;
  size_t total = 0;
  unsigned long long memory = 0;
  const int started = ((Init)dlsym(driver, "cuInit"))(0);
  if (started != 0 || ((Retain)dlsym(driver, "cuDevicePrimaryCtxRetain"))(&context, 0) != 0 ||
      ((SetCurrent)dlsym(driver, "cuCtxSetCurrent"))(context) != 0 || ((Info)dlsym(driver, "cuMemGetInfo_v2"))(&available, &total) != 0) {
    printf("no card: %d\n", started);
    return 1;
  }
  const Alloc alloc = (Alloc)dlsym(driver, "cuMemAlloc_v2");
  if (!hold) {
    printf("total %zu, 96 MiB: %d\n", total >> 20, alloc(&memory, (size_t)96 << 20));
    return 0;
  }
  printf("40 MiB: %d\n", alloc(&memory, (size_t)40 << 20));
  fflush(stdout);
  for (int byte = getchar(); byte != EOF; byte = getchar()) {
    printf("4 MiB: %d\n", alloc(&memory, (size_t)4 << 20));
    fflush(stdout);
  }
  return 0;
}
