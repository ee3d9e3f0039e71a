#ifndef LGPU_TESTS_SIMULATION_MACHINE_SCHEDULER_H_
#define LGPU_TESTS_SIMULATION_MACHINE_SCHEDULER_H_

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace lgpu::simulation {

struct MachineProcess;

/// Since the start of the simulated machine.
using Time = std::chrono::nanoseconds;

/// A SimulatedThread is a real thread that runs only while it has the baton.
struct SimulatedThread {
  enum class State { kRunnable, kBlocked, kEnded, kDead };  // dead: its process was killed

  std::uint32_t number = 0;
  std::string name;
  MachineProcess* process = nullptr;
  State state = State::kRunnable;
  const char* waits_for = "";  // of a blocked one
  const void* address = nullptr;
  std::function<bool()> is_ready;  // of one that waits for descriptors
  std::optional<Time> deadline;
  bool timed_out = false;
  Time stands_still_until{0};
  std::uint64_t acts_in = 0;     // steps of this thread; 0: never
  std::function<void()> action;  // then
  std::atomic<std::uint32_t> baton{0};
  pthread_t real{};
  bool is_detached = false;
  void* (*body)(void*) = nullptr;
  void* argument = nullptr;
};

/// A Scheduler decides every next step of a simulated machine: which thread runs, and how time passes. Its
/// threads are real ones of this program; one at a time has the baton. They give it away in the calls of libc
/// that libc_*.cc define in front of the real ones. When all threads wait, time jumps to the next deadline.
/// The same seed gives the same steps. One Scheduler lives in a program.
class Scheduler {
 public:
  struct Options {
    std::uint64_t seed = 1;
    std::uint64_t most_steps = ~std::uint64_t{0};  // the simulation ends after this many
    std::FILE* trace = nullptr;                    // a line for each step
  };

  /// Null: no simulation runs, or the calling thread is none of its threads.
  static Scheduler* Here();
  static SimulatedThread& Self();

  explicit Scheduler(const Options& options);
  /// Makes the calling thread a thread of the simulation, the first one, in `process`.
  void Enter(MachineProcess& process);
  /// The calling thread is none of the simulation any more, whose other threads stay where they are.
  static void Exit();

  /// One step of the calling thread: time passes a little, the thread may lose the baton, or its process dies
  /// here. `what` and the numbers are the step's line in the trace.
  void Step(const char* what, std::uint64_t a = 0, std::uint64_t b = 0);
  /// Whether the process of the calling thread dies in its next step.
  bool DiesNext() const;
  /// Gives the baton away until Wake of `address`, until `is_ready`, or until the deadline: then false.
  bool Block(const char* why, const void* address, std::function<bool()> is_ready,
             std::optional<Time> deadline);
  /// Makes one thread that waits for `address` runnable, which the seed chooses; false: there is none.
  bool WakeOne(const void* address);
  void WakeAll(const void* address);
  /// A descriptor may be ready that was not: threads that wait for descriptors look again.
  void DescriptorsChanged();

  /// A new thread of `process`; 0, or the error of pthread_create.
  int StartThread(MachineProcess& process, std::string name, void* (*body)(void*), void* argument,
                  const pthread_attr_t* attributes, pthread_t* real);
  /// Waits for the end of the thread.
  void Join(pthread_t real);
  void Detach(pthread_t real);
  /// Ends all threads of the process where they are. Does not return to a thread of it.
  void KillThreads(MachineProcess& process);
  /// For the calling thread, whose process is dead: gives the baton away for good.
  [[noreturn]] void Leave();
  /// The calling thread runs an event of At.
  bool is_in_event() const { return is_in_event_; }
  /// Whether a thread of that number lives.
  bool Lives(std::uint32_t number) const { return by_number_.contains(number); }
  /// Null: none lives.
  SimulatedThread* Find(std::uint32_t number) const;

  /// One in so many threads of the process does not run again before a time of up to `at_most` from now.
  void StandStill(const MachineProcess& process, std::uint64_t one_in, Time at_most);
  /// Threads of this run stand still now and then.
  bool stalls() const { return stall_one_in_ != 0; }
  Time now() const { return now_; }
  std::uint64_t steps() const { return steps_; }
  /// Of all steps so far: equal for equal runs.
  std::uint64_t trace_hash() const { return hash_; }
  /// Runs `event` at that time, on whichever thread has the baton.
  void At(Time time, std::function<void()> event);
  /// A number below `bound`, from the seed.
  std::uint64_t Below(std::uint64_t bound) { return random_() % bound; }
  bool OneIn(std::uint64_t n) { return Below(n) == 0; }
  /// Into the trace, without a step.
  void Note(std::string_view text);
  /// Every live thread, with what it waits for.
  std::string DescribeThreads() const;
  /// Called where no thread can ever run again, and where the steps are used up. Must not return.
  std::function<void(const std::string& why)> on_end;
  /// Calls `check`, which the machine does not see: no time passes and no other thread runs.
  void WithoutSteps(const std::function<void()>& check);

 private:
  static void* Trampoline(void* thread);
  static void EndOfThread(void* thread);
  void Trace(const char* what, std::uint64_t a, std::uint64_t b);
  void PassTime(Time by);
  void RunDue();
  void JumpToNextDeadline();
  SimulatedThread* ChooseNext();
  void SwitchTo(SimulatedThread& next);
  void GiveUp();
  /// Waits for the real end of the thread that had the baton last, where it ends.
  void AwaitLeaving();
  void Forget(SimulatedThread& thread);
  [[noreturn]] void End(const std::string& why);

  const Options options_;
  std::mt19937_64 random_;
  std::uint64_t switch_one_in_ = 1;
  std::uint64_t stall_one_in_ = 0;  // 0: never
  Time now_{0};
  Time next_due_ = Time::max();  // no deadline and no event is before it
  std::uint64_t steps_ = 0;
  std::uint64_t hash_ = 14695981039346656037u;
  std::uint32_t last_number_ = 0;
  std::vector<SimulatedThread*> threads_;  // live ones, in the order of their numbers
  std::map<std::uint32_t, std::unique_ptr<SimulatedThread>> by_number_;
  std::vector<std::unique_ptr<SimulatedThread>> dead_;
  std::multimap<Time, std::function<void()>> events_;
  std::vector<SimulatedThread*> runnable_;  // of ChooseNext, for its memory
  std::vector<pthread_t> to_join_;          // threads that have left or are about to
  long leaving_ = 0;                        // the real thread that had the baton last and ends; 0: none
  bool is_checking_ = false;
  bool is_in_event_ = false;
};

}  // namespace lgpu::simulation

#endif  // LGPU_TESTS_SIMULATION_MACHINE_SCHEDULER_H_
