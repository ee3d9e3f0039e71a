#ifndef LGPU_CLIENT_HOOK_REFUSE_H_
#define LGPU_CLIENT_HOOK_REFUSE_H_

#include <string>

namespace lgpu::hook {

/// Ends the hook: the engine starts no container. The standard error and the machine's log have the sentence;
/// crun discards the first.
[[noreturn]] void Refuse(const std::string& sentence);

/// The text of errno for people.
std::string Reason(int cause);

}  // namespace lgpu::hook

#endif  // LGPU_CLIENT_HOOK_REFUSE_H_
