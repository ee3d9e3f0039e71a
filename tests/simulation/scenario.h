#ifndef LGPU_TESTS_SIMULATION_SCENARIO_H_
#define LGPU_TESTS_SIMULATION_SCENARIO_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "daemon/server/config.h"
#include "tests/simulation/client_program.h"
#include "tests/simulation/daemon_program.h"
#include "tests/simulation/hook_program.h"
#include "tests/simulation/machine/processes.h"
#include "tests/simulation/machine/scheduler.h"
#include "tests/simulation/turn_taker.h"

namespace lgpu::simulation {

/// A Scenario is a simulated machine with one card, an lgpud that is killed and started again, leases of some
/// users, and programs that use them and die. The seed decides about all of it. It is never destroyed: what a
/// killed process had stays as it was.
class Scenario {
 public:
  struct Options {
    std::uint64_t seed = 1;
    std::chrono::nanoseconds length{};  // of simulated time; zero: as many strikes as the seed chooses
    std::string folder;                 // for lgpud's files; empty at the start
    std::uint64_t most_strikes = ~std::uint64_t{0};  // then the end begins
    /// 20 programs that are at work all the time, or hardly ever.
    enum class Pace { kOfTheSeed, kQuiet, kBusy } pace = Pace::kOfTheSeed;
  };
  struct Counts {
    std::uint64_t strikes = 0, daemon_deaths = 0, daemon_stops = 0, client_deaths = 0, clients = 0,
                  grants = 0, waits = 0, refusals = 0, hook_runs = 0, suspensions = 0, checks = 0;
  };
  Scenario(const Options& options, Scheduler& scheduler);

  /// Everything from the first start of lgpud until all memory is back. A failure ends the program.
  void Run();
  const Counts& counts() const { return counts_; }

 private:
  // What a process that was killed had is never destroyed: its threads were in the middle of something.
  struct Client {
    ClientProgram* program = nullptr;
    MachineProcess* process = nullptr;
  };
  struct Hook {
    HookProgram* program = nullptr;
    MachineProcess* process = nullptr;
  };
  struct Turner {
    TurnTaker* program = nullptr;
    MachineProcess* parent = nullptr;  // null: the program moves itself
    MachineProcess* process = nullptr;
  };
  struct LeaseOfUser {
    std::string name;
    uid_t user = 0;
    bool has_hook = false;   // its programs hold memory and sleep
    bool has_turns = false;  // its program gives the card up for others
  };
  static constexpr uid_t kFirstUser = 100'000;  // no machine has users of these numbers
  std::uint64_t Below(std::uint64_t bound) { return random_() % bound; }
  bool OneIn(std::uint64_t n) { return Below(n) == 0; }
  /// How long a request may take that is answered now and took so long.
  Time MostTime(Time took, const GrowRequest& request) const;
  /// Nothing has disturbed the machine for so long.
  bool IsCalm(Time time) const;
  /// Some threads of the processes that `stops` names stand still for a while.
  void StandStill(const std::function<bool(const MachineProcess&)>& stops);
  [[noreturn]] void Fail(const std::string& what);
  void Sleep(std::chrono::nanoseconds time);
  /// As Sleep; lgpud is started again meanwhile where the time is long.
  void Pass(Time time);
  /// Starts an lgpud and, with `waits`, waits until it serves.
  void StartDaemon(bool waits);
  void AwaitDaemon();
  bool Serves() const { return daemon_process_->is_alive && daemon_->serves(); }
  void MakeLeases();
  void SpawnClient();
  /// One for each lease that has a hook.
  void SpawnHooks();
  void MakeTurnLeases();
  /// One for each lease that has turns.
  void SpawnTurners();
  Turner StartTurner(const LeaseOfUser& lease);
  void StrikeTurner();
  Bytes OfTurnersOnCard() const;
  /// Where all give the card up, each has it after a bounded time.
  void CheckTurns();
  void LetGo(const std::string& lease, std::uint64_t percent) const;
  void KillPrograms(const std::string& lease) const;
  std::vector<Client> ProgramsOf(const std::string& lease) const;
  Bytes HeldByPrograms(const std::string& lease) const;
  void DropDead();
  /// One random thing that happens to lgpud or to a program.
  void Strike();
  void StrikeDaemon();
  void StrikeClient();
  void Resize();
  /// In one of its next steps the process does that.
  void InAStepOf(MachineProcess& process, std::uint64_t at_most, const std::function<void()>& act);
  /// In one of its next steps the calling thread sees lgpud die, and stands still until the next one serves.
  void LoseDaemonHere(std::uint64_t at_most);
  void LetStandingGoOn();
  /// The calling thread stands still for a moment, too short to count as a disturbance.
  void StandBriefly();
  /// What may happen to a program that has connected to lgpud: it dies, or the thread stands still.
  void StrikeConnected(MachineProcess& process);
  /// The same where memory has come.
  void StrikeGranted();
  /// The same where memory is about to be given back.
  void StrikeReturning();
  void HitDaemon(bool is_stop);
  /// The calling thread of a program stands still for up to so long after this step.
  void StandHere(Time at_most);
  /// Lets all programs rest, and compares what they hold with the ledger.
  void Settle();
  void AwaitRest();
  /// The first difference; empty: none.
  std::string Difference();
  void End();
  std::string DescribeTurners() const;
  void AwaitMemoryBack();
  void RemoveLeases();
  void GrantWholeCard();
  /// After every change of the ledger.
  void Check();
  /// Now and then.
  void CheckBounds();

  const Options options_;
  Scheduler& scheduler_;
  std::mt19937_64 random_;
  daemon::Config config_;
  Bytes card_;
  std::uint64_t daemon_strikes_ = 0;  // of 10
  bool has_bad_disk_ = false;         // most strikes are single writes that fail
  static constexpr Bytes kUnit = 2_MiB;
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};  // a step of a MachineProcess
  std::vector<LeaseOfUser> leases_;
  bool gives_way_ = false;                                                 // some leases have release hooks
  enum class Turns { kNone, kAmongOthers, kAlone } turns_ = Turns::kNone;  // leases that are preemptible
  std::unique_ptr<DaemonProgram> daemon_;
  MachineProcess* daemon_process_ = nullptr;
  bool had_faults_ = false;  // the present lgpud
  bool is_resting_ = false;  // lgpud does not die now
  std::vector<std::unique_ptr<DaemonProgram>> past_daemons_;
  std::vector<Client> clients_;
  std::vector<Hook> hooks_;
  std::vector<Turner> turners_;
  // When lgpud was away last, or a program stopped, or threads stood still; max: lgpud is away now.
  Time disturbed_at_{0};
  Time stood_at_{0};                     // threads were made to stand still until then
  std::vector<std::uint32_t> standing_;  // threads that stand still until an lgpud serves
  std::optional<Time> ahead_since_;      // the ledger counts memory that is not there
  std::optional<Time> leaving_since_;    // memory is on its way back, and none has come
  Bytes leaving_;
  std::uint64_t trims_ignored_ = 0;  // of the present lgpud
  Counts counts_;
};

/// Says on standard error what went wrong, with the seed and the step.
void TellFailure(const Scheduler& scheduler, std::uint64_t seed, const std::string& what);

}  // namespace lgpu::simulation

#endif  // LGPU_TESTS_SIMULATION_SCENARIO_H_
