#include "client/session/endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

namespace lgpu {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

EndpointEnvironment Nothing() {
  EndpointEnvironment environment;
  environment.uid = 1000;
  return environment;
}

TEST(EndpointTest, DefaultIsTheSystemsDaemonThenTheUsers) {
  EndpointEnvironment environment = Nothing();
  absl::StatusOr<Endpoint> endpoint = ResolveEndpoint("", environment);
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  EXPECT_FALSE(endpoint->local);
  EXPECT_THAT(endpoint->directories, ElementsAre("/run/lgpu", "/tmp/lgpu-1000"));

  environment.runtime_dir = "/run/user/1000";
  EXPECT_THAT(ResolveEndpoint("", environment)->directories, ElementsAre("/run/lgpu", "/run/user/1000/lgpu"));
}

TEST(EndpointTest, TheOptionWinsOverTheVariable) {
  EndpointEnvironment environment = Nothing();
  environment.endpoint = "/from/variable";
  EXPECT_THAT(ResolveEndpoint("", environment)->directories, ElementsAre("/from/variable"));
  EXPECT_THAT(ResolveEndpoint("/from/option", environment)->directories, ElementsAre("/from/option"));
  EXPECT_TRUE(ResolveEndpoint("local", environment)->local);
}

TEST(EndpointTest, AnEmptyVariableIsAsGoodAsNone) {
  EndpointEnvironment environment = Nothing();
  environment.endpoint = "";
  EXPECT_THAT(ResolveEndpoint("", environment)->directories, ElementsAre("/run/lgpu", "/tmp/lgpu-1000"));
}

TEST(EndpointTest, LocalNamesSimulatedGpus) {
  absl::StatusOr<Endpoint> endpoint = ResolveEndpoint("local:2x1GiB,512MiB", Nothing());
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  EXPECT_TRUE(endpoint->local);
  EXPECT_THAT(endpoint->simulated, ElementsAre(1_GiB, 1_GiB, 512_MiB));
  EXPECT_THAT(ResolveEndpoint("local", Nothing())->simulated, IsEmpty());
}

TEST(EndpointTest, AWrongListOfGpusShowsTheRightForm) {
  for (const char* wrong :
       {"local:", "local:0x1GiB", "local:2x", "local:x1GiB", "local:2x1GB", "local:65x1GiB", "local:1GiB,",
        "local:1KiB", "local:-1x1GiB", "local:99999999999999999999x1GiB"}) {
    absl::StatusOr<Endpoint> endpoint = ResolveEndpoint(wrong, Nothing());
    EXPECT_EQ(endpoint.status().code(), absl::StatusCode::kInvalidArgument) << wrong;
    EXPECT_THAT(std::string(endpoint.status().message()), HasSubstr("2x1GiB")) << wrong;
  }
}

class FindDaemonTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char path[] = "/tmp/lgpu-endpoint-XXXXXX";
    ASSERT_NE(::mkdtemp(path), nullptr);
    directory_ = path;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  UniqueFd Listen(const std::string& path) {
    UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    EXPECT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::listen(fd.get(), 4), 0);
    return fd;
  }

  std::string directory_;
};

TEST_F(FindDaemonTest, NoDaemonNamesTheDirectoryAndTheStartCommand) {
  absl::StatusOr<DaemonSocket> found = FindDaemon({.directories = {directory_ + "/none"}});
  EXPECT_EQ(found.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(found.status().message()),
              HasSubstr("no lgpud at " + directory_ + "/none (no such file)\n  try: "));
  EXPECT_THAT(std::string(found.status().message()),
              AllOf(HasSubstr("lgpud --simulate 2x1GiB --dir " + directory_), HasSubstr("local:2x1GiB")));
  found = FindDaemon({.directories = {directory_ + "/none"}, .may_be_local = false});
  EXPECT_THAT(std::string(found.status().message()), Not(HasSubstr("local:")));
}

TEST_F(FindDaemonTest, AllTriedDirectoriesAreNamed) {
  absl::StatusOr<DaemonSocket> found = FindDaemon({.directories = {directory_ + "/a", directory_ + "/b"}});
  EXPECT_THAT(std::string(found.status().message()), HasSubstr("no lgpud at " + directory_ + "/a"));
  EXPECT_THAT(std::string(found.status().message()), HasSubstr("\n       no lgpud at " + directory_ + "/b"));
}

TEST_F(FindDaemonTest, ASocketWithoutAListenerIsNotADaemon) {
  Listen(ControlSocketPath(directory_)).Reset();
  absl::StatusOr<DaemonSocket> found = FindDaemon({.directories = {directory_}});
  EXPECT_EQ(found.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(found.status().message()), HasSubstr("no process listens"));
}

TEST_F(FindDaemonTest, TheFirstDirectoryWithADaemonIsTaken) {
  const UniqueFd listener = Listen(ControlSocketPath(directory_));
  absl::StatusOr<DaemonSocket> found = FindDaemon({.directories = {"/nowhere/lgpu", directory_}});
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->directory, directory_);
  EXPECT_TRUE(static_cast<bool>(found->control));
}

TEST_F(FindDaemonTest, ADefaultDirectoryThatAnotherUserMadeIsNotUsed) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to make another user's directory";
  const UniqueFd listener = Listen(ControlSocketPath(directory_));
  EXPECT_TRUE(FindDaemon({.directories = {directory_}, .is_default = true}).ok());
  ASSERT_EQ(::chown(directory_.c_str(), 64217, 64217), 0);
  absl::StatusOr<DaemonSocket> found =
      FindDaemon({.directories = {"/nowhere/lgpu", directory_}, .is_default = true});
  EXPECT_EQ(found.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(found.status().message()),
              HasSubstr(directory_ + " belongs to user 64217; every user "));
  // One that was named is the caller's decision.
  EXPECT_TRUE(FindDaemon({.directories = {directory_}}).ok());
}

TEST_F(FindDaemonTest, ATooLongPathIsAnErrorOfItsOwn) {
  absl::StatusOr<DaemonSocket> found = FindDaemon({.directories = {"/" + std::string(200, 'x')}});
  EXPECT_EQ(found.status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lgpu
