// One snapshot is behind all that lgpu shows: `lgpu ls --json`, GetStats, /metrics and the page's JSON have
// the same numbers at a quiet moment, and docs/statistics.md explains each of them.

#include <google/protobuf/message.h>
#include <httplib.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/read_file.h"
#include "lgpu/bytes.h"
#include "tests/e2e/harness.h"

namespace lgpu::testing {
namespace {

using google::protobuf::FieldDescriptor;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// Fields of GetStats that identify things, or that only programs need: no view for people has them.
const std::set<std::string> kNotShown = {"lgpu.v1.CardStats.compute_major", "lgpu.v1.CardStats.compute_minor",
                                         "lgpu.v1.CardStats.multiprocessors", "lgpu.v1.LogicalDeviceStats.id",
                                         "lgpu.v1.SessionStats.process_start_ticks"};

/// The names in JSON of fields that have another name there.
const std::map<std::string, std::string> kJsonNames = {
    {"lgpu.v1.LogicalDeviceStats.limit_bytes", "memory_limit_bytes"},
    {"lgpu.v1.LogicalDeviceStats.card_index", "gpu"}};

double NumberOf(const google::protobuf::Message& message, const FieldDescriptor& field) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT64:
      return static_cast<double>(reflection.GetUInt64(message, &field));
    case FieldDescriptor::CPPTYPE_INT64:
      return static_cast<double>(reflection.GetInt64(message, &field));
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection.GetUInt32(message, &field);
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.GetBool(message, &field) ? 1 : 0;
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection.GetDouble(message, &field);
    default:
      ADD_FAILURE() << field.full_name() << " has a type that this test does not know";
      return 0;
  }
}

bool IsNumber(const FieldDescriptor& field) {
  return !field.is_repeated() && field.cpp_type() != FieldDescriptor::CPPTYPE_STRING &&
         field.cpp_type() != FieldDescriptor::CPPTYPE_ENUM &&
         field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE;
}

/// A number that is missing compares with none.
double AsNumber(const json& value) {
  if (value.is_null()) return -1;
  return value.is_boolean() ? (value.get<bool>() ? 1 : 0) : value.get<double>();
}

/// Compares every number of `message` itself with its JSON. Gives how many there are.
int CompareNumbers(const google::protobuf::Message& message, const json& shown) {
  int compared = 0;
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *message.GetDescriptor()->field(i);
    const std::string full(field.full_name());
    if (!IsNumber(field) || kNotShown.contains(full)) continue;
    if (field.has_presence() && !message.GetReflection()->HasField(message, &field)) continue;
    const auto other = kJsonNames.find(full);
    const std::string key = other == kJsonNames.end() ? std::string(field.name()) : other->second;
    const json& place = full == "lgpu.v1.LeaseStats.owner_uid" ? shown["owner"] : shown;
    const std::string name = full == "lgpu.v1.LeaseStats.owner_uid" ? "uid" : key;
    if (!place.contains(name)) {
      ADD_FAILURE() << full << " is not in the JSON";
      continue;
    }
    if (name == "uptime_seconds") continue;  // goes on while the test asks
    EXPECT_EQ(AsNumber(place[name]), NumberOf(message, field)) << full;
    ++compared;
  }
  return compared;
}

/// Every key in `shown`. The keys of labels and of kinds of calls are values.
void CollectKeys(const json& shown, std::set<std::string>& keys) {
  if (shown.is_array()) {
    for (const json& part : shown) CollectKeys(part, keys);
  }
  if (!shown.is_object()) return;
  for (const auto& [key, value] : shown.items()) {
    keys.insert(key);
    if (key != "labels" && key != "charged_by_kind") CollectKeys(value, keys);
  }
}

/// The part of a snapshot that does not depend on its time.
json WithoutTimes(json snapshot) {
  snapshot.erase("taken_at");
  snapshot.erase("uptime_seconds");
  return snapshot;
}

