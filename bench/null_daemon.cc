#include "bench/null_daemon.h"

#include <cstdint>
#include <memory>
#include <utility>

#include "bench/null_backend.h"
#include "bench/session_host.h"
#include "lgpu/status.h"

namespace lgpu::bench {

absl::Status ServeOverNullBackend(UniqueFd session, UniqueFd control) {
  LGPU_ASSIGN_OR_RETURN(const std::unique_ptr<DeviceMemory> backend, MakeNullBackend());
  LGPU_ASSIGN_OR_RETURN(const std::unique_ptr<SessionHost> host, SessionHost::Start(*backend, {}));
  LGPU_RETURN_IF_ERROR(host->Serve(std::move(session)));
  char asked = 0;
  while (::read(control.get(), &asked, sizeof(asked)) == sizeof(asked)) {
    LGPU_ASSIGN_OR_RETURN(const std::uint64_t device, host->MakeLease("", 64_GiB));
    if (::write(control.get(), &device, sizeof(device)) != sizeof(device)) break;
  }
  return absl::OkStatus();
}

}  // namespace lgpu::bench
