// The promise of the card's queue, over random scenarios with a clock of their own. Programs of several users
// grow, return, wait, trim and die on one card; attackers hold nothing and ask for all of it. The test writes
// down what happens and then judges it by the promise's own words, without knowing how turns are given.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "allocator/broker/broker.h"
#include "allocator/broker/session_trims.h"
#include "lgpu/refusal.h"
#include "tests/allocator/broker/recording_log.h"
#include "tests/support/broker_testing.h"
#include "tests/support/counting_backend.h"
#include "tests/support/sanitizers.h"

namespace lgpu {
namespace {

using std::chrono::milliseconds;
using testing::CountingBackend;
using Time = Broker::TimePoint;

constexpr Bytes kUnit = 2_MiB;
constexpr Time kStart{std::chrono::hours(1)};
constexpr milliseconds kLong = std::chrono::hours(24);

struct Counts {
  std::size_t requests = 0, waited = 0, deadlocks = 0, late = 0, judged = 0, fitting = 0, contended = 0;
};

// A logical device with the one session that uses it.
struct Program {
  std::string user;
  SessionId session;
  LogicalId device;
  std::shared_ptr<FlagWaker> waker = std::make_shared<FlagWaker>();
  Bytes limit, guarantee;
  bool hog = false;      // holds nothing and asks for the whole card
  bool returns = false;  // also while it waits: another of its threads does
  bool trims = false;
  bool dead = false;
  Bytes ask;            // what it usually asks for
  milliseconds pace{};  // from one step to the next, on average
  std::vector<Chunk> held;
  Bytes granted, leaving;
  Time next_step;
  std::optional<Time> gone_at;       // dead: its memory is free from then on
  std::optional<std::size_t> waits;  // in requests_

  Bytes promise() const { return std::max(guarantee, granted + leaving); }
};

struct Request {
  std::size_t program = 0;
  WaiterId id;
  Bytes bytes;
  std::size_t first_moment = 0;
  Time asked_at, deadline;
  std::optional<Time> over_at = {};
};

// What could be seen from outside at one moment, after everything that happened then.
struct Moment {
  Time at;
  Bytes free;
  Bytes came_back;    // to the card, since the start
  Bytes with_others;  // beyond guarantees, of programs that do not wait; and what is leaving
  std::map<std::string, std::size_t> waiting;  // requests of each user
};

class Scenario {
 public:
  Scenario(std::uint32_t seed, bool local, Counts& counts) : random_(seed), local_(local), counts_(counts) {
    drain_ = milliseconds(20 + Below(300));
    total_ = kUnit * (16 + Below(48));
    backend_ = std::make_unique<CountingBackend>(std::vector<Bytes>{total_}, kUnit);
    Broker::Options options = AllCardsOf(*backend_);
    options.max_drain = drain_;
    options.clock = [this] { return now_; };
    GrantLog& log = local ? static_cast<GrantLog&>(no_log_) : log_;
    broker_ = *Broker::Create(*backend_, log, options);
    const std::size_t programs = 2 + Below(6);
    const std::size_t users = local ? 1 : 1 + Below(4);
    for (std::size_t i = 0; i < programs; ++i) AddProgram("user-" + std::to_string(Below(users)));
  }

  void Run() {
    const Time end = kStart + drain_ * 25;
    while (!::testing::Test::HasFatalFailure()) {
      Time next = end;
      for (const Program& program : programs_) {
        next = std::min(next, program.gone_at.value_or(program.dead ? end : program.next_step));
      }
      if (const std::optional<Time> tick = broker_->Tick()) {
        ASSERT_GT(*tick, now_) << "it would spin";
        next = std::min(next, *tick);
      }
      if (next >= end) break;
      now_ = std::max(next, now_ + std::chrono::microseconds(1));
      broker_->Tick();
      Settle();
      for (std::size_t i = 0; i < programs_.size(); ++i) {
        if (Step(i)) Settle();
      }
    }
    const absl::Status status = broker_->CheckInvariants();
    ASSERT_TRUE(status.ok()) << status;
    for (const Request& request : requests_) Judge(request);
  }

