#include "cli/unfit_drivers.h"

namespace lgpu::cli {
namespace {

struct Unfit {
  std::string_view branch;  // versions begin with it
  const char* why;
};

constexpr Unfit kUnfitDrivers[] = {
    {"610.",
     "the driver's lock call may crash the program (SIGSEGV; issue 58 of NVIDIA's cuda-checkpoint); use "
     "another driver"},
};

}  // namespace

const char* WhyUnfitToSuspend(std::string_view driver) {
  for (const Unfit& unfit : kUnfitDrivers) {
    if (driver.substr(0, unfit.branch.size()) == unfit.branch) return unfit.why;
  }
  return nullptr;
}

}  // namespace lgpu::cli
