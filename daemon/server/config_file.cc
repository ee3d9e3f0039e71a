// The TOML side of lgpud's configuration; docs/configuration.md and packaging/lgpud.toml describe the keys.

#include <toml++/toml.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/memory_size.h"
#include "daemon/server/config.h"
#include "lgpu/status.h"

namespace lgpu::daemon {
namespace {

// Reads the keys of one table; every message starts with file:line:column.
class Reader {
 public:
  /// Where values come from is kept in `config`.
  Reader(std::string_view path, Config& config) : path_(path), config_(config) {}

  struct Key {
    std::string_view name;
    std::function<absl::Status(const toml::node& value)> read;
    std::vector<std::string> inner = {};  // names of the keys of a table: "runtime_dir"
  };

  /// `prefix`: "daemon." in [daemon].
  absl::Status ReadTable(const toml::table& table, std::string_view where, const std::vector<Key>& keys,
                         std::string_view prefix = "") const {
    for (const auto& [key, value] : table) {
      const Key* known = nullptr;
      std::string names;
      for (const Key& candidate : keys) {
        if (candidate.name == key.str()) known = &candidate;
        absl::StrAppend(&names, names.empty() ? "" : ", ", std::string(candidate.name));
      }
      if (known == nullptr) {
        return Error(key.source(), absl::StrCat("unknown key '", std::string(key.str()), "' ",
                                                std::string(where), "; known are: ", names));
      }
      LGPU_RETURN_IF_ERROR(known->read(value));
      config_.origins[absl::StrCat(std::string(prefix), std::string(key.str()))] = Place(key.source());
    }
    return absl::OkStatus();
  }

  absl::Status Error(const toml::source_region& source, const std::string& message) const {
    return absl::InvalidArgumentError(absl::StrCat(Place(source), ": ", message));
  }

  std::string Place(const toml::source_region& source) const {
    return absl::StrCat(path_, ":", source.begin.line, ":", source.begin.column);
  }

  absl::Status WrongType(const toml::node& value, std::string_view expected) const {
    return Error(value.source(),
                 absl::StrCat("expected ", std::string(expected), ", found ", TypeName(value.type())));
  }

  static std::vector<std::string> Names(const std::vector<Key>& keys) {
    std::vector<std::string> names;
    for (const Key& key : keys) {
      if (key.inner.empty()) names.emplace_back(key.name);
      for (const std::string& inner : key.inner) {
        names.push_back(absl::StrCat(std::string(key.name), ".", inner));
      }
    }
    return names;
  }

  Key Table(std::string_view name, std::vector<Key> keys) const {
    std::vector<std::string> names = Names(keys);
    return {name,
            [this, name, keys = std::move(keys)](const toml::node& value) {
              const toml::table* table = value.as_table();
              if (table == nullptr) {
                return WrongType(value, absl::StrCat("a table [", std::string(name), "]"));
              }
              return ReadTable(*table, absl::StrCat("in [", std::string(name), "]"), keys,
                               absl::StrCat(std::string(name), "."));
            },
            std::move(names)};
  }

  Key String(std::string_view name, std::string& to) const {
    return {name, [this, &to](const toml::node& value) {
              const auto* text = value.as_string();
              if (text == nullptr) return WrongType(value, "a string in quotes");
              to = text->get();
              return absl::OkStatus();
            }};
  }

  Key Directory(std::string_view name, std::string& to) const {
    return {name, [this, &to](const toml::node& value) {
              const auto* text = value.as_string();
              if (text == nullptr) return WrongType(value, "an absolute path in quotes");
              if (!text->get().starts_with('/')) {
                return Error(value.source(), absl::StrCat("'", text->get(), "' is not an absolute path"));
              }
              to = AbsolutePath(text->get());
              return absl::OkStatus();
            }};
  }

  Key LogLevel(std::string_view name, std::string& to) const {
    return {name, [this, &to](const toml::node& value) {
              const auto* text = value.as_string();
              if (text == nullptr) return WrongType(value, "a log level in quotes");
              if (absl::Status status = CheckLogLevel(text->get()); !status.ok()) {
                return Error(value.source(), std::string(status.message()));
              }
              to = text->get();
              return absl::OkStatus();
            }};
  }