 private:
  std::uint64_t Below(std::uint64_t bound) { return random_() % bound; }
  bool OneIn(std::uint64_t n) { return Below(n) == 0; }
  Time Soon(const Program& program) {
    return now_ +
           std::chrono::microseconds(1 + Below(static_cast<std::uint64_t>(program.pace.count()) * 2000));
  }

  void AddProgram(const std::string& user) {
    Program program;
    const std::uint64_t id = programs_.size() + 1;
    const LeaseKey lease{local_ ? 1 : id};
    program.user = user;
    program.hog = OneIn(4);
    program.returns = OneIn(4);
    program.trims = OneIn(3);
    program.limit = total_;
    if (!program.hog && OneIn(4)) program.guarantee = kUnit * Below(4);
    program.ask = program.hog ? total_
                  : OneIn(3)  ? kUnit * (1 + Below(total_ / kUnit))
                              : kUnit * (1 + Below(4));
    program.pace = milliseconds(1 + Below(OneIn(2) ? 20 : 300));
    const auto added = broker_->AddDevice({.card = broker_->Cards().front().id,
                                           .limit = program.limit,
                                           .guarantee = program.guarantee,
                                           .lease = lease,
                                           .device_name = "/device:GPU:" + std::to_string(id),
                                           .lease_name = local_ ? "" : "lease-" + std::to_string(id),
                                           .owner = user});
    ASSERT_TRUE(added.ok()) << added.status();
    program.device = *added;
    program.session = SessionId{id};
    broker_->AddSession(
        program.session,
        {.pid = static_cast<std::int64_t>(1000 + id), .waker = program.waker, .trims = program.trims});
    broker_->AttachSession(program.session, lease);
    program.next_step = Soon(program);
    programs_.push_back(std::move(program));
  }

  // What sessions do when they are woken, until nobody is.
  void Settle() {
    for (bool again = true; again && !::testing::Test::HasFatalFailure();) {
      again = false;
      for (Program& program : programs_) {
        if (!program.waker->woken()) continue;
        again = true;
        program.waker->Clear();
        if (program.waits) Look(*program.waits);
        for (const TrimOrder& order : broker_->trims().TakeOrders(program.session)) {
          AnswerTrim(program, order);
        }
      }
    }
    Note();
  }

  void AnswerTrim(Program& program, const TrimOrder& order) {
    if (!OneIn(3)) Return(program, std::min<std::size_t>(program.held.size(), Below(3)));
    ASSERT_TRUE(broker_->trims().Answer(program.session, order.id, false).ok());
  }

  // Whether it did something.
  bool Step(std::size_t i) {
    Program& program = programs_[i];
    if (program.gone_at && now_ >= *program.gone_at) {
      const Bytes before = program.promise();
      EXPECT_EQ(broker_->FinishDraining({program.session}).size(), 1u);
      program.gone_at.reset();
      program.leaving = Bytes();
      came_back_ += before - program.promise();
      return true;
    }
    if (program.dead || now_ < program.next_step) return false;
    program.next_step = Soon(program);
    if (OneIn(300)) {
      Die(program);
      return true;
    }
    const bool waits = program.waits.has_value();
    if (waits ? program.returns && OneIn(2) : !program.held.empty() && !OneIn(3)) {
      Return(program, 1 + Below(1 + program.held.size()));
      return true;
    }
    // What can never be served is refused at once, and no matter of the queue.
    Bytes room = total_ - program.granted;
    for (const Program& other : programs_) room -= &other == &program ? Bytes() : other.guarantee;
    room = RoundDown(room, kUnit);
    const Bytes bytes = std::min(room, program.hog || OneIn(2) ? program.ask : kUnit * (1 + Below(4)));
    if (!waits && !bytes.is_zero()) Ask(i, bytes);
    return true;
  }

  void Die(Program& program) {
    program.dead = true;
    broker_->StartDraining(program.session);
    if (program.waits) requests_[*program.waits].over_at = now_;
    program.waits.reset();
    program.leaving = program.granted;
    program.granted = Bytes();
    program.held.clear();
    program.gone_at = now_ + milliseconds(Below(100));
  }

