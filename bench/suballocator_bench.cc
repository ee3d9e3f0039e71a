// The tables of bench/allocator.md: lgpu's allocator beside models of other allocators on the same
// workloads in one run. bench/README.md has the commands.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>

#include "bench/peers/contenders.h"
#include "bench/suballocator_tables.h"
#include "bench/text_table.h"

namespace lgpu::bench {

void Print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

namespace {

void PrintGoals(const Goals& goals) {
  if (goals.empty()) return;
  TextTable table({"goals", "measured", "goal", ""});
  for (const Goal& goal : goals) {
    const bool floor = goal.at_least > 0;
    table.AddRow({goal.figure, Fixed(goal.measured, goal.digits),
                  (floor ? ">= " : "<= ") + Fixed(floor ? goal.at_least : goal.at_most, goal.digits),
                  goal.IsReached() ? "reached" : "NOT reached"});
  }
  Print(table.Text());
}

int Main(int argc, char** argv) {
  Settings settings;
  CLI::App app("lgpu's allocator beside models of others, on the same workloads.", "suballocator_bench");
  app.add_option("--tables", settings.tables, "What to measure")
      ->delimiter(',')
      ->check(CLI::IsMember(settings.tables))
      ->capture_default_str();
  app.add_option("--workloads", settings.workloads, "Only these, as A,S3 (default: all)")->delimiter(',');
  app.add_option("--allocators", settings.contenders, "Only these, as pool,flat (default: all)")
      ->delimiter(',');
  app.add_flag("--short", settings.is_short, "Less of everything: about a minute");
  const CLI::Option* rounds =
      app.add_option("--rounds", settings.rounds, "Rounds of time")->check(CLI::PositiveNumber);
  const CLI::Option* seconds =
      app.add_option("--seconds", settings.seconds, "The most of one cell in one round")
          ->check(CLI::PositiveNumber);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    app.exit(error);
    return 2;
  }
  if (settings.is_short) {
    settings.rounds = rounds->count() > 0 ? settings.rounds : 5;
    settings.seconds = seconds->count() > 0 ? settings.seconds : 0.15;
  }
  for (const std::string& name : settings.contenders) {
    if (const auto kind = FindContenderKind(name); !kind.ok()) {
      std::fprintf(stderr, "suballocator_bench: %s\n", kind.status().ToString().c_str());
      return 2;
    }
  }
  const std::map<std::string_view, void (*)(const Settings&, Goals&)> tables = {
      {"time", TimeTables},  {"space", SpaceTable},
      {"waste", WasteTable}, {"first-refusal", FirstRefusalTable},
      {"moves", MovesTable}, {"metadata", MetadataTable}};
  Goals goals;
  for (const std::string& table : settings.tables) tables.at(table)(settings, goals);
  PrintGoals(goals);
  return 0;
}

}  // namespace
}  // namespace lgpu::bench

int main(int argc, char** argv) { return lgpu::bench::Main(argc, argv); }
