// The redirect, which `lgpu run` preloads: a dlopen of the CUDA driver or of NVML, by whatever path, opens
// the shim that lies beside this library. It needs glibc alone and does nothing at load.
//
// glibc looks at the return address of dlopen for the caller's RUNPATH and namespace, so both wrappers end in
// a jump (a sibling call). A test checks that the caller's RUNPATH still counts.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define WEAK __attribute__((weak))

// Calls of libdl, which is a part of libc since glibc 2.34. This library does not need libdl: mapping it
// takes half of what the redirect adds to the start of every program. Before glibc 2.34 a program that opens
// libraries has libdl, and these are found in it when this library is loaded. They are null where it came
// later, for a library that the program opened. They have no version: before glibc 2.30 a versioned call has
// to be in the library that has it where this library is linked, and a program without libdl did not start.
extern WEAK __typeof__(dladdr) dladdr;
extern WEAK __typeof__(dlsym) dlsym;

// What libc had for itself while libdl was a library beside it; null since then.
extern WEAK void* __libc_dlopen_mode(const char* file, int mode);
extern WEAK void* __libc_dlsym(void* library, const char* name);

// A call of libdl where that came later.
static void* OfLibdl(const char* name) {
  static const int kAsDlopen = (int)0x80000000u;
  if (__libc_dlopen_mode == NULL || __libc_dlsym == NULL) return NULL;
  void* const libdl = __libc_dlopen_mode("libdl.so.2", RTLD_LAZY | kAsDlopen);
  return libdl == NULL ? NULL : __libc_dlsym(libdl, name);
}

// The call that this library stands in front of.
static void* Next(const char* name) {
  void* const next = dlsym == NULL ? NULL : dlsym(RTLD_NEXT, name);
  return next != NULL ? next : OfLibdl(name);
}

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
struct Paths {
  char driver[PATH_MAX];
  char nvml[PATH_MAX];
};

// The path of the file `name` beside this library.
static void Find(const char* name, char room[PATH_MAX]) {
  Dl_info self;
  __typeof__(dladdr)* const look = dladdr != NULL ? dladdr : (__typeof__(dladdr)*)OfLibdl("dladdr");
  if (look == NULL || look((const void*)&Find, &self) == 0 || self.dli_fname == NULL) return;
  const char* const slash = strrchr(self.dli_fname, '/');
  const size_t length = slash == NULL ? 0 : (size_t)(slash - self.dli_fname) + 1;
  if (length == 0 || length + strlen(name) >= PATH_MAX) return;
  memcpy(room, self.dli_fname, length);
  strcpy(room + length, name);
}

// Found at the first call, and kept for good. Null: there is no memory for them.
static const struct Paths* ShimPaths(void) {
  static _Atomic(struct Paths*) known;
  struct Paths* paths = atomic_load(&known);
  if (paths != NULL) return paths;
  // No lock: a fork in another thread would leave it held in the child.
  paths = calloc(1, sizeof(*paths));
  if (paths == NULL) return NULL;
  Find("libcuda.so.1", paths->driver);
  Find("libnvidia-ml.so.1", paths->nvml);
  if (access(paths->nvml, F_OK) != 0) paths->nvml[0] = '\0';
  struct Paths* first = NULL;
  if (atomic_compare_exchange_strong(&known, &first, paths)) return paths;
  free(paths);
  return first;
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
  const struct Paths* const paths = ShimPaths();
  if (paths == NULL)
    return "lgpu has no memory to find the shim";  // no such library, in place of one without a limit
  const char* const shim = is_driver ? paths->driver : paths->nvml;
  return shim[0] == '\0' ? file : shim;
}

typedef void* (*Open)(const char*, int);
typedef void* (*OpenIn)(Lmid_t, const char*, int);

EXPORT void* dlopen(const char* file, int mode) {
  const char* const name = Redirected(file);
  const Open next = (Open)Next("dlopen");
  return next(name, mode);
}

EXPORT void* dlmopen(Lmid_t space, const char* file, int mode) {
  const char* const name = Redirected(file);
  const OpenIn next = (OpenIn)Next("dlmopen");
  return next(space, name, mode);
}
