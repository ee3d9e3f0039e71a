// Random programs that take memory from the driver themselves, through a Broker: every answer to a charge,
// and every allowance, is foretold by a model that follows from the rules alone, so that a refusal that they
// do not demand fails as surely as a charge that they forbid. Programs charge, use what they were lent, give
// back, die at any time, come back after a restart; limits fall below what is charged. One file past the
// usual length: the model and its random steps have no other user.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "allocator/broker/broker.h"
#include "allocator/broker/session_restore.h"
#include "lgpu/refusal.h"
#include "tests/allocator/broker/recording_log.h"
#include "tests/support/broker_testing.h"
#include "tests/support/counting_backend.h"

namespace lgpu {
namespace {

using testing::CountingBackend;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr Bytes kUnit = 2_MiB;
constexpr std::size_t kCards = 2;
constexpr std::size_t kLeases = 3;
constexpr std::uint64_t kPrograms = 6;  // at a time

class Words final : public Allowances {
 public:
  std::atomic<std::uint64_t>& Free(std::size_t card) override { return free_.at(card); }
  std::atomic<std::uint64_t>& Keep(std::size_t card) override { return keep_.at(card); }

 private:
  std::array<std::atomic<std::uint64_t>, kCards> free_{};
  std::array<std::atomic<std::uint64_t>, kCards> keep_{};
};

struct Counts {
  std::size_t granted = 0, inside = 0, limit = 0, card = 0, taken_back = 0, waited = 0, served = 0;
  std::size_t killed = 0, lowered = 0, resized = 0, restarts = 0;
};

class Runner {
 public:
  Runner(std::uint32_t seed, Counts& counts) : counts_(counts), random_(seed) {
    backend_ = std::make_unique<CountingBackend>(std::vector<Bytes>{400_MiB, 300_MiB + Bytes(4711)}, kUnit);
    MakeBroker();
    for (std::uint64_t lease = 1; lease <= kLeases; ++lease) {
      for (std::size_t card = 0; card < kCards; ++card) {
        for (std::uint64_t i = 0; i <= lease % 2; ++i) AddDevice(LeaseKey{lease}, card);
      }
    }
    for (std::uint64_t i = 0; i < kPrograms; ++i) programs_.push_back(NewProgram(LeaseKey{1 + i % kLeases}));
  }

  void Step() {
    now_ += milliseconds(Below(50));
    Program& program = programs_[Below(kPrograms)];
    const std::size_t card = Below(kCards);
    const std::uint64_t what = Below(1000);
    if (what < 8) return Restart();
    if (what < 40) return Resize(devices_[Below(devices_.size())]);
    if (program.dead) return what < 500 ? Lower(program, card) : Bury(program);
    if (what < 60) return Kill(program);
    if (what < 560) return Allocate(program, card);
    Free(program, card);
  }

  void Check() {
    const absl::Status status = broker_->CheckInvariants();
    ASSERT_TRUE(status.ok()) << status;
    for (const Device& device : devices_) ASSERT_EQ(broker_->Find(device.id)->held, Held(device));
    for (const Program& program : programs_) {
      Bytes held;
      for (std::size_t card = 0; card < kCards; ++card) {
        const Account& account = program.accounts[card];
        held += SumOf(account.held);
        ASSERT_EQ(SumOf(account.held), RoundUp(account.lent, kUnit));
        for (const auto& [device, bytes] : account.held) {
          ASSERT_GE(log_.charged(program.id, device), bytes) << "a restart would count less than is used";
        }
        if (program.dead) continue;
        ASSERT_EQ(account.lent, account.used + account.free);
        ASSERT_EQ(Bytes(program.words->Free(card)), account.free) << program.id.value << " on " << card;
        ASSERT_EQ(Bytes(program.words->Keep(card)), account.keep) << program.id.value << " on " << card;
      }
      ASSERT_EQ(broker_->Held(program.id), held) << "program " << program.id.value;
    }
  }

  void Drain() {
    for (Program& program : programs_) {
      if (!program.dead) Kill(program);
      Bury(program);
      Check();
    }
    for (const Device& device : devices_) EXPECT_EQ(broker_->Find(device.id)->held, Bytes());
  }

 private:
  struct Account {
    Bytes lent, used, free, keep;  // `lent` by the broker; of it `used`; `free` and `keep` are the words
    std::map<LogicalId, Bytes> held = {};  // in blocks, by the devices that bear them
  };
  struct Program {
    SessionId id;
    LeaseKey lease;
    std::shared_ptr<Words> words;
    bool dead = false;
    std::array<Account, kCards> accounts = {};
    std::array<std::vector<Bytes>, kCards> live = {};
  };
  struct Device {
    LogicalId id;
    LeaseKey lease;
    std::size_t card = 0;
    Bytes limit, guarantee;
  };
  enum class Answer { kGranted, kLimit, kWaits, kCard };
  using Parts = std::map<LogicalId, Bytes>;

