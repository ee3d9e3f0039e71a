#ifndef LGPU_CLI_LS_TABLES_H_
#define LGPU_CLI_LS_TABLES_H_

#include <cstdint>
#include <string>

#include "cli/output.h"
#include "lgpu/v1/stats.pb.h"

namespace lgpu::cli {

/// The user that asked for a snapshot, and whether the daemon left out other users' leases.
struct Viewer {
  std::uint32_t uid = 0;
  bool filtered = false;
};

/// The output of `lgpu ls`: a block of GPUs, a block of leases with a row per logical device and one for
/// leases that the viewer may not see, and how much of every card can still be promised.
std::string FormatSnapshot(const v1::StatsSnapshot& snapshot, const Style& style, const Viewer& viewer);

/// "250W/700W", with the limit where it is known; "-": the driver does not tell.
std::string FormatPower(const v1::CardStats& card);

/// The output of `lgpu ps`: a row per session.
std::string FormatSessions(const v1::StatsSnapshot& snapshot, const Style& style);

/// The output of `lgpu inspect` for a lease and for a GPU.
std::string FormatLease(const v1::LeaseStats& lease, const v1::StatsSnapshot& snapshot, const Style& style);
std::string FormatCard(const v1::CardStats& card, const v1::StatsSnapshot& snapshot, const Style& style);

}  // namespace lgpu::cli

#endif  // LGPU_CLI_LS_TABLES_H_
