#ifndef LGPU_TESTS_CONTRACT_DEVICE_BACKEND_CONTRACT_H_
#define LGPU_TESTS_CONTRACT_DEVICE_BACKEND_CONTRACT_H_

// The promises of every DeviceBackend, as tests (device_backend_contract.cc has them). A backend joins
// with a program of its own that has
//
//   INSTANTIATE_TEST_SUITE_P(Simulated, DeviceBackendContract, ::testing::ValuesIn(Backends()),
//   DeviceBackendName); int main(int argc, char** argv) { return RunDeviceBackendTests(argc, argv,
//   Backends()); }
//
// The program is also its own peer: another process that imports memory, started by posix_spawn.

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "allocator/device/device_backend.h"
#include "lgpu/bytes.h"
#include "tests/support/child_program.h"

namespace lgpu {

/// A kernel that every backend under test has: writes `value` into `count` bytes at `to`.
struct FillArguments {
  std::byte* to;
  std::uint64_t count;
  std::byte value;
};

struct DeviceBackendFactory {
  std::string name;
  std::function<std::unique_ptr<DeviceBackend>()> make;  // device 0 has 64 MiB free at least
  /// The fill kernel; its arguments are set by the test.
  KernelLaunch fill;
  /// Reclaimed memory is gone at once, and a process that still maps it dies when it reads.
  bool reclaim_is_immediate = true;
  /// Import refuses a chunk of another size; else Map does, where the chunk is smaller than that.
  bool import_checks_size = true;
};

inline std::string DeviceBackendName(const ::testing::TestParamInfo<DeviceBackendFactory>& info) {
  return info.param.name;
}
inline void PrintTo(const DeviceBackendFactory& factory, std::ostream* out) { *out << factory.name; }

/// Another process with a backend of the same kind. It obeys one line at a time and answers with one.
class DevicePeer {
 public:
  explicit DevicePeer(const std::string& factory);
  /// The answer; "(died)" if there is none.
  std::string Ask(const std::string& line);
  /// Sends a descriptor, which the peer imports, maps and gives itself access to.
  std::string Import(const UniqueFd& fd, Bytes bytes);
  int WaitForEnd();

 private:
  UniqueFd socket_;
  std::unique_ptr<testing::ChildProgram> program_;
};

/// gtest's main, or the peer's where the command line says so.
int RunDeviceBackendTests(int argc, char** argv, const std::vector<DeviceBackendFactory>& factories);

class DeviceBackendContract : public ::testing::TestWithParam<DeviceBackendFactory> {
 protected:
  void SetUp() override;

  MemoryHandle MustCreate(Bytes bytes);
  /// Creates memory, maps it at `address` and sets access.
  MemoryHandle MustMap(std::byte* address, Bytes bytes);
  void Fill(StreamHandle stream, std::byte* to, Bytes bytes, int value);
  /// The byte that the whole range holds, or -1.
  int ValueOf(StreamHandle stream, const std::byte* from, Bytes bytes);
  void MustWait(StreamHandle stream);

  std::unique_ptr<DeviceBackend> backend_;
  Bytes unit_;
  std::byte* region_ = nullptr;  // 16 units of reserved addresses
  StreamHandle stream_;
};

}  // namespace lgpu

#endif  // LGPU_TESTS_CONTRACT_DEVICE_BACKEND_CONTRACT_H_
