#ifndef LGPU_CLIENT_DRIVER_SHIM_FILE_H_
#define LGPU_CLIENT_DRIVER_SHIM_FILE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lgpu::shim {

/// A ShimFile is the bytes of one of lgpu's libraries that stand before a driver's, as an installed file has
/// them or as a noted copy does.
class ShimFile {
 public:
  /// Reads the file of `fd`, of which nothing needs to be trusted. Nothing, and no damage: it is no library
  /// that needs `real`, so it is none of lgpu's.
  static std::optional<ShimFile> Read(int fd, std::string_view real, std::string* damage);

  /// The folder in which a copy finds the real library; empty: this is no copy.
  std::string folder() const;
  /// The bytes of a copy that finds the real library in `folder`, and the lease's variables (NAME=VALUE, each
  /// with the end of a line) in its own note. Nothing: one of them is too long for the note.
  std::optional<std::string> CopyFor(const std::string& folder, const std::string& variables) const;

 private:
  std::string bytes_;
  std::size_t note_ = 0;                 // where the PlaceNote lies in the bytes
  std::size_t runpath_ = 0;              // where the value of DT_RUNPATH lies
  std::uint64_t folder_as_runpath_ = 0;  // that value, for the note's folder
};

/// Whether the file of `fd` is a shared library for 64-bit programs of this machine.
bool IsLibraryOfThisMachine(int fd);

/// Whether the library of `fd` has the word among its names: "GLIBC_2.28" of a C library.
bool HasName(int fd, std::string_view name);

}  // namespace lgpu::shim

#endif  // LGPU_CLIENT_DRIVER_SHIM_FILE_H_
