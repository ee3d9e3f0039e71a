#include "tests/simulation/client_program.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/session/daemon_lease.h"
#include "client/session/endpoint.h"
#include "lgpu/status.h"

namespace lgpu::simulation {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

}  // namespace

void ClientProgram::Run() {
  while (!is_finishing_) {
    AwaitGo();
    ++at_work_;
    Open();
    --at_work_;
    if (lease_ == nullptr) {
      std::this_thread::sleep_for(milliseconds(1 + Below(50)));
      continue;
    }
    std::vector<std::thread> others;
    const std::uint64_t threads = options_.is_sleepy ? 0 : Below(4);
    const auto start = [&] { others.emplace_back([this, seed = random_()] { Work(seed); }); };
    for (std::uint64_t i = 0; i < threads; ++i) start();
    Work(random_());
    for (std::thread& thread : others) thread.join();
    AwaitGo();
    ++at_work_;
    Close();
    --at_work_;
  }
}

void ClientProgram::AwaitGo() {
  while (is_paused_ && !is_finishing_) std::this_thread::sleep_for(milliseconds(10));
}

// One thread of the program.
void ClientProgram::Work(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  // A thread that grows waits while lgpud is away. One that only gives back goes on, piece by piece.
  const bool only_gives_back = !options_.is_sleepy && random() % 3 == 0;
  const std::uint64_t deeds = 1 + random() % 60;
  for (std::uint64_t i = 0; i < deeds && !is_finishing_; ++i) {
    AwaitGo();
    ++at_work_;
    only_gives_back ? GiveBack(1, random) : Deed(random);
    --at_work_;
    const std::uint64_t pause = only_gives_back     ? random() % 50'000
                                : random() % 4 == 0 ? random() % 500'000
                                                    : random() % 5'000;
    std::this_thread::sleep_for(std::chrono::microseconds(pause * options_.pause_factor));
    if (options_.is_sleepy && random() % 8 == 0) Sleep(random);
  }
}

void ClientProgram::Sleep(std::mt19937_64& random) {
  const auto until = steady_clock::now() + milliseconds(1000 + random() % 9000);
  while (!is_finishing_ && steady_clock::now() < until) {
    std::this_thread::sleep_for(milliseconds(50));
    if (is_paused_) continue;
    const std::uint64_t percent = to_let_go_.exchange(0);
    if (percent == 0) continue;
    ++at_work_;
    GiveBack((chunks() * percent + 99) / 100, random);
    --at_work_;
  }
}

void ClientProgram::NoteUse() {
  const std::uint64_t tick = connection_->stats().tick.load();
  connection_->page().last_use.store(std::max(tick, ClientPage::kNoUse + 1));
}

void ClientProgram::Deed(std::mt19937_64& random) {
  NoteUse();
  const std::uint64_t dice = random() % 100;
  if (dice < 55) {
    Grow(random);
  } else if (dice < 95) {
    GiveBack(1 + random() % 4, random);
  } else {
    GiveBack(1000, random);
  }
}

std::size_t ClientProgram::chunks() {
  MutexLock lock(mutex_);
  return held_.size();
}

Bytes ClientProgram::held() {
  Bytes sum;
  MutexLock lock(mutex_);
  for (const Chunk& chunk : held_) sum += chunk.bytes;
  return sum;
}

void ClientProgram::Judge(const char* call, const absl::Status& status) {
  if (status.ok()) return;
  ++refusals_;
  // An end for good comes only of a broken protocol.
  const bool is_end = status.message().find("no more is granted") != std::string::npos;
  if (!is_end && (absl::IsResourceExhausted(status) || absl::IsUnavailable(status))) return;
  options_.fail(absl::StrCat("a program's ", call, " fails: ", status.ToString()));
}

absl::StatusOr<std::unique_ptr<Lease>> ClientProgram::Attach() {
  Endpoint endpoint;
  endpoint.directories = {options_.directory};
  LGPU_ASSIGN_OR_RETURN(const DaemonSocket daemon, FindDaemon(endpoint));
  LGPU_ASSIGN_OR_RETURN(std::unique_ptr<DaemonConnection> connection,
                        DaemonConnection::Connect({.directory = daemon.directory,
                                                   .reconnect_path = SessionSocketPath(daemon.directory)}));
  LGPU_ASSIGN_OR_RETURN(const wire::Lease granted, connection->Attach(options_.lease));
  connection_ = connection.get();
  return DaemonLease::Open(std::move(connection), granted, {});
}

