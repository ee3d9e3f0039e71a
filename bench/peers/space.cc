#include "bench/peers/space.h"

#include <algorithm>
#include <memory>
#include <vector>

namespace lgpu::bench {
namespace {

PageOperations Since(const PageOperations& now, const PageOperations& then) {
  return {.mapped = now.mapped - then.mapped, .unmapped = now.unmapped - then.unmapped};
}

// The event at which the second half begins.
std::size_t MiddleOf(const Trace& trace) {
  if (trace.steps < 2) return trace.drain_begin / 2;
  const auto middle = std::find_if(trace.events.begin(), trace.events.end(), [&](const Event& event) {
    return event.kind == Event::Kind::kStep && event.slot == (trace.steps + 1) / 2;
  });
  return static_cast<std::size_t>(middle - trace.events.begin());
}

// Tries some limits in (enough, enough + range], and gives the largest that does not complete; 0 if all do.
template <typename Completes>
std::uint64_t LargestRefused(std::uint64_t enough, std::uint64_t range, const LimitSearch& search,
                             const Completes& completes) {
  std::uint64_t last = 0;
  for (int i = search.confirmations; i > 0; --i) {
    // Denser close by, where most of them are.
    const double fraction = static_cast<double>(i) / search.confirmations;
    const std::uint64_t pages =
        enough + static_cast<std::uint64_t>(fraction * fraction * static_cast<double>(range));
    if (pages != enough && pages != last && !completes(pages)) return pages;
    last = pages;
  }
  return 0;
}

}  // namespace

SpaceResult ReplayForSpace(const Trace& trace, Contender& contender, OnRefusal on_refusal) {
  SpaceResult result;
  const std::size_t warm_from = MiddleOf(trace);
  std::vector<Bytes> live(trace.slots);  // zero: not live, or refused
  Bytes sum;
  PageOperations at_warm;
  for (std::size_t i = 0; i < trace.drain_begin; ++i) {
    const Event& event = trace.events[i];
    if (i == warm_from) at_warm = contender.page_operations();
    if (event.kind == Event::Kind::kStep) continue;
    if (event.kind == Event::Kind::kFree) {
      if (!live[event.slot].is_zero()) {
        contender.Free(event.slot);
        sum -= live[event.slot];
        live[event.slot] = Bytes();
      }
      continue;
    }
    if (!contender.Allocate(event.slot, event.bytes)) {
      result.first_refusal = result.refusals == 0 ? i : result.first_refusal;
      ++result.refusals;
      if (on_refusal == OnRefusal::kStop) return result;
      continue;
    }
    live[event.slot] = event.bytes;
    sum += event.bytes;
    result.peak_live = std::max(result.peak_live, sum);
    result.peak_held = std::max(result.peak_held, contender.held());
  }
  result.operations = contender.page_operations();
  result.warm_operations = Since(result.operations, at_warm);
  result.warm_steps = trace.steps > 1 ? trace.steps / 2 : 0;
  for (std::size_t i = trace.drain_begin; i < trace.events.size(); ++i) {
    if (!live[trace.events[i].slot].is_zero()) contender.Free(trace.events[i].slot);
  }
  result.completed = result.refusals == 0;
  return result;
}

std::optional<Bytes> SmallestLimit(const Trace& trace, const MakeContender& make, const LimitSearch& search) {
  const std::uint64_t fewest = RoundUp(Summarize(trace).peak_live, kPage) / kPage;
  const auto pages_of = [&](double of_peak) {
    return static_cast<std::uint64_t>(of_peak * static_cast<double>(fewest));
  };
  const auto completes = [&](std::uint64_t pages) {
    const std::unique_ptr<Contender> contender = make({.limit = kPage * pages, .slots = trace.slots});
    return ReplayForSpace(trace, *contender, OnRefusal::kStop).completed;
  };
  const std::uint64_t most = pages_of(search.largest) + 1;
  const std::uint64_t step = std::max<std::uint64_t>(1, pages_of(search.resolution));
  std::uint64_t too_few = fewest - 1;
  for (;;) {
    // A limit that is too small ends a replay early, so it costs least to come from below.
    std::uint64_t enough = too_few + 1;
    for (std::uint64_t stride = step; !completes(enough); stride *= 2) {
      if (enough == most) return std::nullopt;
      too_few = enough;
      enough = std::min(most, enough + stride);
    }
    while (enough - too_few > step) {
      const std::uint64_t middle = too_few + (enough - too_few) / 2;
      (completes(middle) ? enough : too_few) = middle;
    }
    const std::uint64_t refused = LargestRefused(enough, pages_of(search.confirmed_range), search, completes);
    if (refused == 0) return kPage * enough;
    too_few = refused;
  }
}

double UseAtFirstRefusal(const RisingChurnShape& shape, const MakeContender& make, std::uint64_t seed) {
  RisingChurn events(shape, seed);
  const auto slots = static_cast<Slot>(std::min<std::uint64_t>(shape.limit / shape.smallest, 4'000'000));
  const std::unique_ptr<Contender> contender = make({.limit = shape.limit, .slots = slots});
  std::vector<Bytes> live(slots);
  Bytes sum;
  Bytes peak;
  for (;;) {
    const Event event = events.Next();
    if (event.kind == Event::Kind::kFree) {
      contender->Free(event.slot);
      sum -= live[event.slot];
      continue;
    }
    if (event.slot >= slots || !contender->Allocate(event.slot, event.bytes)) break;
    live[event.slot] = event.bytes;
    sum += event.bytes;
    peak = std::max(peak, sum);
  }
  return static_cast<double>(peak.count()) / static_cast<double>(shape.limit.count());
}

Bytes LimitWithSpare(Bytes peak, double spare) {
  return RoundDown(Bytes(static_cast<std::uint64_t>(static_cast<double>(peak.count()) * (1 + spare))), kPage);
}

}  // namespace lgpu::bench