/// The samples of a scrape: "name{labels}" and its value.
class Scrape {
 public:
  explicit Scrape(const std::string& text) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      const std::size_t space = line.rfind(' ');
      if (line.empty() || line[0] == '#' || space == std::string::npos) continue;
      samples_[line.substr(0, space)] = std::stod(line.substr(space + 1));
    }
  }
  /// The value of the only sample of that name whose labels have all of these words.
  double Value(const std::string& name, const std::vector<std::string>& labels = {}) {
    std::vector<double> found;
    for (const auto& [sample, value] : samples_) {
      if (sample.substr(0, sample.find('{')) != name) continue;
      bool all = true;
      for (const std::string& label : labels) all = all && absl::StrContains(sample, label);
      if (all) found.push_back(value);
    }
    used_.insert(name);
    EXPECT_EQ(found.size(), 1u) << name << " " << ::testing::PrintToString(labels);
    return found.empty() ? -1 : found[0];
  }
  /// Names that nothing was compared with.
  std::set<std::string> Unused() const {
    std::set<std::string> names;
    for (const auto& [sample, value] : samples_) {
      const std::string name = sample.substr(0, sample.find('{'));
      if (!used_.contains(name)) names.insert(name);
    }
    return names;
  }

 private:
  std::map<std::string, double> samples_;
  std::set<std::string> used_;
};

void CompareCards(const json& shown, Scrape& scrape) {
  const std::map<std::string, std::string> metrics = {
      {"memory_total_bytes", "total_bytes"},     {"memory_reserved_bytes", "promised_bytes"},
      {"memory_held_bytes", "held_bytes"},       {"memory_overhead_bytes", "overhead_bytes"},
      {"memory_free_bytes", "free_bytes"},       {"memory_draining_bytes", "draining_bytes"},
      {"memory_foreign_bytes", "foreign_bytes"}, {"waiting_requests", "waiting_requests"},
      {"overcommitted", "overcommitted"}};
  for (const json& card : shown["cards"]) {
    const std::string gpu = absl::StrCat("gpu=\"", card["index"].get<int>(), "\"");
    for (const auto& [metric, key] : metrics) {
      const std::string name = "lgpu_physical_device_" + metric;
      EXPECT_EQ(scrape.Value(name, {gpu}), AsNumber(card[key])) << name;
    }
    EXPECT_EQ(scrape.Value("lgpu_physical_device_info", {gpu, card["uuid"].get<std::string>()}), 1);
  }
}

void CompareDevices(const json& shown, Scrape& scrape) {
  const std::map<std::string, std::string> metrics = {
      {"memory_limit_bytes", "memory_limit_bytes"}, {"memory_used_bytes", "used_bytes"},
      {"memory_mapped_bytes", "held_bytes"},        {"memory_charged_bytes", "charged_bytes"},
      {"memory_peak_bytes", "peak_used_bytes"},     {"largest_free_block_bytes", "largest_free_block_bytes"}};
  for (const json& lease : shown["leases"]) {
    for (const json& device : lease["devices"]) {
      const std::string name = device["name"];
      const std::vector<std::string> labels = {
          absl::StrCat("gpu=\"", device["gpu"].get<int>(), "\""),
          absl::StrCat("device=\"", name.substr(name.rfind("GPU:")), "\""),
          absl::StrCat("lease=\"", lease["name"].get<std::string>(), "\"")};
      for (const auto& [metric, key] : metrics) {
        EXPECT_EQ(scrape.Value("lgpu_logical_device_" + metric, labels), AsNumber(device[key])) << metric;
      }
      for (const auto& [result, key] :
           {std::pair("ok", "allocations_total"), std::pair("refused", "refusals_total")}) {
        std::vector<std::string> with = labels;
        with.push_back(absl::StrCat("result=\"", result, "\""));
        EXPECT_EQ(scrape.Value("lgpu_allocations_total", with), AsNumber(device[key])) << result;
      }
    }
  }
}

