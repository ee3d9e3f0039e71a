// The other end of a session page, as a process of its own. The page is descriptor 3.
//   proto_test_peer push THREADS   pushes records for ever; it ends by SIGKILL
//   proto_test_peer attack-stats   tries to write or resize the page; the exit code has a bit for each
//   success proto_test_peer attack-client  tries to resize or reseal the page; likewise

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/mapped_region.h"
#include "proto/wire/pages.h"

namespace lgpu {
namespace {

constexpr int kPageFd = 3;

void PushForEver(ClientPage& page) {
  for (std::uint64_t i = 1;; ++i) {
    page.ring.Push(
        {.op = static_cast<std::uint16_t>(i), .output_bytes = i, .submitted_unix_ns = i, .host_ns = i});
  }
}

int Push(int threads) {
  absl::StatusOr<SharedPage<ClientPage>> page = SharedPages::OpenClientPage(MapWithBoost, UniqueFd(kPageFd));
  if (!page.ok()) {
    std::fprintf(stderr, "%s\n", page.status().ToString().c_str());
    return 1;
  }
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back([&page] { PushForEver(**page); });
  PushForEver(**page);
  return 0;
}

int AttackStats() {
  int successes = 0;
  if (::mmap(nullptr, sizeof(StatsPage), PROT_READ | PROT_WRITE, MAP_SHARED, kPageFd, 0) != MAP_FAILED) {
    successes |= 1;
  }
  void* readable = ::mmap(nullptr, sizeof(StatsPage), PROT_READ, MAP_SHARED, kPageFd, 0);
  if (readable == MAP_FAILED || ::mprotect(readable, sizeof(StatsPage), PROT_READ | PROT_WRITE) == 0) {
    successes |= 2;
  }
  const std::string path = "/proc/self/fd/" + std::to_string(kPageFd);
  const int again = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (again >= 0 &&
      ::mmap(nullptr, sizeof(StatsPage), PROT_READ | PROT_WRITE, MAP_SHARED, again, 0) != MAP_FAILED) {
    successes |= 4;
  }
  if (::pwrite(kPageFd, "x", 1, 0) == 1) successes |= 8;
  if (::ftruncate(kPageFd, 0) == 0 || ::ftruncate(kPageFd, 1 << 20) == 0) successes |= 16;
  if (::fallocate(kPageFd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == 0) successes |= 32;
  return successes;
}

int AttackClient() {
  int successes = 0;
  if (::ftruncate(kPageFd, 0) == 0) successes |= 1;
  if (::ftruncate(kPageFd, 1 << 24) == 0) successes |= 2;
  if (::fcntl(kPageFd, F_ADD_SEALS, F_SEAL_WRITE) == 0 ||
      ::fcntl(kPageFd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) == 0) {
    successes |= 4;
  }
  return successes;
}

}  // namespace
}  // namespace lgpu

int main(int argc, char** argv) {
  const std::string_view mode = argc > 1 ? argv[1] : "";
  if (mode == "push" && argc > 2) return lgpu::Push(std::atoi(argv[2]));
  if (mode == "attack-stats") return lgpu::AttackStats();
  return mode == "attack-client" ? lgpu::AttackClient() : 127;
}
