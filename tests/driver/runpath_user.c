// Opens a library that its RUNPATH alone leads to, and one that nothing leads to.

#include <dlfcn.h>
#include <stdio.h>

int main(void) {
  void* const found = dlopen("libdriver_runpath_target.so", RTLD_NOW);
  if (found == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  return dlopen("libdriver_nowhere.so", RTLD_NOW) == NULL ? 0 : 2;
}