  void Return(Program& program, std::size_t count) {
    count = std::min(count, program.held.size());
    if (count == 0) return;
    std::vector<ChunkId> ids;
    const Bytes before = program.promise();
    for (; count > 0; --count) {
      ids.push_back(program.held.back().id);
      program.granted -= program.held.back().bytes;
      program.held.pop_back();
    }
    came_back_ += before - program.promise();
    ASSERT_TRUE(broker_->Return(program.session, program.device, ids).ok());
  }

  void Ask(std::size_t i, Bytes bytes) {
    Program& program = programs_[i];
    const milliseconds timeout = program.hog ? kLong
                                 : OneIn(5)  ? milliseconds(0)
                                 : OneIn(4)  ? drain_ / 2
                                             : drain_ * 30;
    ++counts_.requests;
    // A program that asks waits at this moment, even if it is answered at once.
    program.waits = requests_.size();
    Note();
    program.waits.reset();
    const bool guaranteed = program.granted + bytes <= program.guarantee;
    Broker::Answer answer = broker_->Grow({.session = program.session,
                                           .device = program.device,
                                           .at_least = bytes,
                                           .wanted = bytes,
                                           .asked_at = now_,
                                           .deadline = now_ + timeout});
    ASSERT_TRUE(!guaranteed || (answer.status.ok() && !answer.wait)) << "held back inside its guarantee";
    Request request{.program = i,
                    .id = {},
                    .bytes = bytes,
                    .first_moment = moments_.size() - 1,
                    .asked_at = now_,
                    .deadline = now_ + timeout};
    if (answer.wait) {
      ++counts_.waited;
      request.id = *answer.wait;
      program.waits = requests_.size();
    }
    requests_.push_back(request);
    TakeAnswer(requests_.size() - 1, answer);
  }

  void Look(std::size_t r) {
    if (const std::optional<Broker::Answer> answer = broker_->TakeAnswer(requests_[r].id)) {
      TakeAnswer(r, *answer);
    }
  }

  void TakeAnswer(std::size_t r, const Broker::Answer& answer) {
    Request& request = requests_[r];
    Program& program = programs_[request.program];
    if (answer.wait) return;
    request.over_at = now_;
    program.waits.reset();
    if (answer.status.ok()) {
      for (const Chunk& chunk : answer.chunks) {
        program.held.push_back(chunk);
        program.granted += chunk.bytes;
      }
      return;
    }
    const std::optional<Refusal> refusal = GetRefusal(answer.status);
    ASSERT_TRUE(refusal.has_value()) << answer.status;
    if (refusal->reason == RefusalReason::kDeadlock) {
      ++counts_.deadlocks;
      CheckDeadlock(request);
    } else {
      // Requests with a timeout of 0 wait for idle memory a little longer.
      ASSERT_GE(now_, request.deadline) << "refused before its deadline: " << answer.status;
      ++counts_.late;
    }
  }

  // Whoever holds memory waits for more than there is.
  void CheckDeadlock(const Request& refused) {
    const Bytes free = Free();
    ASSERT_GT(refused.bytes, free);
    for (const Program& program : programs_) {
      if (&program == &programs_[refused.program] || program.granted.is_zero()) continue;
      ASSERT_TRUE(program.waits.has_value()) << "a holder does not wait";
      ASSERT_GT(requests_[*program.waits].bytes, free) << "a turn counted as a deadlock";
    }
  }

  Bytes Free() const {
    Bytes promised;
    for (const Program& program : programs_) promised += program.promise();
    return total_ - promised;
  }

  void Note() {
    Moment moment{.at = now_, .free = Free(), .came_back = came_back_, .with_others = {}, .waiting = {}};
    ASSERT_EQ(moment.free, broker_->Cards().front().view.free());
    for (const Program& program : programs_) {
      if (!program.waits) {
        moment.with_others += program.promise() - program.guarantee;
      } else {
        ++moment.waiting[program.user];
      }
    }
    moments_.push_back(std::move(moment));
  }

