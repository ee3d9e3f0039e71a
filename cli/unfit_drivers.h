#ifndef LGPU_CLI_UNFIT_DRIVERS_H_
#define LGPU_CLI_UNFIT_DRIVERS_H_

#include <string_view>

namespace lgpu::cli {

/// Why programs are not suspended with the NVIDIA driver of this version ("580.95.05"); null: nothing is
/// known against it.
const char* WhyUnfitToSuspend(std::string_view driver);

}  // namespace lgpu::cli

#endif  // LGPU_CLI_UNFIT_DRIVERS_H_
