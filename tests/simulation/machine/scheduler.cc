#include "tests/simulation/machine/scheduler.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <utility>

#include "tests/simulation/machine/processes.h"
#include "tests/simulation/machine/real_calls.h"

namespace lgpu::simulation {
namespace {

constexpr Time kStepTime{500};

thread_local SimulatedThread* self = nullptr;
Scheduler* scheduler = nullptr;
pthread_key_t end_key;

long Futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value) {
  LGPU_REAL(syscall);
  return real(SYS_futex, &word, operation, value, nullptr, nullptr, 0);
}

void Post(SimulatedThread& thread) {
  thread.baton.store(1, std::memory_order_release);
  Futex(thread.baton, FUTEX_WAKE_PRIVATE, 1);
}

// Without the ends of thread-local objects: the process was killed. The next real thread may have this one's
// place, and its keys begin without values.
[[noreturn]] void ExitThread() {
  for (pthread_key_t key = 0; key < PTHREAD_KEYS_MAX; ++key) {
    if (pthread_getspecific(key) != nullptr) pthread_setspecific(key, nullptr);
  }
  LGPU_REAL(syscall);
  while (true) real(SYS_exit, 0);
}

void AwaitBaton(SimulatedThread& thread) {
  while (thread.baton.exchange(0, std::memory_order_acquire) == 0) Futex(thread.baton, FUTEX_WAIT_PRIVATE, 0);
  if (thread.state == SimulatedThread::State::kDead) ExitThread();
}

}  // namespace

Scheduler* Scheduler::Here() { return self == nullptr ? nullptr : scheduler; }

SimulatedThread& Scheduler::Self() { return *self; }

Scheduler::Scheduler(const Options& options) : options_(options), random_(options.seed) {
  constexpr std::uint64_t kSwitches[] = {2, 4, 10, 40, 200};
  constexpr std::uint64_t kStalls[] = {0, 0, 3000, 500, 100};
  switch_one_in_ = kSwitches[Below(std::size(kSwitches))];
  stall_one_in_ = kStalls[Below(std::size(kStalls))];
}

void Scheduler::Enter(MachineProcess& process) {
  pthread_key_create(&end_key, &EndOfThread);
  auto thread = std::make_unique<SimulatedThread>();
  thread->number = ++last_number_;
  thread->name = "first";
  thread->process = &process;
  thread->real = pthread_self();
  threads_.push_back(thread.get());
  scheduler = this;
  self = thread.get();
  by_number_[thread->number] = std::move(thread);
}

void Scheduler::Exit() { self = nullptr; }

void Scheduler::Trace(const char* what, std::uint64_t a, std::uint64_t b) {
  const auto mix = [this](std::uint64_t value) { hash_ = (hash_ ^ value) * 1099511628211u; };
  mix(static_cast<std::uint64_t>(now_.count()));
  mix(self->number);
  for (const char* c = what; *c != '\0'; ++c) mix(static_cast<unsigned char>(*c));
  mix(a);
  mix(b);
  if (options_.trace != nullptr) {
    std::fprintf(options_.trace, "%llu %lld %d/%u %s %llu %llu\n", static_cast<unsigned long long>(steps_),
                 static_cast<long long>(now_.count()), self->process->pid, self->number, what,
                 static_cast<unsigned long long>(a), static_cast<unsigned long long>(b));
  }
}

void Scheduler::Note(std::string_view text) {
  for (const char c : text) hash_ = (hash_ ^ static_cast<unsigned char>(c)) * 1099511628211u;
  if (options_.trace == nullptr) return;
  std::fprintf(options_.trace, "%llu %lld -- %.*s\n", static_cast<unsigned long long>(steps_),
               static_cast<long long>(now_.count()), static_cast<int>(text.size()), text.data());
}

bool Scheduler::DiesNext() const { return self->process->steps + 1 >= self->process->dies_at_step; }

void Scheduler::Step(const char* what, std::uint64_t a, std::uint64_t b) {
  if (is_checking_) return;
  ++steps_;
  Trace(what, a, b);
  if (steps_ > options_.most_steps) End("the steps of this run are used up");
  if (++self->process->steps >= self->process->dies_at_step) Processes::Get().Kill(*self->process);
  if (self->process->steps == self->process->acts_at_step) self->process->action();
  if (self->acts_in != 0 && --self->acts_in == 0) self->action();
  PassTime(kStepTime);
  if (self->state == SimulatedThread::State::kDead) Leave();
  if (stall_one_in_ != 0 && OneIn(stall_one_in_)) {
    const Time pause(OneIn(6) ? Below(700'000'000) : Below(5'000'000));
    Block("its turn on the CPU", nullptr, {}, now_ + pause);
  } else if (OneIn(switch_one_in_) || self->process->is_stopped || self->stands_still_until > now_) {
    GiveUp();
  }
}

