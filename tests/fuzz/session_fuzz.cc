// Clients that send the daemon anything in any order: greeting, grants, acknowledgements, returns, trims,
// Close, leases that come and go, restarts of the daemon and attestations after them; see SessionWorld.
//
// Input: steps of a byte for what to do, one for which of the connections (and whether to wait for the
// answer), and the bytes that the step itself reads.

#include <array>
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/session_world.h"

namespace lgpu::daemon {
namespace {

constexpr std::array kSteps = {
    Deed::kConnect,     Deed::kHello,      Deed::kResume,      Deed::kMakeLease,
    Deed::kAttach,      Deed::kGrow,       Deed::kAcknowledge, Deed::kAcknowledgeSomehow,
    Deed::kReturn,      Deed::kAnswerTrim, Deed::kClose,       Deed::kHang,
    Deed::kPacket,      Deed::kAttest,     Deed::kRestart,     Deed::kResize,
    Deed::kRemoveLease, Deed::kBare,       Deed::kBystander};

}  // namespace
}  // namespace lgpu::daemon

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lgpu::daemon;
  if (size > 512) return 0;
  const std::ptrdiff_t before = CountDescriptors();
  {
    SessionWorld world;
    lgpu::InputReader input(data, size);
    while (!input.is_empty()) world.Step(input, kSteps);
    world.End();
  }
  LGPU_CHECK_OP(CountDescriptors(), ==, before);
  return 0;
}
