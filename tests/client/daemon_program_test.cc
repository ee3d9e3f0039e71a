#include "client/session/daemon_program.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace lgpu {
namespace {

namespace fs = std::filesystem;

class DaemonProgramTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char path[] = "/tmp/lgpu-daemon-program-XXXXXX";
    ASSERT_NE(::mkdtemp(path), nullptr);
    root_ = path;
    for (const char* folder : {"empty", "first", "second"}) fs::create_directory(root_ + "/" + folder);
  }
  void TearDown() override { fs::remove_all(root_); }

  /// Puts a program lgpud into the folder and returns the folder.
  std::string WithProgram(const std::string& folder) {
    const std::string program = root_ + "/" + folder + "/lgpud";
    std::ofstream(program) << "#!/bin/sh\n";
    fs::permissions(program, fs::perms::owner_all);
    return root_ + "/" + folder;
  }

  std::string root_;
};

TEST_F(DaemonProgramTest, ANameIsEnoughWhereTheSearchPathHasTheProgram) {
  EXPECT_EQ(DaemonProgram(root_ + "/empty:" + WithProgram("first"), {WithProgram("second")}), "lgpud");
}

TEST_F(DaemonProgramTest, ElseTheFirstFolderWithTheProgramIsNamed) {
  WithProgram("second");
  EXPECT_EQ(DaemonProgram(root_ + "/empty", {root_ + "/first", root_ + "/first/../second"}),
            root_ + "/second/lgpud");
}

TEST_F(DaemonProgramTest, AFolderOrAFileThatCannotBeRunIsNoProgram) {
  fs::create_directory(root_ + "/first/lgpud");
  std::ofstream(root_ + "/empty/lgpud") << "text\n";
  EXPECT_EQ(DaemonProgram(root_ + "/first:" + root_ + "/empty", {root_ + "/first", root_ + "/empty"}),
            "lgpud");
  EXPECT_EQ(DaemonProgram(root_ + "/first", {WithProgram("second")}), root_ + "/second/lgpud");
}

TEST_F(DaemonProgramTest, WithoutAnyProgramTheNameIsTheAnswer) {
  EXPECT_EQ(DaemonProgram(root_ + "/empty", {}), "lgpud");
}

}  // namespace
}  // namespace lgpu
