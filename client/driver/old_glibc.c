// Calls of glibc that are newer than 2.28, or have a newer version there, by what glibc 2.28 has. The shims'
// own code, and the static libstdc++ and libgcc in them, are linked with these definitions in place of
// glibc's. A test reads the versions that the shims need.

#define _GNU_SOURCE
#include "client/driver/old_glibc.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/stat.h>

// Calls of libdl and libpthread, which libc has since 2.34.
#define FORWARD(version, result, call, parameters, ...) \
  LGPU_OLD_GLIBC(old_##call, call, version);            \
  extern result old_##call parameters;                  \
  result call parameters { return old_##call(__VA_ARGS__); }

FORWARD(2.2.5, void*, dlopen, (const char* file, int mode), file, mode)
FORWARD(2.2.5, void*, dlsym, (void* library, const char* name), library, name)
FORWARD(2.3.3, int, pthread_condattr_setclock, (pthread_condattr_t * attributes, clockid_t clock), attributes,
        clock)
FORWARD(2.2.5, int, pthread_once, (pthread_once_t * once, void (*run)(void)), once, run)
FORWARD(2.2.5, int, pthread_rwlock_rdlock, (pthread_rwlock_t * lock), lock)
FORWARD(2.2.5, int, pthread_rwlock_wrlock, (pthread_rwlock_t * lock), lock)
FORWARD(2.2.5, int, pthread_rwlock_unlock, (pthread_rwlock_t * lock), lock)
int __pthread_key_create(pthread_key_t* key, void (*end)(void*));  // for libstdc++; no header has it
FORWARD(2.2.5, int, __pthread_key_create, (pthread_key_t * key, void (*end)(void*)), key, end)

// Since 2.33 libc has stat and fstat; before, programs had them, by these calls.
#if defined(__x86_64__)
enum { kStatVersion = 1 };
#else
enum { kStatVersion = 0 };
#endif
extern int __xstat(int version, const char* path, struct stat* found);
extern int __fxstat(int version, int fd, struct stat* found);
int stat(const char* path, struct stat* found) { return __xstat(kStatVersion, path, found); }
int fstat(int fd, struct stat* found) { return __fxstat(kStatVersion, fd, found); }

// Since 2.32, for libstdc++: whether the process has one thread, so that it may count without atomic
// operations. 0: it may have more.
extern char __libc_single_threaded;
char __libc_single_threaded = 0;

// Since 2.35, for libgcc: the exception tables of the library that has `address`.
#ifdef DLFO_EH_SEGMENT_TYPE
struct Search {
  ElfW(Addr) address;
  struct dl_find_object* found;
};

static int Look(struct dl_phdr_info* library, size_t size, void* data) {
  (void)size;
  const struct Search* const search = data;
  int is_there = 0;
  void* tables = NULL;
  for (int i = 0; i < library->dlpi_phnum; ++i) {
    const ElfW(Phdr)* const segment = &library->dlpi_phdr[i];
    const ElfW(Addr) begin = library->dlpi_addr + segment->p_vaddr;
    if (segment->p_type == PT_LOAD && search->address - begin < segment->p_memsz) is_there = 1;
    if (segment->p_type == DLFO_EH_SEGMENT_TYPE) tables = (void*)begin;
  }
  if (!is_there || tables == NULL) return 0;
  search->found->dlfo_eh_frame = tables;
  return 1;
}

int _dl_find_object(void* address, struct dl_find_object* found) {
  struct Search search = {(ElfW(Addr))address, found};
  return dl_iterate_phdr(Look, &search) == 1 ? 0 : -1;
}
#endif