void Scheduler::WithoutSteps(const std::function<void()>& check) {
  is_checking_ = true;
  check();
  is_checking_ = false;
}

void Scheduler::PassTime(Time by) {
  now_ += by;
  if (now_ >= next_due_) RunDue();
}

void Scheduler::RunDue() {
  while (!events_.empty() && events_.begin()->first <= now_) {
    const std::function<void()> event = std::move(events_.begin()->second);
    events_.erase(events_.begin());
    is_in_event_ = true;
    event();
    is_in_event_ = false;
  }
  next_due_ = events_.empty() ? Time::max() : events_.begin()->first;
  for (SimulatedThread* thread : threads_) {
    if (thread->state != SimulatedThread::State::kBlocked || !thread->deadline) continue;
    if (*thread->deadline <= now_) {
      thread->timed_out = true;
      thread->state = SimulatedThread::State::kRunnable;
    } else {
      next_due_ = std::min(next_due_, *thread->deadline);
    }
  }
}

void Scheduler::At(Time time, std::function<void()> event) {
  events_.emplace(time, std::move(event));
  next_due_ = std::min(next_due_, time);
}

void Scheduler::JumpToNextDeadline() {
  Time next = events_.empty() ? Time::max() : events_.begin()->first;
  for (const SimulatedThread* thread : threads_) {
    if (thread->state == SimulatedThread::State::kBlocked && thread->deadline) {
      next = std::min(next, *thread->deadline);
    } else if (thread->state == SimulatedThread::State::kRunnable && !thread->process->is_stopped) {
      next = std::min(next, thread->stands_still_until);
    }
  }
  if (next == Time::max()) End("every thread waits, and nothing will wake one:\n" + DescribeThreads());
  now_ = std::max(now_, next);
  RunDue();
}

SimulatedThread* Scheduler::ChooseNext() {
  while (true) {
    runnable_.clear();
    for (SimulatedThread* thread : threads_) {
      if (thread->state == SimulatedThread::State::kRunnable && !thread->process->is_stopped &&
          thread->stands_still_until <= now_) {
        runnable_.push_back(thread);
      }
    }
    if (!runnable_.empty()) return runnable_[Below(runnable_.size())];
    JumpToNextDeadline();
  }
}

void Scheduler::SwitchTo(SimulatedThread& next) {
  if (&next == self) return;
  SimulatedThread& own = *self;
  Post(next);
  AwaitBaton(own);
  AwaitLeaving();
}

void Scheduler::GiveUp() {
  SimulatedThread* const next = ChooseNext();
  const bool is_dead = self->state == SimulatedThread::State::kDead;
  if (!is_dead && self->state != SimulatedThread::State::kEnded) return SwitchTo(*next);
  LGPU_REAL(syscall);
  leaving_ = real(SYS_gettid);
  Post(*next);
  if (is_dead) ExitThread();
}

// What a real thread frees at its end would change the addresses that others get meanwhile, and with them the
// order of objects in a set by address.
void Scheduler::AwaitLeaving() {
  LGPU_REAL(syscall);
  const long thread = std::exchange(leaving_, 0);
  while (thread != 0 && real(SYS_tgkill, real(SYS_getpid), thread, 0) == 0) real(SYS_sched_yield);
}

bool Scheduler::Block(const char* why, const void* address, std::function<bool()> is_ready,
                      std::optional<Time> deadline) {
  if (is_checking_) End(std::string("a check would wait for ") + why);
  self->state = SimulatedThread::State::kBlocked;
  self->waits_for = why;
  self->address = address;
  self->is_ready = std::move(is_ready);
  self->deadline = deadline;
  self->timed_out = false;
  if (deadline) next_due_ = std::min(next_due_, *deadline);
  GiveUp();
  self->address = nullptr;
  self->is_ready = nullptr;
  return !self->timed_out;
}

bool Scheduler::WakeOne(const void* address) {
  std::size_t found = 0;
  SimulatedThread* chosen = nullptr;
  for (SimulatedThread* thread : threads_) {
    if (thread->state != SimulatedThread::State::kBlocked || thread->address != address) continue;
    if (OneIn(++found)) chosen = thread;
  }
  if (chosen == nullptr) return false;
  chosen->state = SimulatedThread::State::kRunnable;
  return true;
}

void Scheduler::WakeAll(const void* address) {
  for (SimulatedThread* thread : threads_) {
    if (thread->state == SimulatedThread::State::kBlocked && thread->address == address) {
      thread->state = SimulatedThread::State::kRunnable;
    }
  }
}

void Scheduler::DescriptorsChanged() {
  for (SimulatedThread* thread : threads_) {
    if (thread->state == SimulatedThread::State::kBlocked && thread->is_ready && thread->is_ready()) {
      thread->state = SimulatedThread::State::kRunnable;
    }
  }
}

