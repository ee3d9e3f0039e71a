#include "daemon/leases/users.h"

#include <grp.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/utf8.h"

namespace lgpu::daemon {
namespace {

constexpr std::size_t kEntryBytes = 16 * 1024;
constexpr int kMaxGroups = 256;

std::string Text(Bytes amount) { return FormatBytes(amount); }
std::string Text(std::uint32_t count) { return absl::StrCat(count); }

}  // namespace

std::string UserName(std::uint32_t uid) {
  std::vector<char> buffer(kEntryBytes);
  passwd entry{};
  passwd* found = nullptr;
  const int error = ::getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found);
  return error != 0 || found == nullptr ? absl::StrCat(uid) : AsUtf8(found->pw_name);
}

absl::StatusOr<std::uint32_t> FindUser(const std::string& owner) {
  std::uint32_t uid = 0;
  if (owner.empty()) return ::geteuid();
  if (absl::SimpleAtoi(owner, &uid)) return uid;
  std::vector<char> buffer(16384);
  passwd entry{};
  passwd* found = nullptr;
  ::getpwnam_r(owner.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found != nullptr) return entry.pw_uid;
  return absl::InvalidArgumentError(absl::StrCat("there is no user '", owner, "' on this machine"));
}

User LookUpUser(std::uint32_t uid) {
  User user{.uid = uid, .name = absl::StrCat(uid), .groups = {}, .gids = {}};
  std::vector<char> buffer(kEntryBytes);
  passwd entry{};
  passwd* found = nullptr;
  if (::getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found) != 0 || found == nullptr) return user;
  user.name = AsUtf8(found->pw_name);
  std::vector<gid_t> gids(kMaxGroups);
  int count = kMaxGroups;
  if (::getgrouplist(found->pw_name, found->pw_gid, gids.data(), &count) < 0) count = kMaxGroups;
  for (int i = 0; i < count; ++i) {
    const gid_t gid = gids[static_cast<std::size_t>(i)];
    group group_entry{};
    group* group_found = nullptr;
    std::vector<char> group_buffer(kEntryBytes);
    const bool known =
        ::getgrgid_r(gid, &group_entry, group_buffer.data(), group_buffer.size(), &group_found) == 0 &&
        group_found != nullptr;
    user.gids.push_back(gid);
    user.groups.push_back(known ? std::string(group_found->gr_name) : absl::StrCat(gid));
  }
  return user;
}

const CapConfig* FindUserCap(const std::vector<CapConfig>& caps, const User& user) {
  const CapConfig* everybody = nullptr;
  for (const CapConfig& cap : caps) {
    if (cap.name == user.name || cap.name == absl::StrCat(user.uid)) return &cap;
    if (cap.name == "*") everybody = &cap;
  }
  return everybody;
}

bool IsInGroup(const User& user, const std::string& group) {
  if (std::find(user.groups.begin(), user.groups.end(), group) != user.groups.end()) return true;
  return std::any_of(user.gids.begin(), user.gids.end(),
                     [&group](std::uint32_t gid) { return group == absl::StrCat(gid); });
}

std::vector<const CapConfig*> FindGroupCaps(const std::vector<CapConfig>& caps, const User& user) {
  std::vector<const CapConfig*> found;
  for (const CapConfig& cap : caps) {
    if (IsInGroup(user, cap.name)) found.push_back(&cap);
  }
  return found;
}

absl::Status CheckCap(const CapConfig& cap, const std::string& holder, const Holdings& has,
                      const Holdings& would_have) {
  const std::string hint = absl::StrCat(
      has.leases > 0 && absl::StartsWith(holder, "user ") ? "end one of your leases with `lgpu rm LEASE`, "
                                                          : "",
      "ask for less, or ask the administrator to raise the cap in lgpud.toml");
  const auto over = [&](const char* key, const char* what, auto now, auto then,
                        auto allowed) -> absl::Status {
    const std::string text =
        absl::StrCat(holder, " may have ", what, " of at most ", Text(allowed), " (", cap.key, ".", key,
                     "): has ", Text(now), ", would have ", Text(then), "; ", hint);
    // More than the cap all by itself: no waiting helps.
    return then - now > allowed ? absl::InvalidArgumentError(text) : absl::ResourceExhaustedError(text);
  };
  if (cap.memory_limit && would_have.memory_limit > *cap.memory_limit &&
      would_have.memory_limit > has.memory_limit) {
    return over("memory_limit", "memory limits (each in whole chunks)", has.memory_limit,
                would_have.memory_limit, *cap.memory_limit);
  }
  if (cap.guarantee && would_have.guarantee > *cap.guarantee && would_have.guarantee > has.guarantee) {
    return over("guarantee", "guarantees (each in whole chunks)", has.guarantee, would_have.guarantee,
                *cap.guarantee);
  }
  if (cap.leases && would_have.leases > *cap.leases && would_have.leases > has.leases) {
    return over("leases", "a number of leases", has.leases, would_have.leases, *cap.leases);
  }
  if (cap.sessions && would_have.sessions > *cap.sessions && would_have.sessions > has.sessions) {
    return over("sessions", "a number of sessions", has.sessions, would_have.sessions, *cap.sessions);
  }
  return absl::OkStatus();
}

}  // namespace lgpu::daemon
