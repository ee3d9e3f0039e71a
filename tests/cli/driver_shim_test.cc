#include "cli/driver_shim.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "tests/support/child_program.h"

namespace lgpu::cli {
namespace {

namespace fs = std::filesystem;
using ::lgpu::testing::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;

class DriverShimTest : public ::testing::Test {
 protected:
  DriverShimTest() {
    for (const char* const name : {"libcuda.so.1", "libnvidia-ml.so.1", "liblgpu_redirect.so"}) {
      Library("shims", name);
    }
    Library("driver", "libcuda.so.1");
  }
  std::string At(const std::string& name) const { return dir_.path() + "/" + name; }
  /// A file that begins as a library of this machine does.
  void Library(const std::string& folder, const std::string& name) {
    fs::create_directories(At(folder));
    std::ofstream(At(folder) + "/" + name) << "\x7f"
                                              "ELF\2\1\1"
                                           << std::string(64, '\0');
  }
  absl::StatusOr<std::optional<DriverShim>> Make() {
    return MakeDriverShim(places_, [this](const std::string& name) {
      const auto found = variables_.find(name);
      return found == variables_.end() ? std::nullopt : std::optional<std::string>(found->second);
    });
  }
  static std::string Variable(const DriverShim& shim, const std::string& name) {
    return shim.variables.at(name).value_or("");
  }