// The baton is given away when the thread's own objects have ended: after those of C++, which come before the
// values of keys.
void Scheduler::EndOfThread(void* thread) {
  Scheduler& here = *scheduler;
  SimulatedThread& own = *static_cast<SimulatedThread*>(thread);
  own.state = SimulatedThread::State::kEnded;
  here.WakeAll(&own);
  std::erase(here.threads_, &own);
  if (own.is_detached) here.dead_.push_back(std::move(here.by_number_.extract(own.number).mapped()));
  here.GiveUp();
  self = nullptr;
}

void* Scheduler::Trampoline(void* thread) {
  SimulatedThread& own = *static_cast<SimulatedThread*>(thread);
  AwaitBaton(own);
  scheduler->AwaitLeaving();
  self = &own;
  pthread_setspecific(end_key, &own);
  return own.body(own.argument);
}

int Scheduler::StartThread(MachineProcess& process, std::string name, void* (*body)(void*), void* argument,
                           const pthread_attr_t* attributes, pthread_t* real_thread) {
  auto thread = std::make_unique<SimulatedThread>();
  thread->name = std::move(name);
  thread->process = &process;
  thread->body = body;
  thread->argument = argument;
  LGPU_REAL(pthread_create);
  LGPU_REAL_AS(pthread_join, real_join);
  for (const pthread_t left : std::exchange(to_join_, {})) real_join(left, nullptr);
  if (const int error = real(&thread->real, attributes, &Trampoline, thread.get()); error != 0) return error;
  thread->number = ++last_number_;
  *real_thread = thread->real;
  threads_.push_back(thread.get());
  by_number_[thread->number] = std::move(thread);
  return 0;
}

void Scheduler::Join(pthread_t real_thread) {
  for (const auto& [number, thread] : by_number_) {
    if (!pthread_equal(thread->real, real_thread)) continue;
    SimulatedThread& joined = *thread;
    while (joined.state != SimulatedThread::State::kEnded) Block("the end of a thread", &joined, {}, {});
    LGPU_REAL(pthread_join);
    real(real_thread, nullptr);
    by_number_.erase(joined.number);
    return;
  }
}

void Scheduler::Detach(pthread_t real_thread) {
  for (const auto& [number, thread] : by_number_) {
    if (pthread_equal(thread->real, real_thread)) thread->is_detached = true;
  }
  LGPU_REAL(pthread_detach);
  real(real_thread);
}

void Scheduler::StandStill(const MachineProcess& process, std::uint64_t one_in, Time at_most) {
  for (SimulatedThread* thread : threads_) {
    if (thread->process != &process || !OneIn(one_in)) continue;
    thread->stands_still_until = now_ + Time(Below(static_cast<std::uint64_t>(at_most.count())));
  }
}

SimulatedThread* Scheduler::Find(std::uint32_t number) const {
  const auto found = by_number_.find(number);
  return found == by_number_.end() ? nullptr : found->second.get();
}

void Scheduler::KillThreads(MachineProcess& process) {
  std::vector<SimulatedThread*> killed;
  for (SimulatedThread* thread : threads_) {
    if (thread->process == &process) killed.push_back(thread);
  }
  for (SimulatedThread* thread : killed) Forget(*thread);
}

void Scheduler::Forget(SimulatedThread& thread) {
  thread.state = SimulatedThread::State::kDead;
  thread.is_ready = nullptr;
  std::erase(threads_, &thread);
  dead_.push_back(std::move(by_number_.extract(thread.number).mapped()));
  if (&thread == self) {  // it leaves by itself
    if (!thread.is_detached) to_join_.push_back(thread.real);
    return;
  }
  Post(thread);
  LGPU_REAL(pthread_join);
  if (!thread.is_detached) real(thread.real, nullptr);
}

void Scheduler::Leave() {
  GiveUp();
  ExitThread();
}

std::string Scheduler::DescribeThreads() const {
  std::string text;
  for (const SimulatedThread* thread : threads_) {
    text += "  " + thread->process->name + " (pid " + std::to_string(thread->process->pid) + ") thread " +
            std::to_string(thread->number) + " " + thread->name;
    if (thread->process->is_stopped) text += ", stopped,";
    text += thread->state == SimulatedThread::State::kBlocked ? std::string(" waits for ") + thread->waits_for
                                                              : " runs";
    if (thread->deadline && thread->state == SimulatedThread::State::kBlocked) {
      text += " until " + std::to_string(thread->deadline->count()) + " ns";
    }
    text += "\n";
  }
  return text;
}

void Scheduler::End(const std::string& why) {
  is_checking_ = true;
  if (on_end) on_end(why);
  std::fprintf(stderr, "%s\n", why.c_str());
  std::_Exit(EXIT_FAILURE);
}

}  // namespace lgpu::simulation
