// The redirect, which `lgpu run` preloads: a dlopen of the CUDA driver or of NVML, by whatever path, opens
// the shim that lies beside this library. It needs libc alone and does nothing at load.
//
// glibc looks at the return address of dlopen for the caller's RUNPATH and namespace, so both wrappers end in
// a jump (a sibling call). A test checks that the caller's RUNPATH still counts.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

// "libcuda.so", "libcuda.so.1", "libcuda.so.580.65.06".
static bool IsLibrary(const char* base, const char* stem) {
  const size_t length = strlen(stem);
  return strncmp(base, stem, length) == 0 && (base[length] == '\0' || base[length] == '.');
}

static bool IsOff(void) {
  const char* const off = getenv("LGPU_SHIM");
  return off != NULL && strcmp(off, "off") == 0;
}

// The shims' paths. That of NVML is empty where the machine has no NVML. The driver's stands even when the
// folder was removed meanwhile: the program then finds no driver, in place of one without a limit.
static char driver_path[PATH_MAX];
static char nvml_path[PATH_MAX];
static pthread_once_t found = PTHREAD_ONCE_INIT;

// The path of the file `name` beside this library.
static void Find(const char* name, char room[PATH_MAX]) {
  Dl_info self;
  if (dladdr((const void*)&Find, &self) == 0 || self.dli_fname == NULL) return;
  const char* const slash = strrchr(self.dli_fname, '/');
  const size_t length = slash == NULL ? 0 : (size_t)(slash - self.dli_fname) + 1;
  if (length == 0 || length + strlen(name) >= PATH_MAX) return;
  memcpy(room, self.dli_fname, length);
  strcpy(room + length, name);
}

static void FindBoth(void) {
  Find("libcuda.so.1", driver_path);
  Find("libnvidia-ml.so.1", nvml_path);
  if (access(nvml_path, F_OK) != 0) nvml_path[0] = '\0';
}

// The shim's path where `file` is a library that has one; else `file`.
static const char* Redirected(const char* file) {
  if (file == NULL) return file;
  const char* const slash = strrchr(file, '/');
  const char* const base = slash == NULL ? file : slash + 1;
  const bool is_driver = IsLibrary(base, "libcuda.so");
  if ((!is_driver && !IsLibrary(base, "libnvidia-ml.so")) || IsOff()) return file;
  // A path that is not there fails as it did before.
  if (slash != NULL && access(file, F_OK) != 0) return file;
  pthread_once(&found, FindBoth);
  const char* const shim = is_driver ? driver_path : nvml_path;
  return shim[0] == '\0' ? file : shim;
}

typedef void* (*Open)(const char*, int);
typedef void* (*OpenIn)(Lmid_t, const char*, int);

EXPORT void* dlopen(const char* file, int mode) {
  const char* const name = Redirected(file);
  const Open next = (Open)dlsym(RTLD_NEXT, "dlopen");
  return next(name, mode);
}

EXPORT void* dlmopen(Lmid_t space, const char* file, int mode) {
  const char* const name = Redirected(file);
  const OpenIn next = (OpenIn)dlsym(RTLD_NEXT, "dlmopen");
  return next(space, name, mode);
}
