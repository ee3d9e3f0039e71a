#include "client/driver/environment.h"

#include <cstdlib>
#include <string_view>

namespace lgpu::shim {
namespace {

constexpr long kDefaultWait = 2000;
constexpr long kLongestWait = 86'400'000;

}  // namespace

std::optional<LeaseSession::Options> OptionsFromEnvironment(const char* client) {
  const char* const off = std::getenv("LGPU_SHIM");
  const char* const lease = std::getenv("LGPU_LEASE");
  if ((off != nullptr && std::string_view(off) == "off") || lease == nullptr || *lease == '\0')
    return std::nullopt;
  const char* const endpoint = std::getenv("LGPU_ENDPOINT");
  LeaseSession::Options options;
  options.directory = endpoint == nullptr || *endpoint == '\0' ? "/run/lgpu" : endpoint;
  options.lease = lease;
  options.client = client;
  const char* const wait = std::getenv("LGPU_MEMORY_WAIT_MS");
  char* end = nullptr;
  const long wanted = wait == nullptr ? kDefaultWait : std::strtol(wait, &end, 10);
  const bool is_number =
      wait != nullptr && end != wait && *end == '\0' && wanted >= 0 && wanted <= kLongestWait;
  options.memory_wait = std::chrono::milliseconds(is_number ? wanted : kDefaultWait);
  return options;
}

}  // namespace lgpu::shim