  // The promise. `request` waited from its first moment to its last.
  void Judge(const Request& request) {
    const Program& program = programs_[request.program];
    const auto first = moments_.begin() + static_cast<std::ptrdiff_t>(request.first_moment);
    const Time last = request.over_at.value_or(moments_.back().at);
    if (last <= request.asked_at || !program.guarantee.is_zero()) return;

    // One: no request waits for longer than a turn while the card has room for it.
    constexpr Time kNever = Time::max();
    Time fits_since = kNever;
    // Two: one that fits into what becomes free within any turn's length is served within
    // 2 x max_drain x waiting users, times its user's waiting requests.
    std::size_t users = 1, own = 1;
    auto window = first;
    for (auto moment = first; moment != moments_.end() && moment->at < last; ++moment) {
      const auto next = std::next(moment);
      const Time until = next == moments_.end() ? last : std::min(last, next->at);
      if (request.bytes <= moment->free) {
        fits_since = std::min(fits_since, moment->at);
        counts_.fitting += until - fits_since >= drain_ / 2 ? 1 : 0;
        ASSERT_LE(until - fits_since, drain_ + std::chrono::microseconds(1))
            << "a request of " << request.bytes.count() << " bytes waits while " << moment->free.count()
            << " are free";
      } else {
        fits_since = kNever;
      }
      if (request.bytes > moment->free + moment->with_others) return;
      // A window of a turn's length starts at each moment; these end before the next one.
      for (; window->at + drain_ < until; ++window) {
        if (request.bytes > window->free + (moment->came_back - window->came_back)) return;
      }
      users = std::max(users, moment->waiting.size());
      own = std::max(own, moment->waiting.at(program.user));
      const auto waited = until - request.asked_at;
      ASSERT_LE(waited, 2 * drain_ * users * own + std::chrono::microseconds(10))
          << "a request of " << request.bytes.count() << " bytes, with " << users << " users and " << own
          << " requests of its own";
      if (waited > drain_) ++counts_.contended;
    }
    ++counts_.judged;
  }

  std::mt19937_64 random_;
  const bool local_;
  Counts& counts_;
  Time now_ = kStart;
  milliseconds drain_{};
  Bytes total_;
  NoGrantLog no_log_;
  RecordingLog log_;
  std::unique_ptr<CountingBackend> backend_;
  std::unique_ptr<Broker> broker_;
  std::vector<Program> programs_;
  std::vector<Request> requests_;
  std::vector<Moment> moments_;
  Bytes came_back_;
};

class TurnPromiseTest : public ::testing::TestWithParam<bool> {};

constexpr std::uint32_t kSeeds = testing::kSanitized ? 500 : 10'000;  // a sanitizer takes ten times as long

TEST_P(TurnPromiseTest, HoldsInTenThousandRandomScenarios) {
  Counts counts;
  for (std::uint32_t seed = 1; seed <= kSeeds; ++seed) {
    Scenario scenario(seed, GetParam(), counts);
    if (!HasFailure()) scenario.Run();
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
  std::printf("seeds 1 to %u: %zu requests, %zu waited, %zu deadlocks, %zu late, %zu judged in full\n",
              kSeeds, counts.requests, counts.waited, counts.deadlocks, counts.late, counts.judged);
  std::printf(
      "%zu moments of a request that waits for more than half a turn and would fit, %zu for a turn and "
      "more\n",
      counts.fitting, counts.contended);
  // Scenarios that never come to a case prove nothing about it.
  EXPECT_GT(counts.waited, kSeeds);
  EXPECT_GT(counts.deadlocks, kSeeds / 100);
  EXPECT_GT(counts.late, kSeeds / 10);
  EXPECT_GT(counts.judged, kSeeds / 10);
  EXPECT_GT(counts.fitting, kSeeds / 10);
  EXPECT_GT(counts.contended, kSeeds / 10);
}

INSTANTIATE_TEST_SUITE_P(, TurnPromiseTest, ::testing::Bool(),
                         [](const auto& local) { return local.param ? "OfALocalContext" : "OfLgpud"; });

}  // namespace
}  // namespace lgpu
