#ifndef LGPU_PYTHON_MODULE_DLPACK_ABI_H_
#define LGPU_PYTHON_MODULE_DLPACK_ABI_H_

#include <cstdint>

// The structures that DLPack's capsules hold, as its specification 1.0 lays them out.

namespace lgpu::python::dlpack {

inline constexpr std::int32_t kCpu = 1;
inline constexpr std::int32_t kCuda = 2;
inline constexpr std::int32_t kCudaHost = 3;

inline constexpr std::uint8_t kInt = 0;
inline constexpr std::uint8_t kFloat = 2;
inline constexpr std::uint8_t kBfloat = 4;

inline constexpr std::uint64_t kReadOnly = 1;
inline constexpr std::uint64_t kIsCopied = 2;

inline constexpr char kName[] = "dltensor";
inline constexpr char kUsedName[] = "used_dltensor";
inline constexpr char kVersionedName[] = "dltensor_versioned";
inline constexpr char kUsedVersionedName[] = "used_dltensor_versioned";

struct Device {
  std::int32_t type;
  std::int32_t id;
};
struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};
struct Array {
  void* data;
  Device device;
  std::int32_t ndim;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; older producers: null where the array is dense and row-major
  std::uint64_t byte_offset;
};
struct Managed {
  Array array;
  void* manager;
  void (*deleter)(Managed* self);
};
struct Version {
  std::uint32_t major;
  std::uint32_t minor;
};
struct ManagedVersioned {
  Version version;
  void* manager;
  void (*deleter)(ManagedVersioned* self);
  std::uint64_t flags;
  Array array;
};

}  // namespace lgpu::python::dlpack

#endif  // LGPU_PYTHON_MODULE_DLPACK_ABI_H_