void ClientProgram::Open() {
  absl::StatusOr<std::unique_ptr<Lease>> lease = Attach();
  Judge("Attach", lease.status());
  if (!lease.ok()) return;
  lease_ = *std::move(lease);
  source_ = lease_->TakeSource(0);
  NoteUse();
  lease_->StartMaintenance([this](steady_clock::time_point) -> std::optional<steady_clock::time_point> {
    AnswerTrims();
    return std::nullopt;
  });
}

std::vector<ChunkId> ClientProgram::Take(std::size_t at_most, std::mt19937_64& random) {
  std::vector<ChunkId> chunks;
  MutexLock lock(mutex_);
  while (!held_.empty() && chunks.size() < at_most) {
    std::swap(held_[random() % held_.size()], held_.back());
    chunks.push_back(held_.back().id);
    held_.pop_back();
  }
  return chunks;
}

void ClientProgram::Grow(std::mt19937_64& random) {
  const auto below = [&random](std::uint64_t bound) { return random() % bound; };
  const Bytes unit = source_->granularity();
  const bool is_hungry = options_.seed % 3 == 0;  // it asks for much, and waits for it
  const std::uint64_t most = options_.card / unit;
  const std::uint64_t usual = options_.is_sleepy ? most / 2 : is_hungry ? most / 4 : 4;
  const Bytes at_least = unit * (1 + below(below(8) == 0 ? most : usual));
  constexpr milliseconds kTimeouts[] = {milliseconds(0), milliseconds(100), milliseconds(1500),
                                        milliseconds(5000)};
  const GrowRequest request{.at_least = at_least,
                            .wanted = at_least + unit * below(3),
                            .timeout = kTimeouts[is_hungry ? 2 + below(2) : below(std::size(kTimeouts))],
                            .ahead = below(10) == 0};
  const auto asked_at = steady_clock::now();
  const absl::StatusOr<std::vector<Chunk>> granted = source_->Grow(request);
  const auto took = steady_clock::now() - asked_at;
  if (took > options_.most_time(took, request)) {
    options_.fail(absl::StrCat("a Grow with ", request.timeout.count() / 1'000'000, " ms took ",
                               took / milliseconds(1), " ms: ", granted.status().ToString()));
  }
  Judge("Grow", granted.status());
  if (!granted.ok()) return;
  ++grants_;
  if (took > milliseconds(10)) ++waits_;
  Bytes sum;
  MutexLock lock(mutex_);
  for (const Chunk& chunk : *granted) {
    sum += chunk.bytes;
    const bool is_known =
        std::any_of(held_.begin(), held_.end(), [&](const Chunk& held) { return held.id == chunk.id; });
    if (is_known) {
      options_.fail(absl::StrCat("chunk ", chunk.id.value, " is granted to a program that has it"));
    }
    held_.push_back(chunk);
  }
  if (sum < at_least) {
    options_.fail(absl::StrCat("a grant of ", sum.count(), " bytes for ", at_least.count()));
  }
}

void ClientProgram::GiveBack(std::size_t at_most, std::mt19937_64& random) {
  const std::vector<ChunkId> chunks = Take(at_most, random);
  if (chunks.empty()) return;
  options_.on_return();
  Judge("Return", source_->Return(chunks));
}

// On the session's thread. A program that keeps all it has is a right one too.
void ClientProgram::AnswerTrims() {
  for (const TrimOrder& order : lease_->TakeTrims()) {
    const std::vector<ChunkId> chunks = Take(trim_random_() % 3, trim_random_);
    if (!chunks.empty()) Judge("Return", source_->Return(chunks));
    lease_->AnswerTrim(order, false);
  }
}

void ClientProgram::Close() {
  lease_->StopMaintenance();
  {
    MutexLock lock(mutex_);
    held_.clear();
  }
  source_.reset();
  if (Below(3) != 0) Judge("Close", lease_->Close());
  lease_.reset();
}

}  // namespace lgpu::simulation
