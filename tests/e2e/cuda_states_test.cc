// How lgpu reports GPUs in a special state: a lost context, memory that comes back late, MIG.

#include <signal.h>

#include "absl/strings/str_cat.h"
#include "tests/e2e/cuda_fixture.h"

namespace lgpu::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class CudaStatesTest : public CudaTest {};

TEST_F(CudaStatesTest, LostContextIsAnEventAndALineOfDoctor) {
  FAKE_ONLY();
  StartOnMachine();
  auto client = StartOnGpu();
  auto other = StartOnGpu();
  ASSERT_THAT(Ask(*client, "open c"), StartsWith("ok "));
  ASSERT_THAT(Ask(*other, "open c"), StartsWith("ok "));
  ASSERT_THAT(Ask(*client, absl::StrCat("alloc c t ", 8 * kMiB)), StartsWith("ok "));
  machine_.FailCall("cuLaunchKernel", 700, 0, 1, static_cast<int>(client->pid()));
  EXPECT_THAT(Ask(*client, "sum c t 3"), HasSubstr("the GPU context of this process is lost"));
  const auto ask = [this](const char* word) {
    const absl::StatusOr<ProgramResult> said = RunProgram(
        {.argv = {DaemonProcess::LgpuPath(), word}, .environment = {{"LGPU_ENDPOINT", daemon_->dir()}}});
    return said.ok() ? said->out + said->err : std::string(said.status().message());
  };
  const std::string lost = absl::StrCat("(pid ", client->pid(), ") of lease ");
  EXPECT_TRUE(
      Eventually([&] { return ask("events").find("has lost its GPU context") != std::string::npos; }));
  EXPECT_THAT(ask("events"), HasSubstr(lost));
  const absl::StatusOr<ProgramResult> doctor =
      RunProgram({.argv = {DaemonProcess::LgpuPath(), "doctor", "-v", "--no-self-test"},
                  .environment = With({{"LGPU_ENDPOINT", daemon_->dir()}})});
  ASSERT_TRUE(doctor.ok()) << doctor.status();
  EXPECT_THAT(doctor->out, HasSubstr(lost));
  EXPECT_THAT(doctor->out, HasSubstr("start the program again"));
  ASSERT_THAT(Ask(*other, absl::StrCat("alloc c t ", 8 * kMiB)), StartsWith("ok ")) << "others go on";
  client->Signal(SIGKILL);  // its handles are the driver's no more
  ASSERT_TRUE(client->Wait().has_value());
  End(*other);
}

TEST_F(CudaStatesTest, MemoryThatComesBackLateIsWaitedForAndNotCalledKept) {
  FAKE_ONLY();
  StartOnMachine();
  machine_.state().freed_late_ms = 400;
  auto one = StartOnGpu();
  auto two = StartOnGpu();
  ASSERT_THAT(Ask(*one, "open c"), StartsWith("ok "));
  ASSERT_THAT(Ask(*two, "open c timeout=20000"), StartsWith("ok "));
  ASSERT_THAT(Ask(*one, absl::StrCat("alloc c t ", 150 * kMiB)), StartsWith("ok "));
  EXPECT_EQ(Ask(*one, "free t"), "ok");
  EXPECT_THAT(Ask(*one, "trim c"), StartsWith("ok "));
  EXPECT_THAT(Ask(*two, absl::StrCat("alloc c t ", 150 * kMiB)), StartsWith("ok "));
  const absl::StatusOr<ProgramResult> events = RunProgram(
      {.argv = {DaemonProcess::LgpuPath(), "events"}, .environment = {{"LGPU_ENDPOINT", daemon_->dir()}}});
  ASSERT_TRUE(events.ok()) << events.status();
  EXPECT_THAT(events->out + events->err, ::testing::Not(HasSubstr("that the card does not have")));
  End(*one);
  End(*two);
}

class CudaMigTest : public CudaTest {
 protected:
  CudaMigTest() : CudaTest({{.is_mig = true}}) {}
};

TEST_F(CudaMigTest, InstanceIsServedAndDoctorSaysThatAProcessSeesOne) {
  FAKE_ONLY();
  StartOnMachine();
  auto client = StartOnGpu();
  ASSERT_THAT(Ask(*client, "open c"), StartsWith("ok "));
  EXPECT_THAT(Ask(*client, absl::StrCat("alloc c t ", 8 * kMiB)), StartsWith("ok "));
  const absl::StatusOr<ProgramResult> doctor =
      RunProgram({.argv = {DaemonProcess::LgpuPath(), "doctor", "-v", "--no-self-test"},
                  .environment = With({{"LGPU_ENDPOINT", daemon_->dir()}})});
  ASSERT_TRUE(doctor.ok()) << doctor.status();
  EXPECT_THAT(doctor->out, HasSubstr("GPU 0 is a MIG instance"));
  EXPECT_THAT(doctor->out, HasSubstr("no program has lost its GPU context"));
  End(*client);
}

}  // namespace
}  // namespace lgpu::testing
