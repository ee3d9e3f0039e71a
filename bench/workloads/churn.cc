#include "bench/workloads/churn.h"

#include <utility>

namespace lgpu::bench {
namespace {

// Takes a random element out.
template <typename T>
T TakeRandom(std::vector<T>& from, Random& random) {
  const std::size_t index = random.Below(from.size());
  T taken = std::move(from[index]);
  from[index] = std::move(from.back());
  from.pop_back();
  return taken;
}

}  // namespace

Trace Churn(std::string name, std::string what, const ChurnShape& shape, std::uint64_t seed) {
  TraceBuilder trace(std::move(name), std::move(what));
  Random random(seed);
  for (std::uint32_t i = 0; i < shape.live; ++i) {
    trace.Allocate(random.LogUniform(shape.smallest, shape.largest));
  }
  trace.EndFill();
  for (std::size_t i = 0; i < shape.pairs; ++i) {
    if (i == 0 || i == shape.pairs / 2) {
      trace.BeginStep();  // the first half warms up
    }
    trace.Free(static_cast<Slot>(random.Below(shape.live)));
    trace.Allocate(random.LogUniform(shape.smallest, shape.largest));  // takes the slot that is free
  }
  return std::move(trace).Finish();
}

Trace MostlyAllocate(std::string name, std::string what, const MostlyAllocateShape& shape,
                     std::uint64_t seed) {
  TraceBuilder trace(std::move(name), std::move(what));
  Random random(seed);
  struct Block {
    Slot slot;
    Bytes bytes;
  };
  std::vector<Block> live;
  Bytes sum;
  std::size_t made = 0;
  while (made < shape.allocations || !live.empty()) {
    const Bytes bytes(1 + random.Below(shape.largest.count()));
    const bool wants = random.Below(100) < 73;
    if (made < shape.allocations && (live.empty() || (wants && sum + bytes < shape.most_live))) {
      live.push_back({trace.Allocate(bytes), bytes});
      sum += bytes;
      ++made;
    } else {
      const Block gone = TakeRandom(live, random);
      trace.Free(gone.slot);
      sum -= gone.bytes;
    }
  }
  return std::move(trace).Finish();
}

Trace Comb(std::string name, std::string what, const CombShape& shape) {
  TraceBuilder trace(std::move(name), std::move(what));
  for (std::uint32_t round = 0; round < shape.rounds; ++round) {
    trace.BeginStep();
    std::vector<Slot> teeth;
    for (std::uint32_t i = 0; i < shape.teeth; ++i) teeth.push_back(trace.Allocate(shape.tooth));
    for (std::uint32_t i = 0; i < shape.teeth; i += 2) trace.Free(teeth[i]);
    trace.Free(trace.Allocate(shape.tooth * (shape.teeth / 2)));
    for (std::uint32_t i = 1; i < shape.teeth; i += 2) trace.Free(teeth[i]);
  }
  return std::move(trace).Finish();
}

Trace Slivers(std::string name, std::string what, const SliverShape& shape) {
  TraceBuilder trace(std::move(name), std::move(what));
  trace.Allocate(64_MiB);  // the model
  for (std::uint32_t cycle = 0; cycle < shape.cycles; ++cycle) {
    trace.BeginStep();
    const Slot first = trace.Allocate(shape.first);
    const Slot second = trace.Allocate(shape.second);
    trace.Allocate(shape.kept);
    trace.Free(first);
    trace.Free(second);
  }
  return std::move(trace).Finish();
}

Trace ScatteredBlocks(std::string name, std::string what, const ScatterShape& shape, std::uint64_t seed) {
  TraceBuilder trace(std::move(name), std::move(what));
  Random random(seed);
  struct Request {
    std::vector<Slot> blocks;
    std::size_t wanted;
  };
  std::vector<Request> running;
  std::vector<Slot> survivors;
  std::uint32_t started = 0;
  std::uint64_t ended_blocks = 0;
  while (started < shape.requests || !running.empty()) {
    for (; running.size() < shape.at_once && started < shape.requests; ++started) {
      if (started % (shape.requests / 20 + 1) == 0) trace.BeginStep();
      running.push_back({.blocks = {}, .wanted = 16 + random.Below(112)});
    }
    for (std::size_t i = 0; i < running.size();) {
      Request& request = running[i];
      request.blocks.push_back(trace.Allocate(shape.block));
      if (request.blocks.size() < request.wanted) {
        ++i;
        continue;
      }
      for (const Slot block : request.blocks) {
        if (ended_blocks++ % shape.keep_one_in == 0) {
          survivors.push_back(block);
        } else {
          trace.Free(block);
        }
      }
      while (survivors.size() > shape.survivors) trace.Free(TakeRandom(survivors, random));
      running[i] = std::move(running.back());
      running.pop_back();
    }
  }
  return std::move(trace).Finish();
}

Event RisingChurn::Next() {
  if (allocate_freed_) {
    allocate_freed_ = false;
    return {Event::Kind::kAllocate, freed_, random_.LogUniform(shape_.smallest, shape_.largest)};
  }
  if (replacements_left_ > 0) {
    --replacements_left_;
    allocate_freed_ = true;
    freed_ = static_cast<Slot>(random_.Below(live_));
    return {Event::Kind::kFree, freed_, Bytes()};
  }
  replacements_left_ = shape_.replaced_per_addition;
  return {Event::Kind::kAllocate, live_++, random_.LogUniform(shape_.smallest, shape_.largest)};
}

}  // namespace lgpu::bench