void CompareTotals(const json& shown, Scrape& scrape) {
  const std::map<std::string, std::string> metrics = {
      {"grants_total", "grants_total"},
      {"charges_total", "charges_total"},
      {"returns_total", "returns_total"},
      {"trims_total", "trims_total"},
      {"trims_ignored_total", "trims_ignored_total"},
      {"sessions_lost_total", "sessions_lost_total"},
      {"placement_records_total", "placements_total"},
      {"placement_records_dropped_total", "placements_dropped_total"}};
  for (const auto& [metric, key] : metrics) {
    EXPECT_EQ(scrape.Value("lgpu_" + metric), AsNumber(shown[key])) << metric;
  }
  EXPECT_EQ(scrape.Value("lgpu_leases"), static_cast<double>(shown["leases"].size()));
  std::map<std::string, double> sessions = {{"live", 0}, {"draining", 0}, {"absent", 0}};
  std::map<std::string, std::map<std::string, double>> devices;
  for (const json& lease : shown["leases"]) {
    for (const json& session : lease["sessions"]) ++sessions[session["state"]];
    for (const json& device : lease["devices"]) {
      ++devices[absl::StrCat(device["gpu"].get<int>())][lease["sessions"].empty() ? "idle" : "attached"];
    }
  }
  for (const auto& [state, count] : sessions) {
    EXPECT_EQ(scrape.Value("lgpu_sessions", {absl::StrCat("\"", state, "\"")}), count) << state;
  }
  for (const json& card : shown["cards"]) {
    const std::string gpu = absl::StrCat(card["index"].get<int>());
    for (const char* state : {"idle", "attached", "draining"}) {
      EXPECT_EQ(scrape.Value("lgpu_logical_devices",
                             {absl::StrCat("gpu=\"", gpu, "\""), absl::StrCat("state=\"", state, "\"")}),
                devices[gpu][state])
          << gpu << " " << state;
    }
  }
}

class OneSourceTest : public E2eTest {
 protected:
  void StartWithHttp() {
    StartDaemon({.simulate = "2x1GiB", .config = "[http]\nlisten = \"127.0.0.1:0\"\n"});
    const std::string begin = "lgpud serves HTTP at ";
    ASSERT_TRUE(Eventually([&] { return absl::StrContains(daemon_->program().Errors(), "/metrics\n"); }));
    const std::string errors = daemon_->program().Errors();
    const std::size_t at = errors.find(begin) + begin.size();
    url_ = errors.substr(at, errors.find("/metrics", at) - at);
  }
  std::string Get(const std::string& path) {
    httplib::Client client(url_);
    client.set_read_timeout(ChildProgram::kPatience);
    const auto result = client.Get(path);
    EXPECT_TRUE(result && result->status == 200) << path;
    return result ? result->body : "";
  }
  /// The output of the command.
  std::string Lgpu(std::vector<std::string> words) {
    words.insert(words.begin(), DaemonProcess::LgpuPath());
    ChildProgram::Options options{.argv = std::move(words)};
    options.environment["LGPU_ENDPOINT"] = daemon_->dir();
    options.environment["COLUMNS"] = "200";
    const absl::StatusOr<ProgramResult> result = RunProgram(options);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? result->out : "";
  }
  json Ls() { return json::parse(Lgpu({"ls", "--json"}), nullptr, /*allow_exceptions=*/false); }

  /// All four, taken while nothing happened.
  struct Shown {
    v1::StatsSnapshot stats;
    json ls, page;
    std::string metrics;
  };
  Shown AtOneMoment() {
    Shown shown;
    const auto quiet = [&] {
      shown.ls = Ls();
      shown.stats = Stats();
      shown.metrics = Get("/metrics");
      shown.page = json::parse(Get("/api/v1/stats"));
      return WithoutTimes(shown.ls) == WithoutTimes(Ls());
    };
    EXPECT_TRUE(Eventually(quiet)) << "the daemon is never quiet";
    return shown;
  }

  std::string url_;
};

