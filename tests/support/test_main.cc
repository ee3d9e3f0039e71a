// The main function of test programs that hold the files of several tests.
//   PROGRAM                              runs all of them
//   PROGRAM --files=a_test.cc,b_test.cc  runs the tests of these files
// All other flags are GoogleTest's.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <set>
#include <string>
#include <string_view>

namespace {

std::string_view FileName(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// A GoogleTest filter of the tests of these files, and the files that have none.
std::string FilterOf(std::set<std::string_view>& files) {
  std::set<std::string_view> without_tests = files;
  std::string filter;
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const ::testing::TestSuite& suite = *all.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const ::testing::TestInfo& test = *suite.GetTestInfo(j);
      const std::string_view file = FileName(test.file());
      if (!files.contains(file)) continue;
      without_tests.erase(file);
      filter.append(suite.name()).append(".").append(test.name()).append(":");
    }
  }
  files = without_tests;
  return filter;
}

// A test that no --files selects, since its file is no *_test.cc: a case of a suite in a header. Empty: there
// is none.
std::string TestElsewhere() {
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const ::testing::TestSuite& suite = *all.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const ::testing::TestInfo& test = *suite.GetTestInfo(j);
      if (!FileName(test.file()).ends_with("_test.cc")) return std::string(suite.name()) + "." + test.name();
    }
  }
  return "";
}

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  constexpr std::string_view kFiles = "--files=";
  if (argc == 1) return RUN_ALL_TESTS();
  const std::string_view flag = argv[1];
  if (argc != 2 || !flag.starts_with(kFiles)) {
    std::fprintf(stderr,
                 "%s: unknown argument '%s'; --files=a_test.cc,b_test.cc runs the tests of these files\n",
                 argv[0], argv[argc - 1]);
    return 2;
  }
  std::set<std::string_view> files;
  for (std::string_view rest = flag.substr(kFiles.size()); !rest.empty();) {
    const std::size_t end = rest.find(',');
    files.insert(rest.substr(0, end));
    rest = end == std::string_view::npos ? "" : rest.substr(end + 1);
  }
  if (const std::string elsewhere = TestElsewhere(); !elsewhere.empty()) {
    std::fprintf(
        stderr,
        "%s: %s stands in no file of tests, so --files never runs it; give its test a program of its own\n",
        argv[0], elsewhere.c_str());
    return 2;
  }
  const std::string filter = FilterOf(files);
  if (!files.empty() || filter.empty()) {
    std::fprintf(stderr, "%s has no tests of %s\n", argv[0],
                 files.empty() ? "no file" : std::string(*files.begin()).c_str());
    return 2;
  }
  // A filter that was given stays: that of a death test, which starts this program again for one test.
  if (GTEST_FLAG_GET(filter) == "*") GTEST_FLAG_SET(filter, filter);
  return RUN_ALL_TESTS();
}