  std::uint64_t Below(std::uint64_t bound) { return random_() % bound; }
  std::string Uuid(std::size_t card) const { return backend_->devices()[card].uuid; }
  static Bytes SumOf(const Parts& parts) {
    Bytes sum;
    for (const auto& [device, bytes] : parts) sum += bytes;
    return sum;
  }
  Bytes Held(const Device& device) const {
    Bytes sum;
    for (const Program& program : programs_) {
      const Parts& held = program.accounts[device.card].held;
      if (const auto found = held.find(device.id); found != held.end()) sum += found->second;
    }
    return sum;
  }

  void MakeBroker() {
    Broker::Options options = AllCardsOf(*backend_);
    options.clock = [this] { return now_; };
    broker_ = *Broker::Create(*backend_, log_, options);
  }
  Broker::DeviceSpec SpecOf(const Device& device) const {
    return {.card = broker_->Cards()[device.card].id,
            .limit = device.limit,
            .guarantee = device.guarantee,
            .lease = device.lease,
            .owner = "user-" + std::to_string(device.lease.value)};
  }
  Bytes AnyLimit() { return 32_MiB + Bytes(Below((200_MiB).count())); }
  void AddDevice(LeaseKey lease, std::size_t card) {
    Device device{LogicalId(), lease, card, AnyLimit(), kUnit * Below(16)};
    device.id = *broker_->AddDevice(SpecOf(device));
    devices_.push_back(device);
  }
  Program NewProgram(LeaseKey lease) {
    Program program{SessionId{++last_session_}, lease, std::make_shared<Words>()};
    broker_->AddSession(program.id, {.pid = static_cast<std::int64_t>(1000 + last_session_)});
    broker_->AttachSession(program.id, lease);
    broker_->ShareAllowances(program.id, program.words);
    return program;
  }

  // The rules.

  /// Whether a lease may have so many blocks more now, and which devices bear them: guarantees first.
  Answer Verdict(const Program& program, std::size_t card, Bytes blocks, Parts& parts) const {
    Bytes rest = blocks, need, coming, promised;
    for (const Device& device : devices_) {
      if (device.card == card) promised += std::max(device.guarantee, Held(device));
    }
    parts.clear();
    for (const bool only_guaranteed : {true, false}) {
      for (const Device& device : devices_) {
        if (device.lease != program.lease || device.card != card) continue;
        const Bytes bound = only_guaranteed ? device.guarantee : RoundUp(device.limit, kUnit);
        const Bytes part = std::min(rest, SaturatingSub(bound, Held(device) + parts[device.id]));
        parts[device.id] += part;
        rest -= part;
        if (!only_guaranteed) need += part;
      }
    }
    for (const Program& other : programs_) {
      if (other.dead && other.lease == program.lease) coming += SumOf(other.accounts[card].held);
    }
    if (!rest.is_zero()) return rest <= coming ? Answer::kWaits : Answer::kLimit;
    const bool fits = need.is_zero() || promised + need <= backend_->devices()[card].total;
    return fits ? Answer::kGranted : Answer::kCard;
  }
  /// Blocks that are not lent any more leave the last device first.
  static bool Fit(Account& account) {
    Bytes excess = SumOf(account.held) - RoundUp(account.lent, kUnit);
    const bool gives = !excess.is_zero();
    while (!excess.is_zero()) {
      const auto last = std::prev(account.held.end());
      const Bytes part = std::min(excess, last->second);
      excess -= part;
      last->second -= part;
      if (last->second.is_zero()) account.held.erase(last);
    }
    return gives;
  }
  static void Book(Account& account, Bytes bytes, const Parts& parts) {
    for (const auto& [device, part] : parts) {
      if (!part.is_zero()) account.held[device] += part;
    }
    account.lent += bytes;
    Fit(account);
  }
  /// What the programs of the lease, or of all, were lent and do not use; whether a block came back.
  bool TakeBack(std::size_t card, LeaseKey lease) {
    bool gives = false;
    for (Program& program : programs_) {
      Account& account = program.accounts[card];
      if (program.dead || account.held.empty() || (lease && program.lease != lease)) continue;
      account.lent -= account.free;
      account.free = account.keep = Bytes();
      gives |= Fit(account);
    }
    counts_.taken_back += gives ? 1 : 0;
    return gives;
  }
  Answer Charge(Program& program, std::size_t card, Bytes bytes) {
    Account& account = program.accounts[card];
    Parts parts;
    // What the blocks that it holds have left is its first.
    const auto lacking = [&] { return RoundUp(account.lent + bytes, kUnit) - SumOf(account.held); };
    Answer answer = Verdict(program, card, lacking(), parts);
    while (answer != Answer::kGranted &&
           TakeBack(card, answer == Answer::kCard ? LeaseKey() : program.lease)) {
      answer = Verdict(program, card, lacking(), parts);
    }
    if (answer == Answer::kGranted) Book(account, bytes, parts);
    return answer;
  }
  /// An eighth of the lease's limits on the card, split by its programs, 64 MiB at most; the half of what is
  /// missing, and again the half, where that has no room.
  void Lend(Program& program, std::size_t card) {
    Bytes limits;
    std::uint64_t sharers = 0;
    for (const Device& device : devices_) {
      if (device.lease == program.lease && device.card == card) limits += device.limit;
    }
    for (const Program& other : programs_) {
      sharers += other.lease == program.lease && !other.accounts[card].held.empty() ? 1 : 0;
    }
    Account& account = program.accounts[card];
    account.keep = RoundDown(std::min(Bytes(limits.count() / 8 / sharers), 64_MiB), kUnit);
    Bytes more = RoundDown(SaturatingSub(account.keep, account.free), kUnit);
    for (; !more.is_zero(); more = RoundDown(Bytes(more.count() / 2), kUnit)) {
      Parts parts;
      if (Verdict(program, card, more, parts) != Answer::kGranted) continue;
      Book(account, more, parts);
      account.free += more;
      return;
    }
  }

