// lgpu-hook: what a container's runtime starts to put a container's programs into a lease (lgpu-hook(8)).

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string_view>

#include "client/hook/cover.h"
#include "client/hook/refuse.h"

namespace lgpu::hook {
namespace {

constexpr char kHelp[] =
    "Usage: lgpu-hook cover LEASE GPUS FOLDER   a container's runtime starts this, as the CDI file of\n"
    "                                           `lgpu env LEASE --format cdi` says\n"
    "       lgpu-hook check                     says whether this machine can limit containers\n"
    "The manual page lgpu-hook(8) has more.\n";

int RunCheck() {
  (void)ReadInstalled();
  const Root root(UniqueFd(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC)));
  if (!root.OpenFolder("/")) Refuse("this kernel has no openat2: " + Reason(errno));
  mount_attr attributes = {};
  // Of no mount: only a kernel without the call says ENOSYS.
  if (::mount_setattr(-1, "", AT_EMPTY_PATH, &attributes, sizeof(attributes)) != 0 && errno == ENOSYS) {
    Refuse("this kernel has no mount_setattr: Linux 5.12 or newer is needed");
  }
  std::puts("lgpu-hook can limit containers on this machine");
  return 0;
}

int Run(int argc, char** argv) {
  ::umask(022);
  const std::string_view verb = argc > 1 ? argv[1] : "";
  if (verb == "check" && argc == 2) return RunCheck();
  if (verb == "cover" && argc == 5) {
    const std::vector<Installed> libraries = ReadInstalled();
    Cover(ReadContainer(STDIN_FILENO), libraries, {.id = argv[2], .cards = argv[3], .directory = argv[4]});
    return 0;
  }
  const bool is_help = argc == 2 && (verb == "--help" || verb == "-h");
  std::fputs(kHelp, is_help ? stdout : stderr);
  return is_help ? 0 : 2;
}

}  // namespace
}  // namespace lgpu::hook

int main(int argc, char** argv) { return lgpu::hook::Run(argc, argv); }
