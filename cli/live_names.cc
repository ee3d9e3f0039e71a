#include "cli/live_names.h"

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/connection.h"
#include "lgpu/bytes.h"
#include "lgpu/status.h"

namespace lgpu::cli {
namespace {

template <typename Request, typename Response>
absl::StatusOr<Response> Ask(const CommonOptions& options, const UnaryMethod<Request, Response>& method,
                             const Request& request) {
  LGPU_ASSIGN_OR_RETURN(Connection connection, Connection::Open(options));
  return connection.Call(method, request);
}

}  // namespace

LiveNames LiveNamesOfDaemon(const CommonOptions& options) {
  LiveNames live;
  live.leases = [&options] {
    std::vector<Candidate> words;
    const auto list = Ask(options, kListLeases, v1::ListLeasesRequest());
    if (!list.ok()) return words;
    for (const v1::Lease& lease : list->leases()) {
      words.push_back(
          {lease.name(), absl::StrCat(lease.devices_size(), " x ",
                                      FormatBytes(Bytes(lease.devices(0).memory_limit_bytes())))});
    }
    return words;
  };
  live.gpus = [&options] {
    std::vector<Candidate> words;
    const auto list = Ask(options, kListPhysicalDevices, v1::ListPhysicalDevicesRequest());
    if (!list.ok()) return words;
    for (const v1::CardStats& card : list->devices()) {
      const std::string about = absl::StrCat(card.name(), " ", FormatBytes(Bytes(card.total_bytes())));
      words.push_back({absl::StrCat(card.index()), about});
      words.push_back({card.uuid(), about});
    }
    return words;
  };
  live.devices = [&options](const std::string& name) {
    std::vector<Candidate> words;
    const char* variable = std::getenv("LGPU_LEASE");
    v1::GetLeaseRequest request;
    request.set_lease(name.empty() && variable != nullptr ? variable : name);
    const auto lease = Ask(options, kGetLease, request);
    const int count = lease.ok() ? lease->devices_size() : 1;
    for (int i = 0; i < count; ++i) words.push_back({absl::StrCat("GPU:", i)});
    return words;
  };
  return live;
}

}  // namespace lgpu::cli
