#ifndef LGPU_TESTS_CHAOS_TURN_ATTACK_H_
#define LGPU_TESTS_CHAOS_TURN_ATTACK_H_

#include <sys/types.h>

namespace lgpu::testing {

/// Eight programs of the user `attacker` and one of this process's user each want the whole GPU without an
/// end (--preemptible=always), until they had so many turns together. Prints how many the honest program had,
/// and how long it waited for one. False: it had less than a third of them, or failed. Root only.
bool RunTurnAttack(uid_t attacker, int turns);

}  // namespace lgpu::testing

#endif  // LGPU_TESTS_CHAOS_TURN_ATTACK_H_