  // The steps.

  void Allocate(Program& program, std::size_t card) {
    const Bytes bytes(1 + Below((Below(8) == 0 ? 300_MiB : 12_MiB).count()));
    Account& account = program.accounts[card];
    if (bytes <= account.free) {
      ++counts_.inside;
      program.words->Free(card) -= bytes.count();
      account.free -= bytes;
      return Use(program, card, bytes);
    }
    Answer expected = Charge(program, card, bytes);
    Broker::Answer answer = broker_->ChargeCard({.session = program.id,
                                                 .card_uuid = Uuid(card),
                                                 .bytes = bytes,
                                                 .what = "cuMemAlloc_v2",
                                                 .asked_at = now_,
                                                 .deadline = now_});
    if (expected == Answer::kWaits) {
      ++counts_.waited;
      ASSERT_TRUE(answer.wait.has_value()) << "enough is on its way back: " << answer.status;
      const WaiterId grow = *answer.wait;
      if (Below(2) == 0) {
        for (Program& other : programs_) {
          if (other.dead && other.lease == program.lease) EndCharges(other);
        }
      }
      now_ += milliseconds(100);  // no charge waits longer under its limit
      expected = Charge(program, card, bytes);
      if (expected == Answer::kWaits) expected = Answer::kLimit;
      counts_.served += expected == Answer::kGranted ? 1 : 0;
      answer = AskAgain(*broker_, grow);
    }
    ASSERT_FALSE(answer.wait.has_value());
    ASSERT_EQ(answer.status.ok(), expected == Answer::kGranted) << answer.status;
    if (answer.status.ok()) {
      ++counts_.granted;
      Lend(program, card);
      return Use(program, card, bytes);
    }
    const bool is_limit = expected == Answer::kLimit;
    ++(is_limit ? counts_.limit : counts_.card);
    const std::optional<Refusal> refusal = GetRefusal(answer.status);
    ASSERT_TRUE(refusal.has_value()) << answer.status;
    ASSERT_EQ(refusal->reason, is_limit ? RefusalReason::kLimit : RefusalReason::kCard) << answer.status;
  }
  static void Use(Program& program, std::size_t card, Bytes bytes) {
    program.accounts[card].used += bytes;
    program.live[card].push_back(bytes);
  }
  void Free(Program& program, std::size_t card) {
    std::vector<Bytes>& live = program.live[card];
    if (live.empty()) return;
    std::swap(live.back(), live[Below(live.size())]);
    const Bytes bytes = live.back();
    live.pop_back();
    Account& account = program.accounts[card];
    account.used -= bytes;
    account.free += bytes;
    program.words->Free(card) += bytes.count();
    const Bytes excess = SaturatingSub(account.free, account.keep);
    if (excess.is_zero()) return;
    program.words->Free(card) -= excess.count();
    account.free -= excess;
    account.lent -= excess;
    Fit(account);
    ASSERT_TRUE(broker_->Uncharge(program.id, Uuid(card), excess).ok());
  }
  void Kill(Program& program) {
    ++counts_.killed;
    program.dead = true;
    broker_->StartDraining(program.id);
  }
  /// The driver lists less of a dead program.
  void Lower(Program& program, std::size_t card) {
    ++counts_.lowered;
    std::map<std::string, Bytes> rest;
    for (std::size_t i = 0; i < kCards; ++i) {
      Account& account = program.accounts[i];
      if (i == card) account.lent = std::min(account.lent, Bytes(Below((100_MiB).count())));
      Fit(account);
      rest[Uuid(i)] = account.lent;
    }
    broker_->LowerCharges(program.id, rest);
  }
  void EndCharges(Program& program) {
    for (Account& account : program.accounts) account = Account();
    broker_->LowerCharges(program.id, {});
  }
  void Bury(Program& program) {
    EndCharges(program);
    ASSERT_EQ(broker_->FinishDraining({program.id}).size(), 1u);
    broker_->RemoveSession(program.id);
    program = NewProgram(program.lease);
  }
  void Resize(Device& device) {
    ++counts_.resized;
    device.limit = AnyLimit();
    TakeBack(device.card, device.lease);
    const absl::Status status = broker_->ResizeDevice(device.id, device.limit, device.guarantee);
    ASSERT_TRUE(status.ok()) << status;
  }
  /// Another broker, from the log: every program counts with the most that it ever had, until it says what
  /// it has. Some do not come back.
  void Restart() {
    ++counts_.restarts;
    MakeBroker();
    for (const Device& device : devices_) {
      ASSERT_TRUE(broker_->restore().AddDevice(device.id, SpecOf(device)).ok());
    }
    for (Program& program : programs_) {
      std::vector<SessionRestore::RestoredCharge> charges;
      for (Account& account : program.accounts) account.held.clear();
      for (const Device& device : devices_) {
        const Bytes logged = log_.charged(program.id, device.id);
        if (logged.is_zero()) continue;
        charges.push_back({device.id, logged});
        program.accounts[device.card].held[device.id] = logged;
      }
      for (Account& account : program.accounts) {
        ASSERT_GE(SumOf(account.held), account.used);
        account.lent = SumOf(account.held);
        account.free = account.keep = Bytes();
      }
      ASSERT_TRUE(broker_->restore().AddSession(program.id, 1, nullptr, program.lease, {}, charges).ok());
      if (program.dead) broker_->StartDraining(program.id);
    }
    for (Program& program : programs_) {
      if (!program.dead) Below(8) == 0 ? Kill(program) : ComeBack(program);
    }
  }
  void ComeBack(Program& program) {
    broker_->restore().StartAttesting(program.id,
                                      {.pid = static_cast<std::int64_t>(1000 + program.id.value)});
    for (std::size_t card = 0; card < kCards; ++card) {
      Account& account = program.accounts[card];
      account.lent = account.used;
      Fit(account);
      if (account.used.is_zero()) continue;
      ASSERT_TRUE(broker_->restore().AttestCharge(program.id, Uuid(card), account.used).ok());
    }
    broker_->restore().FinishAttesting(program.id);
    program.words = std::make_shared<Words>();
    broker_->ShareAllowances(program.id, program.words);
  }

