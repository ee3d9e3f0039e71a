// `lgpu verify --driver`, on the fake driver.

#include "absl/strings/str_cat.h"
#include "cli/driver_verification.h"
#include "tests/driver/shim_fixture.h"

namespace lgpu::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class VerifyDriverTest : public ShimTest {
 protected:
  ProgramResult Verify(const std::vector<std::string>& words, const ChildProgram::Environment& more = {}) {
    std::vector<std::string> all = {"verify", "--driver"};
    all.insert(all.end(), words.begin(), words.end());
    ChildProgram::Options options = Lgpu(all);
    for (const auto& [name, value] : machine_.environment()) options.environment[name] = value;
    for (const auto& [name, value] : more) options.environment[name] = value;
    const absl::StatusOr<ProgramResult> result = RunProgram(options);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *result : ProgramResult{};
  }
};

TEST_F(VerifyDriverTest, NoKindOfCallPassesTheLimit) {
  StartMachine();
  const std::string lease = CreateLease("64MiB");
  const ProgramResult result = Verify({"--lease", lease, "--json"});
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  const json verdict = json::parse(result.out);
  EXPECT_EQ(verdict["schema"], "lgpu.driver_verification/v1");
  EXPECT_EQ(verdict["holds"], true);
  const json& card = verdict["cards"][0];
  EXPECT_EQ(card["memory_limit_bytes"], 64 * kMiB);
  EXPECT_EQ(card["most_bytes"], 64 * kMiB);
  ASSERT_EQ(card["attempts"].size(), 18U);
  for (const json& attempt : card["attempts"]) {
    EXPECT_EQ(attempt["refused"], 2) << attempt;
    EXPECT_GE(attempt["taken_bytes"], 24 * kMiB) << attempt << " used what there was";
    EXPECT_GE(attempt["driver_bytes"], 48 * kMiB) << attempt << " as the driver counts";
    EXPECT_LE(attempt["driver_bytes"], 64 * kMiB) << attempt << " as the driver counts";
  }
  EXPECT_TRUE(Eventually([&] { return Stats().leases(0).devices(0).held_bytes() == 0; })) << "given back";
  const ProgramResult text = Verify({"--lease", lease});
  EXPECT_EQ(text.code, 0);
  EXPECT_THAT(text.out, AllOf(HasSubstr("cuMipmappedArrayCreate"), HasSubstr("by 4 threads"),
                              HasSubstr("The most that was held is 64.00MiB of 64.00MiB."),
                              HasSubstr("The limit holds for every call that was tried.")));
}

TEST_F(VerifyDriverTest, AWrongRefusalIsAProblem) {
  StartMachine();
  const std::string lease = CreateLease("64MiB");
  machine_.FailCall("cuMemAlloc", 1, /*skip=*/2, /*times=*/1);
  const ProgramResult result = Verify({"--lease", lease});
  EXPECT_EQ(result.code, 1) << result.out;
  EXPECT_THAT(result.out, AllOf(HasSubstr("cuMemAlloc was refused with 1, not with 2"),
                                HasSubstr("The limit does NOT hold, or could not be verified.")));
}

TEST_F(VerifyDriverTest, ALeaseOnSimulatedGpusHasNoDriver) {
  StartSimulated();
  ASSERT_EQ(Run({"create", "-q", "-m", "64MiB", "--name", "sim"}).code, 0);
  const ProgramResult result = Verify({"--lease", "sim"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("simulated"), HasSubstr("try: lgpu verify --lease sim")));
}

TEST_F(VerifyDriverTest, WithTheShimOffNothingIsVerified) {
  StartMachine();
  const ProgramResult result = Verify({"--lease", CreateLease("64MiB")}, {{"LGPU_SHIM", "off"}});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("LGPU_SHIM=off"));
}

TEST(DriverVerdictTest, MoreThanTheLimitIsAProblem) {
  cli::DriverVerdict verdict{.card_uuid = "GPU-1", .limit_bytes = 64 * kMiB};
  verdict.attempts = {
      {.way = "a", .taken_bytes = 64 * kMiB, .allocations = 4, .refused = 2, .daemon_bytes = 64 * kMiB},
      {.way = "b", .allocations = 0, .refused = 801}};
  EXPECT_THAT(verdict.problems(), IsEmpty());
  verdict.attempts[0].taken_bytes = 66 * kMiB;
  verdict.attempts[0].refused = 0;
  EXPECT_THAT(verdict.problems(), ElementsAre(HasSubstr("above the limit"), HasSubstr("the daemon counts")));
  verdict.attempts[0] = {.way = "c",
                         .taken_bytes = 60 * kMiB,
                         .allocations = 4,
                         .driver_bytes = 90 * kMiB,
                         .refused = 2,
                         .daemon_bytes = 60 * kMiB};
  EXPECT_THAT(verdict.problems(),
              ElementsAre(HasSubstr("c took 90.00MiB of the GPU by the driver's own count")));
  verdict.attempts.erase(verdict.attempts.begin());
  EXPECT_THAT(verdict.problems(), ElementsAre("no kind of call could be tried"));
}

}  // namespace
}  // namespace lgpu::testing
