#include "cli/completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

#include "cli/flag_table.h"

namespace lgpu::cli {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class CompletionTest : public ::testing::Test {
 protected:
  CompletionTest() {
    app_.add_option("--color", text_, "Colours")->type_name("auto|always|never");
    app_.add_option("--endpoint", text_)->type_name("DIR");
    CLI::App* show = app_.add_subcommand("show", "Show one");
    show->add_option("lease", text_)->type_name("LEASE");
    show->add_option("-d,--device", text_, "Which one")->type_name("GPU-DEVICE");
    show->add_flag("--wait{forever}", text_, "Wait")->type_name("DUR");
    CLI::App* run = app_.add_subcommand("run", "Run a command");
    run->add_option("--gpus", text_)->type_name("LIST");
    live_.leases = [] { return std::vector<Candidate>{{"train", "2 x 1GiB"}, {"test"}, {"a:b"}}; };
    live_.gpus = [] { return std::vector<Candidate>{{"0"}, {"GPU-1"}}; };
    live_.devices = [](const std::string& lease) { return std::vector<Candidate>{{"GPU:0", lease}}; };
  }
  std::vector<std::string> Words(const std::vector<std::string>& words) {
    std::vector<std::string> values;
    for (const Candidate& word : Complete(app_, words, live_).words) values.push_back(word.value);
    return values;
  }

  std::string text_;
  CLI::App app_{"", "lgpu"};
  LiveNames live_;
};

TEST_F(CompletionTest, VerbsThenFlagsThenLiveNames) {
  EXPECT_THAT(Words({""}), ElementsAre("show", "run"));
  EXPECT_THAT(Words({"sh"}), ElementsAre("show"));
  EXPECT_THAT(Words({"show", "--"}), AllOf(Contains("--device"), Contains("--wait"), Contains("--color")));
  EXPECT_THAT(Words({"show", "t"}), ElementsAre("train", "test"));
  EXPECT_THAT(Words({"show", "train", ""}), IsEmpty());
  EXPECT_THAT(Words({"run", "--gpus", ""}), ElementsAre("0", "GPU-1"));
  EXPECT_THAT(Words({"--color", "never", "sh"}), ElementsAre("show")) << "values are no verbs";
  EXPECT_THAT(Words({"--color=al"}), ElementsAre("--color=always"));
  EXPECT_THAT(Words({"show", "--wait", "tr"}), ElementsAre("train")) << "its value stands behind =";
}

TEST_F(CompletionTest, DevicesAreThoseOfTheNamedLease) {
  const Completion completion = Complete(app_, {"show", "train", "-d", ""}, live_);
  ASSERT_EQ(completion.words.size(), 1u);
  EXPECT_EQ(completion.words[0].description, "train");
}

TEST_F(CompletionTest, TheShellCompletesDirectoriesAndCommands) {
  EXPECT_EQ(Complete(app_, {"--endpoint", "/ru"}, live_).also, Completion::Also::kDirectories);
  EXPECT_EQ(Complete(app_, {"run", "--", "ls"}, live_).also, Completion::Also::kCommand);
  EXPECT_EQ(Complete(app_, {"run", "--gpus", "0", "--", "show", ""}, live_).also, Completion::Also::kCommand);
}

TEST_F(CompletionTest, NoWordsAtAllIsOneThatIsEmpty) { EXPECT_THAT(Words({}), ElementsAre("show", "run")); }

TEST_F(CompletionTest, FormatOfEveryShell) {
  const Completion completion = Complete(app_, {"show", ""}, live_);
  EXPECT_EQ(FormatCompletion(completion, "fish"), "train\t2 x 1GiB\ntest\na:b\n:nothing\n");
  EXPECT_EQ(FormatCompletion(completion, "zsh"), "train:2 x 1GiB\ntest\na\\:b\n:nothing\n");
  for (const char* shell : {"bash", "zsh", "fish"}) {
    EXPECT_THAT(std::string(CompletionScript(shell)), HasSubstr("lgpu __complete "));
  }
  EXPECT_EQ(CompletionScript("csh"), "");
}

TEST_F(CompletionTest, ManPagesHaveEveryFlagAndQuoteRoffRequests) {
  const std::vector<VerbInfo> table = FlagTable(app_);
  const std::string page = ManPage(table, "show");
  EXPECT_THAT(page, AllOf(HasSubstr(".TH LGPU\\-SHOW 1"), HasSubstr("\\fB\\-d\\fR, \\fB\\-\\-device\\fR"),
                          HasSubstr("[=\\fIDUR\\fR]"), HasSubstr("[\\fILEASE\\fR]")));
  EXPECT_THAT(ManPage(table, ""), HasSubstr("\\-\\-color"));
  EXPECT_EQ(ManPage(table, "none"), "");
  EXPECT_THAT(ManPage({{}, {.name = "ls"}}, ""), HasSubstr(".SS Every day\n.TP\n\\fBls\\fR\n"));
  EXPECT_THAT(page, Not(HasSubstr(" --device")));
  EXPECT_THAT(ManPage(table, "run"),
              AllOf(HasSubstr(".SH DESCRIPTION\n"), HasSubstr(".SH EXAMPLES\n.TP\n\\fBlgpu run")));
}

TEST_F(CompletionTest, HelpHasEveryFlagInLinesThatFit) {
  const std::string help = HelpText(FlagTable(app_), "show", 60);
  EXPECT_THAT(help,
              AllOf(HasSubstr("Usage: lgpu show [FLAGS] [LEASE]\n"), HasSubstr("-d, --device GPU-DEVICE"),
                    HasSubstr("--wait[=DUR]"), Not(HasSubstr("OPTIONS"))));
  const std::vector<VerbInfo> table = {{}, {.name = "ls", .description = "Show all"}, {.name = "doctor"}};
  EXPECT_THAT(HelpText(table, "", 60),
              AllOf(HasSubstr("\nEvery day:\n  ls                        Show all\n\n"),
                    HasSubstr("\nAdministration:\n  doctor")));
  EXPECT_EQ(HelpText(FlagTable(app_), "none", 60), "");
}

}  // namespace
}  // namespace lgpu::cli
