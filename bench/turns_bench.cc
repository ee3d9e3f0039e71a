// Four notebooks, at work a tenth of the time, and a training, 16 GiB each on a card of 24 GiB: one after the
// other, in a queue (each holds its memory to its end), and in turns (--preemptible=always). The broker is
// the real one; programs and moves are numbers on a clock of the benchmark's.

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "lgpu/bytes.h"
#include "tests/support/turn_world.h"

namespace lgpu {
namespace {

using Preemptible = Broker::Preemptible;
using std::chrono::hours;
using std::chrono::seconds;

constexpr TurnWorld::Time kLimit = hours(100);

std::vector<TurnWorld::Program> Programs(Preemptible preemptible) {
  const TurnWorld::Program notebook{16_GiB, preemptible, seconds(30), seconds(270), seconds(360)};
  const TurnWorld::Program training{16_GiB, preemptible, hours(1), seconds(1), hours(1)};
  return {training, notebook, notebook, notebook, notebook};
}

double InSeconds(TurnWorld::Time time) { return static_cast<double>(time.count()) / 1000; }

TurnWorld::Figures Run(const std::vector<TurnWorld::Program>& programs, Bytes rate) {
  TurnWorld world(24_GiB, rate);
  for (const TurnWorld::Program& program : programs) world.Add(program);
  const absl::Status status = world.Run(kLimit);
  if (!status.ok()) std::printf("error: %s\n", std::string(status.message()).c_str());
  return world.figures();
}

void Print(const char* name, double makespan, double alone, const TurnWorld::Figures& figures) {
  std::printf("%-26s %12.0f %10.2f %14.0f %8lu %9.1f%% %8lu\n", name, makespan, makespan / alone,
              InSeconds(figures.longest_wait), static_cast<unsigned long>(figures.moves),
              100 * InSeconds(figures.moving) / makespan, static_cast<unsigned long>(figures.refused));
}

int Main() {
  std::printf("%-26s %12s %10s %14s %8s %10s %8s\n", "", "makespan s", "of alone", "longest wait s", "moves",
              "moving", "refused");
  double alone = 0;
  for (const TurnWorld::Program& program : Programs(Preemptible::kNever)) {
    alone += InSeconds(Run({program}, 8_GiB).makespan);
  }
  Print("one after the other", alone, alone, {});
  const TurnWorld::Figures queue = Run(Programs(Preemptible::kNever), 8_GiB);
  Print("in a queue", InSeconds(queue.makespan), alone, queue);
  for (const Bytes rate : {4_GiB, 8_GiB, 16_GiB}) {
    const TurnWorld::Figures turns = Run(Programs(Preemptible::kAlways), rate);
    const std::string name = "in turns, " + FormatBytes(rate) + "/s";
    Print(name.c_str(), InSeconds(turns.makespan), alone, turns);
  }
  return 0;
}

}  // namespace
}  // namespace lgpu

int main() { return lgpu::Main(); }
