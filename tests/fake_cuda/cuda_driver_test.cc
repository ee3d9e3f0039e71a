// The result of opening the driver on machines that have none, a wrong one, or hidden GPUs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

#include "tests/fake_cuda/fake_machine.h"

namespace lgpu::fake_cuda {
namespace {

using testing::ChildProgram;
using ::testing::HasSubstr;
using testing::ProgramResult;
using ::testing::StartsWith;
using testing::TempDir;

struct Opened {
  std::string driver, nvml, kernel, figures, refused;
};

Opened Open(const ChildProgram::Environment& environment) {
  const absl::StatusOr<ProgramResult> result =
      testing::RunProgram({.argv = {LGPU_OPEN_CUDA}, .environment = environment});
  EXPECT_TRUE(result.ok()) << result.status();
  if (!result.ok()) return {};
  EXPECT_EQ(result->code, 0) << result->err;
  std::istringstream lines(result->out);
  Opened opened;
  std::getline(lines, opened.driver);
  std::getline(lines, opened.nvml);
  std::getline(lines, opened.kernel);
  std::getline(lines, opened.figures);
  std::getline(lines, opened.refused);
  return opened;
}

/// A directory with `target` as its libcuda.so.1.
class DriverDirectory {
 public:
  explicit DriverDirectory(const std::string& target) {
    EXPECT_EQ(::symlink(target.c_str(), (directory_.path() + "/libcuda.so.1").c_str()), 0);
  }
  ChildProgram::Environment environment() const {
    return {{"LD_LIBRARY_PATH", directory_.path()}, {"CUDA_VISIBLE_DEVICES", std::nullopt}};
  }