  /// One of some words.
  Key Word(std::string_view name, std::string& to, std::vector<std::string> words) const {
    return {name, [this, &to, words = std::move(words)](const toml::node& value) {
              const auto* text = value.as_string();
              if (text != nullptr && std::find(words.begin(), words.end(), text->get()) != words.end()) {
                to = text->get();
                return absl::OkStatus();
              }
              return Error(value.source(),
                           absl::StrCat("expected \"", absl::StrJoin(words, "\" or \""), "\""));
            }};
  }

  Key Mode(std::string_view name, bool& preallocate) const {
    return {name, [this, name, &preallocate](const toml::node& value) {
              std::string mode;
              LGPU_RETURN_IF_ERROR(Word(name, mode, {"growth", "preallocate"}).read(value));
              preallocate = mode == "preallocate";
              return absl::OkStatus();
            }};
  }

  Key VisibleDevices(std::string_view name, Config& to) const {
    return {name, [this, &to](const toml::node& value) {
              const auto* text = value.as_string();
              if (text == nullptr) return WrongType(value, "a list in quotes such as \"0,1\"");
              to.cuda_visible_devices = text->get();
              to.has_cuda_visible_devices = true;
              return absl::OkStatus();
            }};
  }

  Key Boolean(std::string_view name, bool& to) const {
    return {name, [this, &to](const toml::node& value) {
              const auto* flag = value.as_boolean();
              if (flag == nullptr) return WrongType(value, "true or false");
              to = flag->get();
              return absl::OkStatus();
            }};
  }

  template <typename T>
  Key Count(std::string_view name, T& to, std::uint32_t smallest, std::uint32_t largest) const {
    return {name, [this, &to, smallest, largest](const toml::node& value) {
              const auto* number = value.as_integer();
              if (number == nullptr) return WrongType(value, "a whole number");
              if (number->get() < smallest || number->get() > largest) {
                return Error(value.source(), absl::StrCat(number->get(), " is out of range; allowed are ",
                                                          smallest, " to ", largest));
              }
              to = static_cast<std::uint32_t>(number->get());
              return absl::OkStatus();
            }};
  }

  template <typename T>
  Key Size(std::string_view name, T& to) const {
    return {name, [this, &to](const toml::node& value) {
              std::string text;
              if (const auto* string = value.as_string()) {
                text = string->get();
              } else if (const auto* number = value.as_integer()) {
                text = std::to_string(number->get());
              } else {
                return WrongType(value, "a size such as \"2GiB\"");
              }
              const absl::StatusOr<Bytes> size = ParseMemorySize(text);
              if (!size.ok()) return Error(value.source(), std::string(size.status().message()));
              to = *size;
              return absl::OkStatus();
            }};
  }

  Key Duration(std::string_view name, std::chrono::milliseconds& to, std::chrono::milliseconds shortest,
               std::chrono::milliseconds longest) const {
    return {name, [this, &to, shortest, longest](const toml::node& value) {
              const auto* text = value.as_string();
              absl::Duration duration;
              if (text == nullptr || !absl::ParseDuration(text->get(), &duration)) {
                return WrongType(value, "a time such as \"2s\" or \"500ms\"");
              }
              const std::chrono::milliseconds found = absl::ToChronoMilliseconds(duration);
              if (found < shortest || found > longest) {
                return Error(value.source(), absl::StrCat(text->get(), " is out of range; allowed are ",
                                                          shortest.count(), "ms to ", longest.count(), "ms"));
              }
              to = found;
              return absl::OkStatus();
            }};
  }

  Key FileMode(std::string_view name, std::uint32_t& to) const {
    return {
        name, [this, &to](const toml::node& value) {
          const auto* number = value.as_integer();
          // 440 instead of 0o440 would silently be the mode 0o670.
          const bool octal = number != nullptr && (number->flags() & toml::value_flags::format_as_octal) ==
                                                      toml::value_flags::format_as_octal;
          if (number != nullptr && !octal) {
            return Error(
                value.source(),
                absl::StrCat("a file mode is written in octal: 0o660; did you mean 0o", number->get(), "?"));
          }
          if (number == nullptr || number->get() < 0 || number->get() > 0777) {
            return WrongType(value, "a file mode such as 0o660");
          }
          to = static_cast<std::uint32_t>(number->get());
          return absl::OkStatus();
        }};
  }