TEST_F(OneSourceTest, EveryNumberIsTheSameWhereverItIsShownAndIsExplained) {
  StartWithHttp();
  auto train = StartClient();
  ASSERT_THAT(Ask(*train, absl::StrCat("open c lease_name=train cards=01 limit=", 64 * kMiB)),
              StartsWith("ok "));
  ASSERT_THAT(Alloc(*train, "a", 5), StartsWith("ok"));
  ASSERT_THAT(Alloc(*train, "b", 9), StartsWith("ok"));
  ASSERT_THAT(Ask(*train, absl::StrCat("alloc c small ", 100 * sizeof(float))), StartsWith("ok"));
  ASSERT_EQ(Ask(*train, "free a"), "ok");
  ASSERT_THAT(Alloc(*train, "large", 900), HasSubstr("RESOURCE_EXHAUSTED"));
  ASSERT_EQ(Ask(*train, "work c 3"), "ok");
  v1::CreateLeaseRequest request = OneDevice(32 * kMiB, /*preallocate=*/true, /*lasting=*/true);
  request.set_name("kept");
  const absl::StatusOr<v1::Lease> kept = control_->CreateLease(request);
  ASSERT_TRUE(kept.ok()) << kept.status();
  // Ops are read from the program's ring a little later.
  ASSERT_TRUE(Eventually([&] { return Stats().placements_total() >= 6; }));

  const Shown shown = AtOneMoment();
  EXPECT_EQ(WithoutTimes(shown.page), WithoutTimes(shown.ls));
  int compared = CompareNumbers(shown.stats, shown.ls);
  for (int i = 0; i < shown.stats.cards_size(); ++i) {
    compared += CompareNumbers(shown.stats.cards(i), shown.ls["cards"][i]);
  }
  ASSERT_EQ(shown.stats.leases_size(), 2);
  for (int i = 0; i < shown.stats.leases_size(); ++i) {
    const v1::LeaseStats& lease = shown.stats.leases(i);
    const json& of_lease = shown.ls["leases"][i];
    compared += CompareNumbers(lease, of_lease);
    for (int j = 0; j < lease.devices_size(); ++j) {
      compared += CompareNumbers(lease.devices(j), of_lease["devices"][j]);
    }
    for (int j = 0; j < lease.sessions_size(); ++j) {
      compared += CompareNumbers(lease.sessions(j), of_lease["sessions"][j]);
    }
  }
  EXPECT_GT(compared, 100);

  Scrape scrape(shown.metrics);
  CompareCards(shown.ls, scrape);
  CompareDevices(shown.ls, scrape);
  CompareTotals(shown.ls, scrape);
  // Metrics that no snapshot has: counts by reason or op, suspensions, giving way, times of grants and of
  // idleness, build and uptime.
  EXPECT_THAT(
      scrape.Unused(),
      ::testing::IsSubsetOf(
          {"lgpu_build_info", "lgpu_uptime_seconds", "lgpu_refusals_total",
           "lgpu_logical_device_idle_seconds", "lgpu_leases_reclaimed_total", "lgpu_ops_executed_total",
           "lgpu_op_placement_fallbacks_total", "lgpu_allocation_duration_seconds_bucket",
           "lgpu_allocation_duration_seconds_sum", "lgpu_allocation_duration_seconds_count",
           "lgpu_suspensions_total", "lgpu_resumptions_total", "lgpu_suspension_failures_total",
           "lgpu_suspension_moved_bytes_total", "lgpu_give_way_asks_total", "lgpu_give_way_answers_total",
           "lgpu_give_way_given_bytes_total", "lgpu_give_way_wait_seconds_total"}));

  const std::string docs = ReadWholeFile(LGPU_STATISTICS_PAGE).value_or("");
  std::set<std::string> keys;
  CollectKeys(shown.ls, keys);
  EXPECT_GT(keys.size(), 60u);
  for (const std::string& key : keys) {
    EXPECT_TRUE(absl::StrContains(docs, absl::StrCat("`", key, "`")))
        << "docs/statistics.md does not explain " << key;
  }
  ASSERT_TRUE(control_->RemoveLease("kept").ok());
}

std::string Size(const json& bytes) { return FormatBytes(Bytes(bytes.get<std::uint64_t>())); }
std::string CutSize(const json& bytes) { return FormatBytesCut(Bytes(bytes.get<std::uint64_t>())); }

