// The handshake and attesting after a restart, by themselves: two clients with leases and memory, whose
// daemon was started again; connections come and go, greet, resume as any session, truly or not, and attest
// chunks. Far fewer sequences than in session_fuzz, so that all of them are tried.
//
// Input: as session_fuzz, with the steps of kSteps.

#include <array>
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/session_world.h"

namespace lgpu::daemon {
namespace {

constexpr std::array kSteps = {Deed::kConnect, Deed::kHello,   Deed::kResume, Deed::kAttest,
                               Deed::kHang,    Deed::kRestart, Deed::kBare,   Deed::kClose};

// For each of two: it connects, says the daemon's versions, makes a lease of four chunks, asks for two.
constexpr std::array kPrologueSteps = {Deed::kConnect, Deed::kHello,       Deed::kMakeLease,
                                       Deed::kGrow,    Deed::kAcknowledge, Deed::kRestart};
constexpr std::array<std::uint8_t, 36> kPrologue = {
    0, 0, 1, 0, 6, 0, 2, 0, 4, 3, 0, 0, 4, 4, 0, 4, 0,  // the first; its command is empty
    0, 1, 1, 1, 6, 0, 2, 1, 4, 3, 1, 1, 4, 4, 0, 4, 1,  // the second
    5, 0,                                               // the daemon is started again
};

}  // namespace
}  // namespace lgpu::daemon

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lgpu::daemon;
  if (size > 256) return 0;
  const std::ptrdiff_t before = CountDescriptors();
  {
    SessionWorld world;
    lgpu::InputReader prologue(kPrologue.data(), kPrologue.size());
    while (!prologue.is_empty()) world.Step(prologue, kPrologueSteps);
    for (const std::size_t i : {0, 1}) LGPU_CHECK_OP(world.client(i).chunks().size(), ==, 2u);
    lgpu::InputReader input(data, size);
    while (!input.is_empty()) world.Step(input, kSteps);
    world.End();
  }
  LGPU_CHECK_OP(CountDescriptors(), ==, before);
  return 0;
}
