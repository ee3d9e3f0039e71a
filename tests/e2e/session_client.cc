// A program on client/session alone that runs a test's commands: it reads them from stdin, a line each, and
// answers each with one line, "ok ..." or "error CODE text", in which \n stands for a line break.

#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "client/session/daemon_lease.h"
#include "client/session/memory_session.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

using Words = std::vector<std::string>;

std::string Error(const absl::Status& status) {
  std::string line = "error " + absl::StatusCodeToString(status.code()) + " ";
  for (const char c : std::string(status.message())) c == '\n' ? line += "\\n" : line += c;
  return line;
}

std::string Answer(const absl::Status& status) { return status.ok() ? "ok" : Error(status); }

template <typename Value>
std::string Answer(const absl::StatusOr<Value>& value, std::string (*text)(const Value&)) {
  return value.ok() ? "ok " + text(*value) : Error(value.status());
}

std::string Count(const Bytes& bytes) { return std::to_string(bytes.count()); }

// The first device of a lease, with two streams.
class Client {
 public:
  std::string Do(const Words& words) {
    const std::string& verb = words[0];
    if (verb == "setuid") return ::setuid(static_cast<uid_t>(std::stoul(words.at(1)))) == 0 ? "ok" : "error";
    if (verb == "attach") return Answer(Attach(words.at(1)));
    if (verb == "close") return Answer(session_->Close());
    if (verb == "alloc") return Answer(Allocate(words.at(1), std::stoull(words.at(2))));
    if (verb == "free") return Answer(Free(words.at(1)));
    if (verb == "sum") {
      return Answer(
          Sum(words.at(1)), +[](const int& sum) { return std::to_string(sum); });
    }
    if (verb == "trim") return Answer(memory().Trim(), Count);
    if (verb == "used") return "ok " + Count(memory().stats().used);
    if (verb == "held") return "ok " + Count(memory().stats().held);
    if (verb == "resize") return Answer(session_->lease().Resize(0, 8_MiB, std::nullopt));
    return "error no such command";
  }

 private:
  static constexpr StreamId kOther = 1;

  DevicePool& memory() { return session_->memory(0); }

  absl::Status Attach(const std::string& lease_id) {
    LGPU_ASSIGN_OR_RETURN(const Endpoint endpoint, ResolveEndpoint("", EndpointEnvironment::OfThisProcess()));
    LGPU_ASSIGN_OR_RETURN(std::unique_ptr<Lease> lease, DaemonLease::Attach(endpoint, lease_id));
    session_ = std::make_unique<MemorySession>(std::move(lease));
    session_->StartUpkeep();
    for (StreamHandle& stream : streams_) {
      LGPU_ASSIGN_OR_RETURN(stream, backend().CreateStream(card(), 0));
      LGPU_RETURN_IF_ERROR(memory().AddStream(stream).status());
    }
    return absl::OkStatus();
  }

  // Filled on one stream, with a byte that depends on the name, and read on the other.
  absl::Status Allocate(const std::string& name, std::uint64_t mib) {
    const Bytes bytes = 1_MiB * mib;
    LGPU_ASSIGN_OR_RETURN(const Block block,
                          memory().Allocate(bytes, {.timeout = std::chrono::milliseconds(500)}));
    blocks_[name] = {block, bytes};
    const std::vector<char> data(bytes.count(), name.back());
    LGPU_RETURN_IF_ERROR(backend().CopyToDevice(streams_[0], block.address, data.data(), bytes));
    LGPU_RETURN_IF_ERROR(memory().UseOn(block, kOther));
    LGPU_ASSIGN_OR_RETURN(const Fence fence, backend().Record(streams_[0]));
    return backend().WaitOnStream(streams_[kOther], fence);
  }

  absl::Status Free(const std::string& name) {
    const auto node = blocks_.extract(name);
    return memory().Free(node.mapped().block, node.mapped().requested);
  }

  // How many MiB hold the byte that was written.
  absl::StatusOr<int> Sum(const std::string& name) {
    const Owned& owned = blocks_.at(name);
    std::string data(owned.requested.count(), '\0');
    LGPU_RETURN_IF_ERROR(
        backend().CopyToHost(streams_[kOther], data.data(), owned.block.address, owned.requested));
    const std::string expected((1_MiB).count(), name.back());
    int right = 0;
    for (std::size_t i = 0; i < data.size(); i += expected.size()) {
      right += data.compare(i, expected.size(), expected) == 0 ? 1 : 0;
    }
    return right;
  }

  DeviceBackend& backend() { return session_->lease().backend(); }
  int card() { return session_->lease().devices()[0].backend_device; }

  struct Owned {
    Block block;
    Bytes requested;
  };
  std::unique_ptr<MemorySession> session_;
  StreamHandle streams_[2];
  std::map<std::string, Owned> blocks_;
};

}  // namespace
}  // namespace lgpu

int main() {
  lgpu::Client client;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream text(line);
    const std::vector<std::string> words{std::istream_iterator<std::string>(text), {}};
    std::cout << client.Do(words) << std::endl;
  }
  return 0;
}
