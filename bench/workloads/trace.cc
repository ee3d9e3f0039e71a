#include "bench/workloads/trace.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lgpu::bench {
namespace {

// FNV-1a over 64-bit words.
void Mix(std::uint64_t& hash, std::uint64_t word) {
  hash = (hash ^ word) * 0x100000001b3ull;
  hash ^= hash >> 29;
}

}  // namespace

TraceSummary Summarize(const Trace& trace) {
  TraceSummary summary{.hash = 0xcbf29ce484222325ull};
  std::vector<Bytes> live(trace.slots);
  Bytes sum;
  for (const Event& event : trace.events) {
    Mix(summary.hash, static_cast<std::uint64_t>(event.kind) << 32 | event.slot);
    Mix(summary.hash, event.bytes.count());
    if (event.kind == Event::Kind::kAllocate) {
      ++summary.allocations;
      live[event.slot] = event.bytes;
      sum += event.bytes;
      summary.total += event.bytes;
      summary.peak_live = std::max(summary.peak_live, sum);
    } else if (event.kind == Event::Kind::kFree) {
      ++summary.frees;
      sum -= live[event.slot];
    }
  }
  return summary;
}

absl::Status Validate(const Trace& trace) {
  std::vector<bool> live(trace.slots);
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    const Event& event = trace.events[i];
    if (event.kind == Event::Kind::kStep) continue;
    const bool allocates = event.kind == Event::Kind::kAllocate;
    if (event.slot >= trace.slots || live[event.slot] == allocates || (allocates && event.bytes.is_zero())) {
      return absl::InternalError(absl::StrCat("trace ", trace.name, ": event ", i, " ",
                                              allocates ? "allocates" : "frees", " slot ", event.slot, " (",
                                              event.bytes.count(), " bytes), which cannot be"));
    }
    live[event.slot] = allocates;
    count += allocates ? 1 : -1;
  }
  return count == 0
             ? absl::OkStatus()
             : absl::InternalError(absl::StrCat("trace ", trace.name, " ends with ", count, " blocks"));
}

TraceBuilder::TraceBuilder(std::string name, std::string what) {
  trace_.name = std::move(name);
  trace_.what = std::move(what);
}

Slot TraceBuilder::Allocate(Bytes bytes) {
  Slot slot = trace_.slots;
  if (vacant_.empty()) {
    ++trace_.slots;
    born_.push_back(0);
  } else {
    slot = vacant_.back();
    vacant_.pop_back();
  }
  trace_.events.push_back({Event::Kind::kAllocate, slot, std::max(bytes, Bytes(1))});
  born_[slot] = trace_.events.size();
  return slot;
}

void TraceBuilder::Free(Slot slot) {
  trace_.events.push_back({Event::Kind::kFree, slot, Bytes()});
  born_[slot] = 0;
  vacant_.push_back(slot);
}

void TraceBuilder::BeginStep() {
  trace_.events.push_back({Event::Kind::kStep, trace_.steps, Bytes()});
  ++trace_.steps;
}

Trace TraceBuilder::Finish() && {
  trace_.drain_begin = trace_.events.size();
  std::vector<Slot> kept;
  for (Slot slot = 0; slot < trace_.slots; ++slot) {
    if (born_[slot] != 0) kept.push_back(slot);
  }
  std::sort(kept.begin(), kept.end(), [&](Slot a, Slot b) { return born_[a] < born_[b]; });
  for (const Slot slot : kept) Free(slot);
  return std::move(trace_);
}

}  // namespace lgpu::bench
