#ifndef LGPU_EXPORT_H_
#define LGPU_EXPORT_H_

// LGPU_API marks what liblgpu.so exports; everything else in it is hidden.
#define LGPU_API __attribute__((visibility("default")))

#endif  // LGPU_EXPORT_H_
