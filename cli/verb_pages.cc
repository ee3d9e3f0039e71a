#include "cli/verb_pages.h"

#include "cli/commands/commands.h"

namespace lgpu::cli {
namespace {

enum Group { kEveryDay, kLookDeeper, kAdministration };

VerbPage PageOfLgpu() {
  return {.description =
              "lgpu shows and changes leases of the daemon lgpud. A lease gives programs logical GPUs, each "
              "with a hard memory limit. The answer goes to stdout, notes and errors go to stderr.",
          .examples = {{"lgpu ls", "the GPUs and your leases"},
                       {"lgpu run -m 2GiB -- python3 train.py", "a program inside a limit of 2 GiB"},
                       {"lgpu create -m 4GiB --name train", "a lease that stays until it is removed"},
                       {"lgpu doctor", "daemon, rights, GPUs and a self-test"}}};
}

}  // namespace

std::array<VerbGroup, 3> VerbGroups() {
  std::array<VerbGroup, 3> groups = {{{"Every day", {}}, {"Look deeper", {}}, {"Administration", {}}}};
#define LGPU_ADD_VERB(name, Word, group) groups[group].verbs.push_back(name);
  LGPU_VERBS(LGPU_ADD_VERB)
#undef LGPU_ADD_VERB
  return groups;
}

std::optional<VerbPage> FindVerbPage(std::string_view verb) {
  if (verb.empty()) return PageOfLgpu();
#define LGPU_PAGE_OF_VERB(name, Word, group) \
  if (verb == (name)) return Word##Page();
  LGPU_VERBS(LGPU_PAGE_OF_VERB)
#undef LGPU_PAGE_OF_VERB
  return std::nullopt;
}

}  // namespace lgpu::cli
