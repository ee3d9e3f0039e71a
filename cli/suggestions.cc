#include "cli/suggestions.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "cli/output.h"

namespace lgpu::cli {
namespace {

using Words = std::vector<std::string>;

/// Verbs of docker, systemctl, kubectl, git, nvidia-smi and other tools, each with lgpu's own.
constexpr std::pair<std::string_view, std::string_view> kVerbsOfOthers[] = {{"htop", "top"},
                                                                            {"watch", "ls --watch"},
                                                                            {"smi", "ls"},
                                                                            {"list", "ls"},
                                                                            {"status", "ls"},
                                                                            {"stat", "ls"},
                                                                            {"stats", "ls"},
                                                                            {"gpus", "ls"},
                                                                            {"leases", "ls"},
                                                                            {"devices", "ls"},
                                                                            {"users", "ls --by-user"},
                                                                            {"attach", "exec"},
                                                                            {"start", "run"},
                                                                            {"launch", "run"},
                                                                            {"remove", "rm"},
                                                                            {"delete", "rm"},
                                                                            {"del", "rm"},
                                                                            {"stop", "rm"},
                                                                            {"kill", "rm"},
                                                                            {"release", "rm"},
                                                                            {"add", "create"},
                                                                            {"new", "create"},
                                                                            {"alloc", "create"},
                                                                            {"make", "create"},
                                                                            {"show", "inspect"},
                                                                            {"info", "inspect"},
                                                                            {"describe", "inspect"},
                                                                            {"get", "inspect"},
                                                                            {"set", "resize"},
                                                                            {"update", "resize"},
                                                                            {"limit", "resize"},
                                                                            {"log", "events"},
                                                                            {"logs", "events"},
                                                                            {"journal", "events"},
                                                                            {"check", "doctor"},
                                                                            {"diagnose", "doctor"},
                                                                            {"test", "verify"},
                                                                            {"processes", "ps"}};

/// Flags of other tools, each with lgpu's own; used where the verb has that flag.
constexpr std::pair<std::string_view, std::string_view> kFlagsOfOthers[] = {
    {"--mem", "--memory"}, {"--limit", "--memory"}, {"--gpu", "--gpus"},    {"--force", "--if-exists"},
    {"-f", "--if-exists"}, {"--tail", "--follow"},  {"--watch", "--follow"}};

/// Flags that end programs or leases: a typo never leads to one.
constexpr std::string_view kDestructive[] = {"--kill", "--all", "--yes"};

/// As a shell reads it as one word.
std::string Quoted(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
  const std::string safe = Printable(word);
  if (!safe.empty() && safe.find_first_not_of(kPlain) == std::string::npos) return safe;
  return "'" + absl::StrReplaceAll(safe, {{"'", "'\\''"}}) + "'";
}

std::string Line(const Words& words) {
  return absl::StrJoin(words, " ", [](std::string* out, const std::string& word) { *out += Quoted(word); });
}

std::size_t Allowed(std::string_view word) { return word.size() <= 3 ? 1 : 2; }

class Explainer {
 public:
  Explainer(const std::vector<VerbInfo>& table, const Words& words, const std::optional<Words>& command)
      : table_(table), words_(words), command_(command) {}

  WrongLine Run(std::string_view parser_says) {
    for (std::size_t i = 0; i < words_.size(); ++i) {
      const std::string& word = words_[i];
      std::optional<WrongLine> wrong;
      if (word.size() > 1 && word[0] == '-') {
        const FlagInfo* flag = FindFlag(word);
        if (flag == nullptr) wrong = UnknownFlag(word);
        if (flag != nullptr && verb_ == nullptr && !IsOfEveryVerb(*flag)) early_flag_ = word;
        if (flag != nullptr && TakesNextWord(*flag, word)) ++i;
      } else if (verb_ == nullptr) {
        verb_ = FindVerb(word);
        if (verb_ == nullptr) wrong = UnknownVerb(word);
      } else if (++positionals_ > MaxPositionals()) {
        wrong = UnexpectedWord(i);
      }
      if (wrong) return *wrong;
    }
    if (verb_ == nullptr) return NoVerb(parser_says);
    if (!early_flag_.empty()) return MisplacedFlag();
    return {verb_->takes_command, std::string(parser_says), Help()};
  }

 private:
  const VerbInfo* FindVerb(const std::string& word) const {
    const auto found = std::find_if(table_.begin() + 1, table_.end(),
                                    [&](const VerbInfo& verb) { return verb.name == word; });
    return found == table_.end() ? nullptr : &*found;
  }

  const FlagInfo* FindFlag(const std::string& word) const {
    const std::string name = word[1] == '-' ? word.substr(0, word.find('=')) : word.substr(0, 2);
    for (const VerbInfo& verb : table_) {
      // Before the verb is known, a flag may belong to any verb.
      if (verb_ != nullptr && !verb.name.empty() && &verb != verb_) continue;
      for (const FlagInfo& flag : verb.flags) {
        if (std::find(flag.names.begin(), flag.names.end(), name) != flag.names.end()) return &flag;
      }
    }
    return nullptr;
  }

  bool IsOfEveryVerb(const FlagInfo& flag) const {
    const std::vector<FlagInfo>& flags = table_.front().flags;
    return std::any_of(flags.begin(), flags.end(),
                       [&flag](const FlagInfo& known) { return known.names == flag.names; });
  }

  static bool TakesNextWord(const FlagInfo& flag, const std::string& word) {
    const bool has_value = word[1] == '-' ? word.find('=') != std::string::npos : word.size() > 2;
    return !flag.type.empty() && !flag.optional_value && !has_value;
  }