  Key Caps(std::string_view name, std::vector<CapConfig>& to) const {
    return {name,
            [this, name, &to](const toml::node& value) {
              const toml::table* table = value.as_table();
              if (table == nullptr) {
                return WrongType(value, absl::StrCat("tables [caps.", std::string(name), ".NAME]"));
              }
              for (const auto& [key, entry] : *table) {
                const toml::table* cap_table = entry.as_table();
                if (cap_table == nullptr) return WrongType(entry, "a table");
                LGPU_RETURN_IF_ERROR(ReadCap(std::string(key.str()), name, *cap_table, to));
              }
              return absl::OkStatus();
            },
            {"NAME.memory_limit", "NAME.guarantee", "NAME.leases"}};
  }

  Key SimulatedDevices(std::vector<SimulatedDeviceConfig>& to) const {
    return {"simulated_device",
            [this, &to](const toml::node& value) {
              const toml::array* array = value.as_array();
              if (array == nullptr) return WrongType(value, "tables [[simulated_device]]");
              to.clear();  // the cards of one file replace those of another
              for (const toml::node& entry : *array) {
                const toml::table* table = entry.as_table();
                if (table == nullptr) return WrongType(entry, "a table [[simulated_device]]");
                SimulatedDeviceConfig device;
                LGPU_RETURN_IF_ERROR(
                    ReadTable(*table, "in [[simulated_device]]", KeysOf(device), "simulated_device."));
                if (!table->contains("memory")) {
                  return Error(table->source(),
                               "this simulated device has no memory; add, say, memory = \"1GiB\"");
                }
                if (device.memory < 2_MiB) {
                  return Error(table->source(),
                               "this simulated device is smaller than one chunk; give it at least 2MiB");
                }
                device.origin = Places(*table, "simulated_device.", {"uuid"})["uuid"];
                if (device.origin.empty()) device.origin = Place(table->source());
                to.push_back(std::move(device));
              }
              return absl::OkStatus();
            },
            NamesOf<SimulatedDeviceConfig>()};
  }

  Key StaticDevices(std::vector<StaticDeviceConfig>& to) const {
    return {
        "logical_device",
        [this, &to](const toml::node& value) {
          const toml::array* array = value.as_array();
          if (array == nullptr) return WrongType(value, "tables [[logical_device]]");
          to.clear();  // the devices of one file replace those of another
          for (const toml::node& entry : *array) {
            const toml::table* table = entry.as_table();
            if (table == nullptr) return WrongType(entry, "a table [[logical_device]]");
            StaticDeviceConfig device;
            device.origin = Place(table->source());
            LGPU_RETURN_IF_ERROR(
                ReadTable(*table, "in [[logical_device]]", KeysOf(device), "logical_device."));
            device.origins = Places(*table, "logical_device.", NamesOf<StaticDeviceConfig>());
            if (device.lease.empty()) {
              return Error(table->source(), "this logical device has no lease; add, say, lease = \"shared\"");
            }
            if (!device.guarantee.is_zero() && device.mode == "preallocate") {
              return Error(table->source(), "preallocate guarantees the whole limit; leave guarantee out");
            }
            to.push_back(std::move(device));
          }
          return absl::OkStatus();
        },
        NamesOf<StaticDeviceConfig>()};
  }

 private:
  /// The places of the keys that a table, which has just been read, has.
  std::map<std::string, std::string> Places(const toml::table& table, const std::string& prefix,
                                            const std::vector<std::string>& keys) const {
    std::map<std::string, std::string> places;
    for (const std::string& key : keys) {
      if (table.contains(key)) places[key] = config_.origins.at(prefix + key);
    }
    return places;
  }

  std::vector<Key> KeysOf(SimulatedDeviceConfig& device) const {
    return {Size("memory", device.memory), String("uuid", device.uuid), String("name", device.name),
            Boolean("sparse", device.sparse)};
  }
  std::vector<Key> KeysOf(StaticDeviceConfig& device) const {
    return {String("lease", device.lease),
            String("owner", device.owner),
            String("name", device.name),
            String("gpu", device.gpu),
            Size("memory", device.memory),
            Size("guarantee", device.guarantee),
            Word("mode", device.mode, {"growth", "preallocate"})};
  }
  template <typename Device>
  std::vector<std::string> NamesOf() const {
    Device device;
    return Names(KeysOf(device));
  }

  static std::string TypeName(toml::node_type type) {
    switch (type) {
      case toml::node_type::table:
        return "a table";
      case toml::node_type::array:
        return "an array";
      case toml::node_type::string:
        return "a string";
      case toml::node_type::integer:
        return "a whole number that does not fit";
      case toml::node_type::floating_point:
        return "a number with a fraction";
      case toml::node_type::boolean:
        return "true or false";
      default:
        return "a date or time";
    }
  }

