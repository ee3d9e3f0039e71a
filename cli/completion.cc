#include "cli/completion.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "cli/flag_table.h"
#include "cli/output.h"
#include "cli/query.h"

namespace lgpu::cli {
namespace {

const VerbInfo* FindVerb(const std::vector<VerbInfo>& table, const std::string& name) {
  for (const VerbInfo& verb : table) {
    if (!verb.name.empty() && verb.name == name) return &verb;
  }
  return nullptr;
}

/// A command line as far as it is written.
struct Parsed {
  const VerbInfo* verb = nullptr;
  std::vector<std::string> positionals = {};
  const FlagInfo* open = nullptr;  // the flag whose value the last word is
  std::size_t marker = 0;          // where "--" stands, plus one
  std::string lease = {};          // of --lease
};

class Completer {
 public:
  Completer(const CLI::App& app, const LiveNames& live) : table_(FlagTable(app)), live_(live) {}

  Completion Run(const std::vector<std::string>& words) const {
    const std::string& current = words.back();
    const Parsed parsed = Parse(words);
    if (parsed.marker > 0) return {.also = Completion::Also::kCommand};
    Completion completion;
    const std::size_t equals = current.find('=');
    if (parsed.open != nullptr) {
      completion = Values(parsed.open->type, parsed, current);
    } else if (absl::StartsWith(current, "--") && equals != std::string::npos) {
      const FlagInfo* flag = FindFlag(parsed.verb, current.substr(0, equals));
      if (flag != nullptr) completion = Values(flag->type, parsed, current.substr(equals + 1));
      for (Candidate& word : completion.words) word.value = current.substr(0, equals + 1) + word.value;
    } else if (absl::StartsWith(current, "-")) {
      completion.words = Flags(parsed.verb);
    } else if (parsed.verb == nullptr) {
      for (const VerbInfo& verb : table_) {
        if (!verb.name.empty()) completion.words.push_back({verb.name, verb.description});
      }
    } else {
      completion = Positional(*parsed.verb, parsed, current);
    }
    auto& found = completion.words;
    found.erase(std::remove_if(found.begin(), found.end(),
                               [&](const Candidate& word) { return !absl::StartsWith(word.value, current); }),
                found.end());
    return completion;
  }

 private:
  Parsed Parse(const std::vector<std::string>& words) const {
    Parsed parsed;
    for (std::size_t i = 0; i + 1 < words.size(); ++i) {
      const std::string& word = words[i];
      parsed.open = nullptr;
      if (word == "--") {
        parsed.marker = i + 1;
        break;
      }
      if (absl::StartsWith(word, "-")) {
        const FlagInfo* flag = FindFlag(parsed.verb, word);
        const bool takes_next = flag != nullptr && !flag->type.empty() && !flag->optional_value;
        if (takes_next && i + 2 == words.size()) parsed.open = flag;
        const std::size_t equals = word.find('=');
        if (word == "--lease" && i + 2 < words.size()) parsed.lease = words[i + 1];
        if (word.substr(0, equals) == "--lease" && equals != std::string::npos) {
          parsed.lease = word.substr(equals + 1);
        }
        if (takes_next) ++i;
      } else if (parsed.verb == nullptr) {
        parsed.verb = FindVerb(table_, word);
      } else {
        parsed.positionals.push_back(word);
      }
    }
    return parsed;
  }

  const FlagInfo* FindFlag(const VerbInfo* verb, const std::string& name) const {
    for (const VerbInfo* part : {verb, &table_.front()}) {
      if (part == nullptr) continue;
      for (const FlagInfo& flag : part->flags) {
        if (std::find(flag.names.begin(), flag.names.end(), name) != flag.names.end()) return &flag;
      }
    }
    return nullptr;
  }

  std::vector<Candidate> Flags(const VerbInfo* verb) const {
    std::vector<Candidate> words;
    for (const VerbInfo* part : {verb, &table_.front()}) {
      if (part == nullptr) continue;
      for (const FlagInfo& flag : part->flags) {
        for (const std::string& name : flag.names) {
          const bool there = std::any_of(words.begin(), words.end(),
                                         [&](const Candidate& word) { return word.value == name; });
          if (!flag.positional && absl::StartsWith(name, "--") && !there) {
            words.push_back({name, flag.description});
          }
        }
      }
    }
    return words;
  }

