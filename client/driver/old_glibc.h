#ifndef LGPU_CLIENT_DRIVER_OLD_GLIBC_H_
#define LGPU_CLIENT_DRIVER_OLD_GLIBC_H_

/// The shim and the redirect run in programs of older images, down to glibc 2.28. glibc 2.34 moved libdl and
/// libpthread into libc and gave their calls a new version, which an older glibc lacks. The old version is
/// still there.
///
/// LGPU_OLD_GLIBC(name, call, version) makes `name` in this file the call of that version, of x86-64. The
/// first version on aarch64 is 2.17.
#if defined(__x86_64__)
#define LGPU_OLD_GLIBC(name, call, version) __asm__(".symver " #name ", " #call "@GLIBC_" #version)
#elif defined(__aarch64__)
#define LGPU_OLD_GLIBC(name, call, version) __asm__(".symver " #name ", " #call "@GLIBC_2.17")
#else
#error "the versions of glibc's calls on this machine are not known"
#endif

#endif  // LGPU_CLIENT_DRIVER_OLD_GLIBC_H_
