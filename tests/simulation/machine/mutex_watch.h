#ifndef LGPU_TESTS_SIMULATION_MACHINE_MUTEX_WATCH_H_
#define LGPU_TESTS_SIMULATION_MACHINE_MUTEX_WATCH_H_

#include <functional>

namespace lgpu::simulation {

/// Calls `check` after every time that the mutex is given up which `look` locks first. The state that the
/// mutex guards is then as other threads see it, and no other thread runs during the check. One mutex at a
/// time.
void WatchMutex(const std::function<void()>& look, std::function<void()> check);
void StopWatchingMutex();

}  // namespace lgpu::simulation

#endif  // LGPU_TESTS_SIMULATION_MACHINE_MUTEX_WATCH_H_
