#ifndef LGPU_DAEMON_SESSIONS_OP_COUNTS_H_
#define LGPU_DAEMON_SESSIONS_OP_COUNTS_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace lgpu::daemon {

struct OpCount {
  std::uint64_t executed = 0;
  std::uint64_t soft_placed = 0;
};
/// How many ops ran, by name and by whether on a GPU. Names are lgpu's own; a client's other names count as
/// "other", so that no client can add entries.
using OpCounts = std::map<std::pair<std::string, bool>, OpCount>;

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_SESSIONS_OP_COUNTS_H_