// A preallocated device of which its program holds a part, a card with a promise that is not held, and holes
// between blocks: wherever two numbers could differ under one name, they do here.
TEST_F(OneSourceTest, EachWordMeansTheSameInEveryViewAtOneInstant) {
  StartWithHttp();
  v1::CreateLeaseRequest request = OneDevice(128 * kMiB, /*preallocate=*/false, /*lasting=*/true);
  request.mutable_devices(0)->set_guarantee_bytes(100 * kMiB);
  request.set_name("promised");
  ASSERT_TRUE(control_->CreateLease(request).ok());
  auto train = StartClient();
  ASSERT_THAT(Ask(*train, absl::StrCat("open c lease_name=train prealloc=1 card=0 limit=", 256 * kMiB)),
              StartsWith("ok "));
  for (const char* name : {"a", "b", "c"}) ASSERT_THAT(Alloc(*train, name, 20), StartsWith("ok"));
  ASSERT_EQ(Ask(*train, "free b"), "ok");
  const std::string refused = Alloc(*train, "large", 900);

  json map;
  std::string ls, top, inspect, memory_stats;
  Shown shown;
  const auto quiet = [&] {
    shown = AtOneMoment();
    const std::string id = shown.ls["leases"][1]["id"];
    map = json::parse(Get(absl::StrCat("/api/v1/map?device=0&lease=", id)));
    memory_stats = Ask(*train, "stats c");
    ls = Lgpu({"ls"});
    top = Lgpu({"top", "--once", "--ascii"});
    inspect = Lgpu({"inspect", "train"});
    return WithoutTimes(shown.ls) == WithoutTimes(Ls());
  };
  ASSERT_TRUE(Eventually(quiet)) << "the daemon is never quiet";
  EXPECT_EQ(WithoutTimes(shown.page), WithoutTimes(shown.ls));
  const json& card = shown.ls["cards"][0];
  const json& lease = shown.ls["leases"][1];
  ASSERT_EQ(lease["name"], "train");
  const json& device = lease["devices"][0];
  const json& session = lease["sessions"][0];

  // Totals: each is part of the next one, and the last ones make up the card.
  EXPECT_EQ(device["held_bytes"], 256 * kMiB) << "with the spare chunks";
  EXPECT_LT(session["held_bytes"], device["held_bytes"]);
  EXPECT_EQ(device["used_bytes"], 40 * kMiB);
  EXPECT_EQ(card["held_bytes"], device["held_bytes"]);
  EXPECT_EQ(card["promised_bytes"], 356 * kMiB);
  EXPECT_EQ(AsNumber(card["promised_bytes"]) + AsNumber(card["free_bytes"]) + AsNumber(card["foreign_bytes"]),
            AsNumber(card["total_bytes"]));

  // The program's own numbers, and its memory map.
  EXPECT_EQ(memory_stats, absl::StrCat("ok ", device["used_bytes"].get<std::uint64_t>(), " ",
                                       session["held_bytes"].get<std::uint64_t>(), " ",
                                       device["peak_used_bytes"].get<std::uint64_t>()));
  EXPECT_EQ(map["granted_bytes"], session["held_bytes"]);
  EXPECT_EQ(map["used_bytes"], device["used_bytes"]);
  EXPECT_EQ(map["live_blocks"], device["live_blocks"]);
  EXPECT_EQ(map["largest_free_block_bytes"], device["largest_free_block_bytes"]);
  const double slack = AsNumber(session["held_bytes"]) - AsNumber(device["used_bytes"]);
  const double fragmentation = 1 - AsNumber(device["largest_free_block_bytes"]) / slack;
  ASSERT_GT(fragmentation, 0.01);
  EXPECT_NEAR(AsNumber(map["fragmentation"]), fragmentation, 1e-9);
  EXPECT_THAT(inspect, HasSubstr(absl::StrFormat("fragmentation %.0f%%", 100 * fragmentation)));

  // The texts.
  EXPECT_THAT(ls, ::testing::ContainsRegex(
                      absl::StrCat("0  Simulated GPU  +", Size(card["held_bytes"]), " +",
                                   Size(card["promised_bytes"]), " +", Size(card["total_bytes"]), " +",
                                   CutSize(card["free_bytes"]), " +", Size(card["foreign_bytes"]), " ")));
  EXPECT_THAT(ls, ::testing::ContainsRegex(absl::StrCat(
                      "preallocate +", Size(device["used_bytes"]), " +", Size(device["held_bytes"]), " +",
                      Size(device["memory_limit_bytes"]), " +", Size(device["peak_used_bytes"]), " ")));
  EXPECT_THAT(
      top, HasSubstr(absl::StrCat("used ", Size(device["used_bytes"]), " | held ", Size(card["held_bytes"]),
                                  " | promised ", Size(card["promised_bytes"]), " | free ",
                                  CutSize(card["free_bytes"]), " | foreign ", Size(card["foreign_bytes"]))));
  EXPECT_THAT(inspect, HasSubstr(absl::StrCat("granted ", Size(session["held_bytes"]))));
  for (const std::string& text : {ls, top, shown.metrics, refused}) {
    EXPECT_THAT(text, Not(HasSubstr("ragm"))) << "fragmentation is shown beside blocks only";
  }
  EXPECT_THAT(refused, AllOf(HasSubstr("RESOURCE_EXHAUSTED"), Not(HasSubstr("  free  "))));
  ASSERT_TRUE(control_->RemoveLease("promised").ok());
}

}  // namespace
}  // namespace lgpu::testing