  Completion Positional(const VerbInfo& verb, const Parsed& parsed, const std::string& current) const {
    std::size_t left = parsed.positionals.size();
    for (const FlagInfo& flag : verb.flags) {
      if (!flag.positional) continue;
      if (left-- == 0) return Values(flag.type, parsed, current);
    }
    return {};
  }

  /// Completes a list: behind its last comma come the words that it lacks.
  static void GoOnWithList(const std::string& current, std::vector<Candidate>& words) {
    const std::size_t comma = current.rfind(',');
    if (comma == std::string::npos) return;
    const std::vector<std::string> there = absl::StrSplit(current.substr(0, comma), ',');
    words.erase(std::remove_if(words.begin(), words.end(),
                               [&](const Candidate& word) {
                                 return std::find(there.begin(), there.end(), word.value) != there.end();
                               }),
                words.end());
    for (Candidate& word : words) word.value = current.substr(0, comma + 1) + word.value;
  }

  std::vector<Candidate> Keys(const VerbInfo* verb) const {
    std::vector<Candidate> words;
    if (verb == nullptr) return words;
    for (const std::string& key : verb->name == "ps" ? SessionKeys() : DeviceKeys()) words.push_back({key});
    return words;
  }

  /// `current`: the value as far as it is written.
  Completion Values(const std::string& type, const Parsed& parsed, const std::string& current) const {
    if (type == "DIR") return {.also = Completion::Also::kDirectories};
    if (type == "FILE") return {.also = Completion::Also::kFiles};
    Completion completion;
    if (type == "LEASE") completion.words = live_.leases();
    if (type == "LIST") completion.words = live_.gpus();
    if (type == "KEY,KEY") completion.words = Keys(parsed.verb);
    if (type == "csv[,noheader][,nounits]") completion.words = {{"csv"}, {"noheader"}, {"nounits"}};
    if (type == "LIST" || absl::StrContains(type, ",")) GoOnWithList(current, completion.words);
    if (type == "DTYPE") {
      for (const char* dtype : {"float", "double", "half", "bfloat16", "int32", "int64"}) {
        completion.words.push_back({dtype});
      }
    }
    if (type == "LEASE|GPU") {
      completion.words = live_.leases();
      for (const Candidate& gpu : live_.gpus()) completion.words.push_back(gpu);
    }
    if (type == "DEVICE" || type == "GPU-DEVICE") {
      const bool of_lease = type == "GPU-DEVICE" && !parsed.positionals.empty();
      completion.words = live_.devices(of_lease ? parsed.positionals.front() : parsed.lease);
      if (type == "DEVICE") completion.words.push_back({"CPU:0"});
    }
    if (type == "VERB") {
      for (const VerbInfo& verb : table_) {
        if (!verb.name.empty()) completion.words.push_back({verb.name, verb.description});
      }
    }
    if (type == "OP") {
      for (const char* op : {"MatMul", "AddN", "Cast", "Identity", "Shape", "Size", "Rank", "_EagerConst"}) {
        completion.words.push_back({op});
      }
    }
    // A type that lists its values in small letters: "auto|always|never".
    if (absl::StrContains(type, "|") && type != "LEASE|GPU") {
      for (const std::string& word : std::vector<std::string>(absl::StrSplit(type, '|'))) {
        completion.words.push_back({word});
      }
    }
    return completion;
  }

  const std::vector<VerbInfo> table_;
  const LiveNames& live_;
};

}  // namespace

Completion Complete(const CLI::App& app, const std::vector<std::string>& words, const LiveNames& live) {
  return Completer(app, live).Run(words.empty() ? std::vector<std::string>{""} : words);
}

std::string FormatCompletion(const Completion& completion, std::string_view shell) {
  std::string text;
  for (const Candidate& word : completion.words) {
    const std::string value = Printable(word.value);
    const std::string description = Printable(word.description);
    if (shell == "zsh") {
      absl::StrAppend(&text, absl::StrReplaceAll(value, {{":", "\\:"}}), description.empty() ? "" : ":",
                      description, "\n");
    } else {
      absl::StrAppend(&text, value, description.empty() ? "" : "\t", description, "\n");
    }
  }
  switch (completion.also) {
    case Completion::Also::kFiles:
      return text + ":files\n";
    case Completion::Also::kDirectories:
      return text + ":directories\n";
    case Completion::Also::kCommand:
      return text + ":command\n";
    case Completion::Also::kNothing:
      break;
  }
  return text + ":nothing\n";
}

}  // namespace lgpu::cli