  absl::Status ReadCap(const std::string& who, std::string_view kind, const toml::table& table,
                       std::vector<CapConfig>& to) const {
    constexpr auto kMostCount = std::numeric_limits<std::int32_t>::max();
    CapConfig cap;
    cap.name = who;
    LGPU_RETURN_IF_ERROR(
        ReadTable(table, absl::StrCat("in [caps.", std::string(kind), ".", who, "]"),
                  {Size("memory_limit", cap.memory_limit), Size("guarantee", cap.guarantee),
                   Count("leases", cap.leases, 0, kMostCount), Count("sessions", cap.sessions, 0, kMostCount),
                   Count("calls", cap.calls, 1, kMostCount)},
                  absl::StrCat("caps.", std::string(kind), ".", who, ".")));
    cap.key = absl::StrCat("caps.", std::string(kind), ".", who == "*" ? "\"*\"" : who);
    for (CapConfig& present : to) {
      if (present.name == who) {
        present = std::move(cap);
        return absl::OkStatus();
      }
    }
    to.push_back(std::move(cap));
    return absl::OkStatus();
  }

  std::string path_;
  Config& config_;
};

constexpr std::uint32_t kMany = 1u << 20;
// A shorter turn ends before sessions answer a trim.
constexpr std::chrono::milliseconds kShortestTurn{100};
constexpr std::chrono::milliseconds kLongestTurn = std::chrono::minutes(1);
constexpr std::chrono::minutes kLongestGivingWay{10};
constexpr std::chrono::milliseconds kShortestRun{100};
constexpr std::chrono::minutes kLongestRun{60};

std::vector<Reader::Key> AllKeys(const Reader& reader, Config& config) {
  return {
      reader.Table(
          "daemon",
          {reader.Directory("runtime_dir", config.runtime_dir),
           reader.Directory("state_dir", config.state_dir), reader.Directory("lock_dir", config.lock_dir),
           reader.String("socket_group", config.socket_group),
           reader.FileMode("socket_mode", config.socket_mode), reader.LogLevel("log_level", config.log_level),
           reader.Word("log_format", config.log_format, {"auto", "text", "json", "journal"}),
           reader.Count("max_sessions", config.max_sessions, 1, kMany)}),
      reader.Table("devices", {reader.VisibleDevices("visible", config)}),
      reader.SimulatedDevices(config.simulated),
      reader.StaticDevices(config.static_devices),
      reader.Table("memory", {reader.Size("reserve", config.reserve),
                              reader.Size("overhead_allowance", config.overhead_allowance),
                              reader.Word("on_uncharged", config.on_uncharged, {"report", "stop", "kill"}),
                              reader.Duration("max_drain", config.max_drain, kShortestTurn, kLongestTurn),
                              reader.Duration("give_way_wait", config.give_way_wait,
                                              std::chrono::milliseconds(0), kLongestGivingWay),
                              reader.Duration("min_run", config.min_run, kShortestRun, kLongestRun),
                              reader.Mode("default_mode", config.policy.preallocate)}),
      reader.Table("caps", {reader.Caps("users", config.policy.user_caps),
                            reader.Caps("groups", config.policy.group_caps)}),
      reader.Table("placements", {reader.Count("records", config.policy.placement_records, 1, kMany)}),
      reader.Table("events", {reader.Count("kept", config.kept_events, 1, kMany)}),
      reader.Table("http", {reader.String("listen", config.http.listen),
                            reader.Directory("token_file", config.http.token_file),
                            reader.Word("owners", config.http.owners, {"hidden", "names"}),
                            reader.Boolean("show_users", config.http.show_users)})};
}

}  // namespace

std::vector<std::string> ConfigKeys() {
  Config config;
  const Reader reader("", config);
  return Reader::Names(AllKeys(reader, config));
}

absl::Status ApplyConfigText(std::string_view text, std::string_view path, Config& config) {
  const Reader reader(path, config);
  toml::table root;
  try {
    root = toml::parse(text, path);
  } catch (const toml::parse_error& error) {
    return reader.Error(error.source(), std::string(error.description()));
  }
  return reader.ReadTable(root, "at the top", AllKeys(reader, config));
}

}  // namespace lgpu::daemon
