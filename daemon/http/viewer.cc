#include "daemon/http/viewer.h"

#include <limits>
#include <string>

namespace lgpu::daemon {
namespace {

// PeerUser's numbers from here on are no uids.
constexpr std::uint64_t kNoUid = std::uint64_t{1} << 32;
// (uid_t)-1, which no user has.
constexpr std::uint32_t kUnknownUid = std::numeric_limits<std::uint32_t>::max();

}  // namespace

Viewer ViewerOf(std::uint64_t user, bool sees_all) {
  const bool is_known = user < kNoUid && user != kUnknownUid;
  Viewer viewer;
  viewer.is_known = is_known;
  if (sees_all || (is_known && user == 0)) return viewer;
  viewer.caller.uid = is_known ? static_cast<std::uint32_t>(user) : kUnknownUid;
  viewer.sees_names = false;
  return viewer;
}

void HideOthers(const Viewer& viewer, const UserNames& names, v1::StatsSnapshot& snapshot) {
  if (viewer.sees_names) return;
  const std::string user = viewer.is_known ? names.NameOf(viewer.caller.uid) : "";
  for (v1::CardStats& card : *snapshot.mutable_cards()) {
    for (v1::QueuedRequest& request : *card.mutable_queue()) {
      if (viewer.is_known && request.owner() == user) continue;
      request.clear_owner();
      request.clear_pid();
    }
    for (v1::ForeignProcess& process : *card.mutable_foreign_processes()) {
      if (viewer.is_known && process.uid() == viewer.caller.uid && !process.user().empty()) continue;
      process.clear_uid();
      process.clear_user();
      process.clear_command();
      process.clear_pid();
    }
  }
}

}  // namespace lgpu::daemon
