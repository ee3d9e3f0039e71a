#ifndef LGPU_EXPORT_H_
#define LGPU_EXPORT_H_

// LGPU_API marks what liblgpu.so exports; everything else in it is hidden.
#define LGPU_API __attribute__((visibility("default")))
// LGPU_HIDDEN keeps a class inside an exported one out of it.
#define LGPU_HIDDEN __attribute__((visibility("hidden")))

#endif  // LGPU_EXPORT_H_
