#include "tests/load/load.h"

#include <functional>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lgpu/status.h"

namespace lgpu::testing {
namespace {

/// Runs `body` once on each thread, with its number; the first error of any.
absl::Status OnThreads(int threads, const std::function<absl::Status(int)>& body) {
  std::vector<absl::Status> results(static_cast<std::size_t>(threads));
  std::vector<std::thread> running;
  for (int i = 0; i < threads; ++i) {
    running.emplace_back([&, i] { results[static_cast<std::size_t>(i)] = body(i); });
  }
  for (std::thread& thread : running) thread.join();
  for (const absl::Status& result : results) LGPU_RETURN_IF_ERROR(result);
  return absl::OkStatus();
}

}  // namespace

DaemonSize SizeOf(pid_t daemon) {
  return {.private_bytes = PrivateBytes(daemon), .descriptors = CountDescriptors(daemon)};
}

absl::StatusOr<LoadSession> LoadSession::Open(const std::string& dir, Control& control,
                                              std::uint64_t limit_bytes) {
  LGPU_ASSIGN_OR_RETURN(RawSession raw, RawSession::Open(dir));
  control.SetSessionToken(raw.token);
  LGPU_ASSIGN_OR_RETURN(const v1::Lease lease, control.CreateLease(OneDevice(limit_bytes)));
  LoadSession session(std::move(raw));
  session.device_ = lease.devices(0).id();
  return session;
}

absl::Status LoadSession::Grow(std::uint64_t bytes) {
  LGPU_ASSIGN_OR_RETURN(RawSession::Grown grown, session_.Grow(++last_request_, device_, bytes));
  grown.fds.clear();
  grants_.push_back(std::move(grown));
  return absl::OkStatus();
}

absl::Status LoadSession::Return() {
  if (grants_.empty()) return absl::OkStatus();
  v1::Frame frame;
  frame.mutable_return_chunks()->set_request_id(++last_request_);
  frame.mutable_return_chunks()->set_device_id(device_);
  for (const v1::Chunk& chunk : grants_.back().chunks) {
    frame.mutable_return_chunks()->add_chunk_ids(chunk.id());
  }
  grants_.pop_back();
  LGPU_ASSIGN_OR_RETURN(const GeneratedFrame answer, session_.Ask(frame));
  if (!answer.frame.has_returned()) {
    return absl::InternalError(absl::StrCat("no ReturnReply: ", answer.frame.ShortDebugString()));
  }
  return absl::Status(static_cast<absl::StatusCode>(answer.frame.returned().code()),
                      answer.frame.returned().message());
}

absl::Status LoadSession::Close() {
  v1::Frame frame;
  frame.mutable_close()->set_request_id(++last_request_);
  LGPU_ASSIGN_OR_RETURN(const GeneratedFrame answer, session_.Ask(frame));
  if (answer.frame.has_closed()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("no Closed: ", answer.frame.ShortDebugString()));
}

absl::Status RunLeaseCycles(const std::string& dir, int cycles, int threads) {
  constexpr int kCyclesOfAConnection = 100;  // then the next control connection
  return OnThreads(threads, [&](int thread) -> absl::Status {
    std::unique_ptr<Control> control;
    for (int i = thread; i < cycles; i += threads) {
      if (control == nullptr || (i / threads) % kCyclesOfAConnection == 0) {
        LGPU_ASSIGN_OR_RETURN(control, Control::Open(dir));
      }
      LGPU_ASSIGN_OR_RETURN(LoadSession session, LoadSession::Open(dir, *control, 8 * kMiB));
      LGPU_RETURN_IF_ERROR(session.Grow(2 * kMiB));
      LGPU_RETURN_IF_ERROR(session.Return());
      LGPU_RETURN_IF_ERROR(session.Close());
    }
    return absl::OkStatus();
  });
}

absl::Status MakeDevices(Control& control, int leases, int devices_each, int owners) {
  for (int i = 0; i < leases; ++i) {
    v1::CreateLeaseRequest request = OneDevice(64 * kMiB, /*preallocate=*/false, /*lasting=*/true);
    request.set_name(absl::StrCat("load-", i));
    if (owners > 1) {
      request.mutable_management();
      request.set_owner_uid(static_cast<std::uint32_t>(1 + i % owners));
    }
    for (int device = 1; device < devices_each; ++device) *request.add_devices() = request.devices(0);
    LGPU_RETURN_IF_ERROR(control.CreateLease(request).status());
  }
  return absl::OkStatus();
}

absl::Status GrowAndReturnAtRandom(const std::string& dir, int sessions, int threads, int rounds,
                                   std::uint32_t seed) {
  return OnThreads(threads, [&](int thread) -> absl::Status {
    std::mt19937 random(seed + static_cast<std::uint32_t>(thread));
    LGPU_ASSIGN_OR_RETURN(const std::unique_ptr<Control> control, Control::Open(dir));
    std::vector<LoadSession> mine;
    for (int i = thread; i < sessions; i += threads) {
      LGPU_ASSIGN_OR_RETURN(LoadSession session, LoadSession::Open(dir, *control, 16 * kMiB));
      mine.push_back(std::move(session));
    }
    for (int round = 0; round < rounds; ++round) {
      for (LoadSession& session : mine) {
        if (random() % 3 == 0) {
          LGPU_RETURN_IF_ERROR(session.Return());
          continue;
        }
        const absl::Status grown = session.Grow((1 + random() % 8) * kMiB);
        if (!grown.ok() && !absl::IsResourceExhausted(grown)) return grown;
      }
    }
    for (LoadSession& session : mine) LGPU_RETURN_IF_ERROR(session.Close());
    return absl::OkStatus();
  });
}

}  // namespace lgpu::testing
