// Copies of the shim that a note makes the limit of a program, whatever its variables are.

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "cli/shim_file.h"
#include "tests/driver/shim_fixture.h"

namespace lgpu::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

class NotedCopyTest : public ShimTest {
 protected:
  /// A copy with these variables in its note, in a folder with the real driver.
  std::string Copy(const std::string& variables) {
    const auto shim = cli::ReadShimFile(LGPU_DRIVER_SHIM, "liblgpu_real_cuda.so.1");
    EXPECT_TRUE(shim.ok() && shim->has_value()) << shim.status();
    return Write((*shim)->CopyFor(folder_.path(), variables).value_or(""));
  }
  std::string Write(const std::string& library) {
    const std::string file = absl::StrCat(folder_.path(), "/libcuda.so.1");
    const std::string real = absl::StrCat(folder_.path(), "/liblgpu_real_cuda.so.1");
    fs::remove(real);
    fs::create_symlink(FakeDriver(), real);
    std::ofstream(file, std::ios::binary) << library;
    return file;
  }
  std::unique_ptr<ChildProgram> StartWith(const std::string& library,
                                          const ChildProgram::Environment& environment = {}) {
    return StartProgram({Client("dlopen"), "dlopen", library}, environment);
  }
  static std::string Alloc(ChildProgram& client, const std::string& kind) {
    return Ask(client, absl::StrCat("alloc ", kind, " ", kind, " ", kMiB));
  }

  TempDir folder_;
};

TEST_F(NotedCopyTest, ACopyWithoutALeaseRefusesAndSaysSoOnce) {
  StartMachine();
  for (const std::string& variables :
       {std::string(), absl::StrCat("LGPU_LEASE=\nLGPU_ENDPOINT=", daemon_->dir(), "\n")}) {
    auto client = StartWith(Copy(variables));
    for (const char* const kind : {"plain", "managed", "async", "virtual"}) {
      EXPECT_EQ(Alloc(*client, kind), "error 2") << kind;
    }
    EXPECT_THAT(Ask(*client, "info"), ::testing::StartsWith("ok 0 "));
    End(*client);
    const std::string said = client->Errors();
    const std::size_t at = said.find("neither the copy nor LGPU_LEASE names a lease");
    ASSERT_NE(at, std::string::npos) << said;
    EXPECT_EQ(said.find("names a lease", at + 50), std::string::npos) << said;
  }
}

TEST_F(NotedCopyTest, TheProgramsLeaseCountsInACopyWithoutOne) {
  StartMachine();
  ChildProgram::Environment environment = EnvironmentOf(CreateLease("64MiB"));
  for (const char* const name : {"LD_PRELOAD", "LD_LIBRARY_PATH"}) environment[name] = std::nullopt;
  auto client = StartWith(Copy(""), environment);
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc a plain ", 40 * kMiB)), "ok");
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc b plain ", 40 * kMiB)), "error 2");
  End(*client);
  EXPECT_THAT(client->Errors(), Not(HasSubstr("names a lease")));
}

TEST_F(NotedCopyTest, TheInstalledLibraryChangesNothingWithoutALease) {
  StartMachine();
  std::ifstream installed(LGPU_DRIVER_SHIM, std::ios::binary);
  auto client = StartWith(Write(std::string(std::istreambuf_iterator<char>(installed), {})));
  EXPECT_EQ(Alloc(*client, "plain"), "ok");
  End(*client);
  EXPECT_EQ(client->Errors(), "");
}

}  // namespace
}  // namespace lgpu::testing