  TempDir dir_;
  DriverShimPlaces places_{.shims = {dir_.path() + "/shims"}, .parents = {dir_.path() + "/run"}};
  std::map<std::string, std::string> variables_ = {{"LD_LIBRARY_PATH", dir_.path() + "/driver"}};
};

TEST_F(DriverShimTest, LinksTheShimBeforeTheDriverThatTheCommandWouldFind) {
  const auto shim = Make();
  ASSERT_TRUE(shim.ok() && shim->has_value()) << shim.status();
  const fs::path folder = (*shim)->folder;
  EXPECT_EQ(fs::read_symlink(folder / "libcuda.so.1"), At("shims/libcuda.so.1"));
  EXPECT_EQ(fs::read_symlink(folder / "libcuda.so"), At("shims/libcuda.so.1"));
  EXPECT_EQ(fs::read_symlink(folder / "liblgpu_real_cuda.so.1"), fs::canonical(At("driver/libcuda.so.1")));
  EXPECT_EQ(Variable(**shim, "LD_LIBRARY_PATH"), folder.string() + ":" + At("driver"));
  EXPECT_EQ(Variable(**shim, "LD_PRELOAD"), (folder / "liblgpu_redirect.so").string());
  EXPECT_FALSE(fs::exists(fs::symlink_status(folder / "libnvidia-ml.so.1"))) << "this machine has no NVML";
  EXPECT_EQ((*Make())->folder, folder) << "made once";
}

TEST_F(DriverShimTest, VariablesNeverGetAnEmptyElement) {
  variables_["LD_LIBRARY_PATH"] = ":" + At("driver") + "::";
  variables_["LD_PRELOAD"] = " one.so  two.so";
  const auto shim = Make();
  ASSERT_TRUE(shim.ok() && shim->has_value());
  EXPECT_EQ(Variable(**shim, "LD_LIBRARY_PATH"), (*shim)->folder + ":" + At("driver"));
  EXPECT_EQ(Variable(**shim, "LD_PRELOAD"), (*shim)->folder + "/liblgpu_redirect.so one.so two.so");
}

TEST_F(DriverShimTest, ARunInsideARunFindsTheRealDriver) {
  const auto outer = Make();
  ASSERT_TRUE(outer.ok() && outer->has_value());
  variables_["LD_LIBRARY_PATH"] = Variable(**outer, "LD_LIBRARY_PATH");
  const auto inner = Make();
  ASSERT_TRUE(inner.ok() && inner->has_value());
  EXPECT_EQ((*inner)->folder, (*outer)->folder);
  EXPECT_EQ(Variable(**inner, "LD_LIBRARY_PATH"), Variable(**outer, "LD_LIBRARY_PATH"));
}

TEST_F(DriverShimTest, AnotherDriverHasAnotherFolder) {
  const auto first = Make();
  Library("compat", "libcuda.so.1");
  variables_["LD_LIBRARY_PATH"] = At("compat") + ":" + At("driver");
  const auto second = Make();
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE((*first)->folder, (*second)->folder);
}

TEST_F(DriverShimTest, TheNextPlaceIsTakenWhereOneCannotBeWritten) {
  std::ofstream(At("file")) << "no directory";
  places_.parents = {At("file") + "/run", At("other")};
  const auto shim = Make();
  ASSERT_TRUE(shim.ok() && shim->has_value()) << shim.status();
  EXPECT_THAT((*shim)->folder, ::testing::StartsWith(At("other")));
}

TEST_F(DriverShimTest, WithoutAPlaceTheErrorNamesAllThatWereTried) {
  std::ofstream(At("file")) << "no directory";
  fs::create_directories(At("open"));
  fs::permissions(At("open"), fs::perms::all);
  places_.parents = {At("file") + "/run", At("open")};
  const auto shim = Make();
  EXPECT_EQ(shim.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(shim.status().message()),
              AllOf(HasSubstr(At("file")), HasSubstr("Not a directory"), HasSubstr(At("open")),
                    HasSubstr("other users can write there"), HasSubstr("LGPU_SHIM=off")));
}

TEST_F(DriverShimTest, AnInstallationWithoutTheShimSaysSo) {
  places_.shims = {At("nowhere")};
  const auto shim = Make();
  EXPECT_EQ(shim.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(shim.status().message()), HasSubstr("lgpu-driver-shim"));
}

v1::LogicalDevice& AddDevice(v1::Lease& lease, std::uint32_t card, std::uint64_t limit) {
  v1::LogicalDevice& device = *lease.add_devices();
  device.set_card_index(card);
  device.set_memory_limit_bytes(limit);
  device.set_card_total_bytes(std::uint64_t{1} << 30);
  return device;
}

TEST(SharedCardsTest, NamesTheSumOfTheLimitsOnACardWithSeveralLogicalDevices) {
  constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
  v1::Lease lease;
  AddDevice(lease, 0, 256 * kMiB);
  AddDevice(lease, 1, 256 * kMiB);
  EXPECT_THAT(DescribeSharedCards(lease), ::testing::IsEmpty()) << "one on each card";
  AddDevice(lease, 0, 256 * kMiB);
  EXPECT_THAT(DescribeSharedCards(lease),
              ::testing::ElementsAre("a program that does not use liblgpu sees one GPU of 512.00MiB in place "
                                     "of the 2 logical devices on GPU 0"));
  AddDevice(lease, 0, 1024 * kMiB);
  EXPECT_THAT(DescribeSharedCards(lease), ::testing::ElementsAre(HasSubstr("sees one GPU of 1.00GiB")))
      << "the card has no more";
  for (v1::LogicalDevice& device : *lease.mutable_devices()) device.set_simulated(true);
  EXPECT_THAT(DescribeSharedCards(lease), ::testing::IsEmpty()) << "the driver shows no simulated card";
}

TEST_F(DriverShimTest, AFileThatIsNoLibraryIsNoDriver) {
  std::ofstream(At("driver/libcuda.so.1")) << "GROUP ( libcuda.so.1 )";
  const auto shim = Make();
  // A machine that runs this test may have a driver of its own.
  if (shim.ok() && shim->has_value()) {
    EXPECT_NE(fs::read_symlink(fs::path((*shim)->folder) / "liblgpu_real_cuda.so.1"),
              At("driver/libcuda.so.1"));
  } else {
    EXPECT_TRUE(shim.ok()) << shim.status();
  }
}

}  // namespace
}  // namespace lgpu::cli
