#include "cli/management_flags.h"

#include <linux/magic.h>
#include <pwd.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <filesystem>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cli/labels.h"
#include "cli/output.h"
#include "lgpu/status.h"

namespace lgpu::cli {
namespace {

absl::StatusOr<std::uint32_t> FindUser(const std::string& user) {
  std::uint32_t uid = 0;
  if (absl::SimpleAtoi(user, &uid)) return uid;
  if (const passwd* const entry = ::getpwnam(user.c_str()); entry != nullptr) return entry->pw_uid;
  return absl::NotFoundError(
      absl::StrCat("--owner ", Printable(user), ": there is no user of that name here"));
}

/// In milliseconds; 0: the flag was not given.
absl::StatusOr<std::uint64_t> ParseTime(const char* flag, const std::string& text) {
  if (text.empty()) return 0;
  const absl::StatusOr<std::chrono::milliseconds> time = ParseDuration(text);
  if (time.ok() && time->count() > 0) return static_cast<std::uint64_t>(time->count());
  return absl::InvalidArgumentError(absl::StrCat(
      flag, ": ",
      time.ok() ? "it must be above 0\ntry: 90s, 10m, 12h" : std::string(time.status().message())));
}

}  // namespace

void ManagementFlags::AddTo(CLI::App& verb) {
  auto* const managed_flag =
      verb.add_flag("--managed", managed,
                    "As root: a lease that root alone resizes and removes, and that counts in no cap");
  verb.add_option("--owner", owner, "With --managed: the user whose programs may attach; default: root")
      ->type_name("USER")
      ->needs(managed_flag);
  verb.add_option("--label", labels, "With --managed: a label that ls finds it by; may be repeated")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false)
      ->needs(managed_flag);
  verb.add_option("--ttl", time_to_live, "The lease ends after this time, and its programs with it")
      ->type_name("DUR");
  verb.add_option("--end-when-idle", end_when_idle, "The lease ends when it has had no program for this long")
      ->type_name("DUR");
  verb.add_option("--end-with-cgroup", cgroup,
                  "With --managed: it ends when the processes of this cgroup (version 2) have ended")
      ->type_name("DIR")
      ->needs(managed_flag);
}

absl::Status ManagementFlags::AddTo(v1::CreateLeaseRequest& request) const {
  LGPU_ASSIGN_OR_RETURN(const std::uint64_t life_ms, ParseTime("--ttl", time_to_live));
  LGPU_ASSIGN_OR_RETURN(const std::uint64_t idle_ms, ParseTime("--end-when-idle", end_when_idle));
  if (idle_ms > 0) request.mutable_ends()->set_when_idle_ms(idle_ms);
  if (!managed) {
    if (life_ms > 0) request.mutable_ends()->set_time_to_live_ms(life_ms);
    return absl::OkStatus();
  }
  v1::Management& management = *request.mutable_management();
  request.set_owner_uid(::getuid());
  if (!owner.empty()) {
    LGPU_ASSIGN_OR_RETURN(const std::uint32_t uid, FindUser(owner));
    request.set_owner_uid(uid);
  }
  for (const std::string& text : labels) {
    LGPU_ASSIGN_OR_RETURN(*management.add_labels(), ParseLabel(text));
  }
  management.set_time_to_live_ms(life_ms);
  management.set_end_with_cgroup(cgroup);
  return absl::OkStatus();
}

std::optional<std::string> ManagementFlags::NoteOnCgroup() const {
  if (cgroup.empty()) return std::nullopt;
  // The folder may be made later, in a folder that is there.
  std::filesystem::path folder = cgroup;
  struct statfs info {};
  while (::statfs(folder.c_str(), &info) != 0 && errno == ENOENT && folder.has_relative_path()) {
    folder = folder.parent_path();
  }
  if (info.f_type == 0 || info.f_type == CGROUP2_SUPER_MAGIC) return std::nullopt;
  return absl::StrCat(Printable(folder.string()), " is in no file system of cgroups (version 2), so ",
                      Printable(cgroup), " cannot become one: the lease stays until ",
                      time_to_live.empty() ? "" : "its --ttl or ", "lgpu rm");
}

}  // namespace lgpu::cli