 private:
  TempDir directory_;
};

constexpr char kNoDevices[] = "error FAILED_PRECONDITION no CUDA devices: ";

TEST(CudaDriverTest, NoDriverIsSaid) {
  const std::string said = Open({{"LD_LIBRARY_PATH", std::nullopt}}).driver;
  if (said.rfind("ok", 0) == 0) GTEST_SKIP() << "this machine has a real driver: " << said;
  EXPECT_THAT(said, StartsWith(kNoDevices));
  EXPECT_THAT(said, HasSubstr("libcuda.so.1"));
}

TEST(CudaDriverTest, StubOfTheToolkitIsNoDriver) {
  if (::access(LGPU_CUDA_STUB, R_OK) != 0) {
    GTEST_SKIP() << "the toolkit here has no stub at " << LGPU_CUDA_STUB;
  }
  const DriverDirectory stub(LGPU_CUDA_STUB);
  const std::string said = Open(stub.environment()).driver;
  EXPECT_THAT(said, StartsWith(kNoDevices));
  EXPECT_THAT(said, HasSubstr("the toolkit's stub"));
}

TEST(CudaDriverTest, ADriverWithoutAGpuIsReportedWithTheVisibleList) {
  FakeMachine machine({});
  const std::string said = Open(machine.environment()).driver;
  EXPECT_THAT(said, StartsWith(kNoDevices));
  EXPECT_THAT(said, HasSubstr("sees no GPU (CUDA_VISIBLE_DEVICES is not set)"));
  EXPECT_THAT(said, HasSubstr("MIG mode without an instance"));
}

TEST(CudaDriverTest, DriverThatDoesNotStartIsNamed) {
  FakeMachine machine({FakeMachine::CardOptions()});
  for (const int result : {999, 3, 802}) {
    machine.state().init_result = result;
    const std::string said = Open(machine.environment()).driver;
    EXPECT_THAT(said, StartsWith(std::string(kNoDevices) + "the NVIDIA driver does not start: cuInit gave"));
    EXPECT_THAT(said, HasSubstr("(" + std::to_string(result) + ")"));
  }
}

TEST(CudaDriverTest, AnOldDriverIsReportedWithTheMissingFunctions) {
  const DriverDirectory old(LGPU_OLD_DRIVER);
  const std::string said = Open(old.environment()).driver;
  EXPECT_THAT(said, StartsWith(std::string(kNoDevices) +
                               "the NVIDIA driver (CUDA 9.2) is too old for this lgpu, which needs CUDA 11.4 "
                               "(R470) or newer: it has no "));
}

TEST(CudaDriverTest, DriverBelowTheOldestIsNamedWithBothVersions) {
  FakeMachine machine({FakeMachine::CardOptions()});
  machine.state().driver_version = 11020;
  EXPECT_EQ(Open(machine.environment()).driver,
            std::string(kNoDevices) +
                "the NVIDIA driver (CUDA 11.2) is too old for this lgpu, which needs CUDA "
                "11.4 (R470) or newer; install a newer driver");
}

TEST(CudaDriverTest, DriverOfTheToolkitsAgeTakesMachineCode) {
  FakeMachine machine({FakeMachine::CardOptions()});
  EXPECT_EQ(Open(machine.environment()).kernel, "kernel ok");
  EXPECT_EQ(machine.CallsOf("cuModuleLoadData"), 1u);
}

// Which of the three a driver of which age says is not known.
TEST(CudaDriverTest, OlderDriverRunsTheKernelsFromPtx) {
  for (const int refusal : {200, 209, 222}) {
    FakeMachine machine({FakeMachine::CardOptions()});
    machine.state().driver_version = 11040;
    machine.state().too_new_image = refusal;
    EXPECT_EQ(Open(machine.environment()).kernel, "kernel ok") << refusal;
    EXPECT_EQ(machine.CallsOf("cuModuleLoadData"), 2u);
  }
}

TEST(CudaDriverTest, GpuNewerThanTheMachineCodeRunsTheKernelsFromPtx) {
  FakeMachine machine({FakeMachine::CardOptions{.compute_capability = 130}});
  EXPECT_EQ(Open(machine.environment()).kernel, "kernel ok");
}

TEST(CudaDriverTest, DriverThatTakesNeitherFormIsNamedWithBothVersions) {
  FakeMachine machine({FakeMachine::CardOptions()});
  machine.state().driver_version = 12020;
  for (const int refusal : {200, 209, 218, 222}) {
    machine.FailCall("cuModuleLoadData", refusal, 0, refusal == 218 ? 1 : 2);
    const std::string said = Open(machine.environment()).kernel;
    EXPECT_THAT(said,
                StartsWith("kernel error FAILED_PRECONDITION the NVIDIA driver (CUDA 12.2) does not take"));
    EXPECT_THAT(said, HasSubstr("(" + std::to_string(refusal) + "). They are built for CUDA 11.4 and newer"));
  }
}

TEST(CudaDriverTest, MissingOrDisabledCompilerIsNamed) {
  FakeMachine machine({FakeMachine::CardOptions()});
  machine.state().driver_version = 11040;
  machine.FailCall("cuModuleLoadData", 221, 1);
  EXPECT_THAT(Open(machine.environment()).kernel, HasSubstr("libnvidia-ptxjitcompiler.so.1"));
  machine.FailCall("cuModuleLoadData", 223, 1);
  EXPECT_THAT(Open(machine.environment()).kernel, HasSubstr("CUDA_DISABLE_PTX_JIT"));
}

TEST(CudaDriverTest, GpuBelowTheOldestComputeCapabilityIsRefusedWithTheReason) {
  const std::string reason =
      "its compute capability 7.0 is below 7.5, the lowest that lgpu's kernels are built for";
  FakeMachine volta({FakeMachine::CardOptions{.compute_capability = 70}});
  EXPECT_EQ(Open(volta.environment()).driver, std::string(kNoDevices) +
                                                  "lgpu can serve none of the 1 that the driver shows   " +
                                                  volta.uuid(0) + " (Fake GPU): " + reason);
  FakeMachine both({{.compute_capability = 70}, {.compute_capability = 75}});
  const Opened opened = Open(both.environment());
  EXPECT_EQ(opened.driver, "ok " + both.uuid(1));
  EXPECT_EQ(opened.kernel, "kernel ok");
  EXPECT_EQ(opened.refused, "refused " + both.uuid(0) + ": " + reason);
}

TEST(CudaDriverTest, OtherLibraryAndDamagedFileAreNoDriver) {
  const DriverDirectory other(LGPU_OTHER_LIBRARY);
  EXPECT_THAT(Open(other.environment()).driver, HasSubstr("is no NVIDIA driver: it has no cuInit"));
  const TempDir directory;
  const std::string path = directory.path() + "/damaged";
  std::ofstream(path) << "this is no library";
  const DriverDirectory damaged(path);
  EXPECT_THAT(Open(damaged.environment()).driver, StartsWith(kNoDevices));
}

TEST(CudaDriverTest, CudaVisibleDevicesIsTheDriversToRead) {
  FakeMachine machine({{.speed = 1}, {.speed = 3}, {.speed = 2}});
  const auto open = [&](const char* visible, const char* order) {
    auto environment = machine.environment();
    if (visible != nullptr) environment["CUDA_VISIBLE_DEVICES"] = visible;
    if (order != nullptr) environment["CUDA_DEVICE_ORDER"] = order;
    return Open(environment).driver;
  };
  const std::string a = " " + machine.uuid(0), b = " " + machine.uuid(1), c = " " + machine.uuid(2);
  EXPECT_EQ(open(nullptr, nullptr), "ok" + b + c + a) << "the fastest first";
  EXPECT_EQ(open(nullptr, "PCI_BUS_ID"), "ok" + a + b + c);
  EXPECT_EQ(open("2,0", "PCI_BUS_ID"), "ok" + c + a);
  EXPECT_EQ(open("0", nullptr), "ok" + b);
  EXPECT_EQ(open(machine.uuid(2).substr(0, 8).c_str(), nullptr), "ok" + c);
  EXPECT_THAT(open("", nullptr), HasSubstr("CUDA_VISIBLE_DEVICES is \"\""));
  EXPECT_THAT(open("0,0", nullptr), StartsWith(kNoDevices));
  EXPECT_THAT(open("-1", nullptr), StartsWith(kNoDevices));
}

// Before R510, and with the longer entries of the first drivers of R535.
TEST(CudaDriverTest, NvmlOfEveryAgeHasTheFigures) {
  const std::string expected = "nvml used 18.00MiB this process 18.00MiB";
  FakeMachine machine({FakeMachine::CardOptions()});
  auto environment = machine.environment();
  EXPECT_EQ(Open(environment).figures, expected);
  machine.state().long_process_entries = true;
  EXPECT_EQ(Open(environment).figures, expected);
  machine.state().long_process_entries = false;
  environment["LD_LIBRARY_PATH"] = LGPU_OLD_NVML_DIR + (":" + *environment["LD_LIBRARY_PATH"]);
  EXPECT_EQ(Open(environment).figures, expected);
}

// NVML counts memory that the driver reserves, which is not in CUDA's total; before R510 as used.
TEST(CudaDriverTest, MemoryReservedByTheDriverIsNotTheProgramsUse) {
  FakeMachine machine({FakeMachine::CardOptions{.reserved = 6_MiB}});
  auto environment = machine.environment();
  EXPECT_EQ(Open(environment).figures, "nvml used 18.00MiB this process 18.00MiB");
  environment["LD_LIBRARY_PATH"] = LGPU_OLD_NVML_DIR + (":" + *environment["LD_LIBRARY_PATH"]);
  EXPECT_EQ(Open(environment).figures, "nvml used 24.00MiB this process 18.00MiB");
}

TEST(CudaDriverTest, MigInstanceHasItsOwnKindOfUuidEverywhere) {
  FakeMachine machine({FakeMachine::CardOptions{.is_mig = true}});
  const Opened opened = Open(machine.environment());
  EXPECT_THAT(opened.driver, StartsWith("ok MIG-"));
  EXPECT_EQ(opened.driver, "ok " + machine.uuid(0));
  EXPECT_EQ(opened.kernel, "kernel ok");
  EXPECT_EQ(opened.figures, "nvml used 18.00MiB this process 18.00MiB");
}

TEST(CudaDriverTest, ComputeModeThatLeavesNoContextIsHinted) {
  FakeMachine machine({FakeMachine::CardOptions()});
  machine.state().compute_mode = 3;
  EXPECT_EQ(Open(machine.environment()).kernel, "kernel ok") << "the only process";
  machine.state().compute_mode = 2;
  EXPECT_THAT(Open(machine.environment()).kernel, HasSubstr("nvidia-smi -c DEFAULT"));
}

TEST(CudaDriverTest, FabricManagerAndMismatchOfVersionsAreHinted) {
  FakeMachine machine({FakeMachine::CardOptions()});
  machine.state().init_result = 802;
  EXPECT_THAT(Open(machine.environment()).driver, HasSubstr("nvidia-fabricmanager"));
  machine.state().init_result = 803;
  EXPECT_THAT(Open(machine.environment()).driver, HasSubstr("different versions"));
}

TEST(CudaDriverTest, NvmlIsOptionalAndSaysWhy) {
  FakeMachine machine({FakeMachine::CardOptions()});
  EXPECT_EQ(Open(machine.environment()).nvml, "ok 580.00.fake");
  machine.state().nvml_absent = true;
  EXPECT_THAT(Open(machine.environment()).nvml, StartsWith("error NVML does not start"));
  EXPECT_THAT(Open(machine.environment()).driver, StartsWith("ok "));
}

}  // namespace
}  // namespace lgpu::fake_cuda
