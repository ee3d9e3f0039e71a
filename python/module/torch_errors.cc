#include "python/module/torch_errors.h"

#include <cxxabi.h>
#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <typeinfo>

namespace lgpu::python {

namespace {

/// The parameter of that name of c10::Error's constructor: a place in a source file.
struct SourceLocation {
  const char* function;
  const char* file;
  std::uint32_t line;
};

/// c10::OutOfMemoryError is a c10::Error with another type and nothing more, and has no constructor that a
/// library exports. So its parts are used as the C++ ABI of this platform lays them out.
struct Parts {
  void (*construct_error)(void* self, SourceLocation where, std::string text) = nullptr;
  void* const* table = nullptr;  // its virtual functions; the first destroys it
  std::type_info* type = nullptr;
};

// One for the process, as PyTorch is. Written once, by the first FindTorchErrors that succeeds; never freed.
std::atomic<const Parts*> parts_found{nullptr};

constexpr const char* kConstructor =
    "_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";
constexpr const char* kTable = "_ZTVN3c1016OutOfMemoryErrorE";
constexpr const char* kType = "_ZTIN3c1016OutOfMemoryErrorE";
// More than c10::Error has: 200 bytes in PyTorch 2.9.
constexpr std::size_t kMostBytes = 1024;

void Destroy(void* error) {
  const auto* const table = *static_cast<void* const* const*>(error);
  reinterpret_cast<void (*)(void*)>(table[0])(error);
}

}  // namespace

absl::Status FindTorchErrors(const std::vector<std::string>& libraries) {
  if (parts_found.load(std::memory_order_acquire) != nullptr) return absl::OkStatus();
  const auto find = [&libraries](const char* name) -> void* {
    for (const std::string& file : libraries) {
      void* const library = ::dlopen(file.c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
      if (library == nullptr) continue;
      void* const symbol = ::dlsym(library, name);
      ::dlclose(library);  // PyTorch keeps it
      if (symbol != nullptr) return symbol;
    }
    return nullptr;
  };
  Parts parts;
  parts.construct_error = reinterpret_cast<decltype(parts.construct_error)>(find(kConstructor));
  parts.table = static_cast<void* const*>(find(kTable));
  parts.type = static_cast<std::type_info*>(find(kType));
  if (parts.construct_error == nullptr) return absl::NotFoundError(kConstructor);
  if (parts.table == nullptr) return absl::NotFoundError(kTable);
  if (parts.type == nullptr) return absl::NotFoundError(kType);
  const Parts* expected = nullptr;
  const auto* const mine = new Parts(parts);
  if (!parts_found.compare_exchange_strong(expected, mine, std::memory_order_acq_rel)) delete mine;
  return absl::OkStatus();
}

void ThrowTorchOutOfMemory(const std::string& text) {
  const Parts* const parts = parts_found.load(std::memory_order_acquire);
  if (parts == nullptr) throw std::runtime_error(text);
  void* const error = abi::__cxa_allocate_exception(kMostBytes);
  std::memset(error, 0, kMostBytes);
  parts->construct_error(error, {"allocate", "lgpu", 0}, text);
  // Behind two words, which say how the class is derived.
  *static_cast<void* const**>(error) = parts->table + 2;
  abi::__cxa_throw(error, parts->type, &Destroy);
}

}  // namespace lgpu::python