  std::size_t MaxPositionals() const {
    std::size_t count = 0;
    for (const FlagInfo& flag : verb_->flags) {
      if (flag.positional && flag.repeated) return words_.size();
      if (flag.positional) ++count;
    }
    return count;
  }

  std::string Help() const {
    return verb_ == nullptr ? "lgpu --help" : absl::StrCat("lgpu ", verb_->name, " --help");
  }

  WrongLine UnknownFlag(const std::string& word) const {
    const std::string name = word.substr(0, word.find('='));
    std::string best;
    std::size_t least = Allowed(std::string_view(name).substr(name.starts_with("--") ? 2 : 1)) + 1;
    const auto ours = std::find_if(std::begin(kFlagsOfOthers), std::end(kFlagsOfOthers),
                                   [&](const auto& pair) { return pair.first == name; });
    for (const VerbInfo* part : {verb_, &table_.front()}) {
      if (part == nullptr) continue;
      for (const FlagInfo& flag : part->flags) {
        for (const std::string& known : flag.names) {
          const bool is_destructive = std::ranges::find(kDestructive, known) != std::end(kDestructive);
          if (known.size() <= 2 || is_destructive) continue;
          const bool is_ours = ours != std::end(kFlagsOfOthers) && ours->second == known;
          const std::size_t distance = is_ours ? 0 : EditDistance(name, known);
          if (distance < least) {
            least = distance;
            best = known;
          }
        }
      }
    }
    return {verb_ != nullptr && verb_->takes_command,
            absl::StrCat(verb_ == nullptr ? "lgpu" : "lgpu " + verb_->name, " has no flag ", Printable(name)),
            best.empty() ? Help() : best};
  }

  WrongLine MisplacedFlag() const {
    if (FindFlag(early_flag_) == nullptr) return UnknownFlag(early_flag_);
    return {verb_->takes_command,
            absl::StrCat(Printable(early_flag_), " is a flag of ", verb_->name, " and stands before it"),
            absl::StrCat("lgpu ", verb_->name, " ", Quoted(early_flag_), " ...")};
  }

  WrongLine UnknownVerb(const std::string& word) const {
    const std::string near = SuggestForVerb(word, table_);
    std::string advice = near.empty() ? "lgpu help" : "lgpu " + near;
    if (command_ && near.empty()) advice = WithCommand({});
    return {false, absl::StrCat("lgpu has no verb ", Printable(word)), advice};
  }

  WrongLine UnexpectedWord(std::size_t at) const {
    const std::string& word = words_[at];
    if (verb_->takes_command && !command_) {
      Words before(words_.begin(), words_.begin() + static_cast<std::ptrdiff_t>(at));
      Words behind(words_.begin() + static_cast<std::ptrdiff_t>(at), words_.end());
      return {verb_->takes_command,
              absl::StrCat("lgpu ", verb_->name, " needs -- before the command ", Printable(word)),
              absl::StrCat("lgpu ", Line(before), " -- ", Line(behind))};
    }
    const bool takes_lease = std::any_of(verb_->flags.begin(), verb_->flags.end(), [](const FlagInfo& flag) {
      return std::find(flag.names.begin(), flag.names.end(), "--lease") != flag.names.end();
    });
    return {verb_->takes_command, TooManyArguments(word),
            takes_lease ? absl::StrCat("lgpu ", verb_->name, " --lease ", Quoted(word)) : Help()};
  }

  std::string TooManyArguments(const std::string& word) const {
    const std::size_t most = MaxPositionals();
    const std::string takes = absl::StrCat("lgpu ", verb_->name, " takes ");
    if (most == 0) return absl::StrCat(takes, "no arguments, but you gave it ", Printable(word));
    return absl::StrCat(takes, most, most == 1 ? " argument; " : " arguments; ", Printable(word),
                        " is one too many");
  }

  WrongLine NoVerb(std::string_view parser_says) const {
    if (!command_) return {false, std::string(parser_says), Help()};
    return {false, "lgpu needs a verb before --", WithCommand(words_)};
  }

  /// "lgpu run FLAGS -- COMMAND"
  std::string WithCommand(const Words& flags) const {
    Words line = {"run"};
    line.insert(line.end(), flags.begin(), flags.end());
    return absl::StrCat("lgpu ", Line(line), " -- ", Line(*command_));
  }

  const std::vector<VerbInfo>& table_;
  const Words& words_;
  const std::optional<Words>& command_;
  const VerbInfo* verb_ = nullptr;
  std::string early_flag_;  // of one verb alone, before any verb
  std::size_t positionals_ = 0;
};

}  // namespace

std::size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> cost(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = i + j;
        continue;
      }
      const std::size_t replaced = cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
      }
    }
  }
  return cost[a.size()][b.size()];
}

std::string SuggestForVerb(std::string_view word, const std::vector<VerbInfo>& table) {
  for (const auto& [theirs, ours] : kVerbsOfOthers) {
    if (word == theirs) return std::string(ours);
  }
  std::string best;
  // A long word is not compared, which bounds the cost.
  std::size_t least = word.size() > 32 ? 0 : Allowed(word) + 1;
  for (const VerbInfo& verb : table) {
    const std::size_t distance = verb.name.empty() || least == 0 ? least : EditDistance(word, verb.name);
    if (distance < least) {
      least = distance;
      best = verb.name;
    }
  }
  return best;
}

WrongLine ExplainWrongLine(const std::vector<VerbInfo>& table, const std::vector<std::string>& words,
                           const std::optional<std::vector<std::string>>& command,
                           std::string_view parser_says) {
  return Explainer(table, words, command).Run(parser_says);
}

}  // namespace lgpu::cli