  Counts& counts_;
  std::mt19937_64 random_;
  Clock::time_point now_ = Clock::time_point() + std::chrono::hours(1);
  RecordingLog log_;
  std::unique_ptr<CountingBackend> backend_;
  std::unique_ptr<Broker> broker_;
  std::vector<Device> devices_;
  std::vector<Program> programs_;
  std::uint64_t last_session_ = 0;
};

TEST(ChargesPropertyTest, RandomProgramsAreChargedAndLentExactlyWhatTheRulesSay) {
  constexpr std::uint32_t kSeeds = 30;
  constexpr int kSteps = 4000;
  Counts counts;
  for (std::uint32_t seed = 1; seed <= kSeeds; ++seed) {
    Runner runner(seed, counts);
    for (int step = 0; step < kSteps; ++step) {
      runner.Step();
      if (!HasFailure()) runner.Check();
      ASSERT_FALSE(HasFailure()) << "seed " << seed << ", step " << step;
    }
    runner.Drain();
    ASSERT_FALSE(HasFailure()) << "seed " << seed << ", after everybody ended";
  }
  std::printf(
      "seeds 1 to %u of %d steps: %zu granted, %zu inside the allowance, %zu short of the limit, %zu of the "
      "card, %zu allowances taken back, %zu waited, %zu served, %zu killed, %zu lowered, %zu resized, "
      "%zu restarts\n",
      kSeeds, kSteps, counts.granted, counts.inside, counts.limit, counts.card, counts.taken_back,
      counts.waited, counts.served, counts.killed, counts.lowered, counts.resized, counts.restarts);
  // A sequence that never comes to a case proves nothing about it.
  for (const std::size_t count : {counts.granted, counts.inside, counts.limit, counts.card, counts.taken_back,
                                  counts.killed, counts.lowered, counts.resized}) {
    EXPECT_GT(count, 300u);
  }
  EXPECT_GT(counts.waited, 50u);
  EXPECT_GT(counts.served, 20u);
  EXPECT_GT(counts.restarts, 100u);
}

}  // namespace
}  // namespace lgpu
