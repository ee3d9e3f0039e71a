#ifndef LGPU_TESTS_CLIENT_CONTEXT_TESTING_H_
#define LGPU_TESTS_CLIENT_CONTEXT_TESTING_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/runtime/context_maker.h"
#include "lgpu/lgpu.h"
#include "proto/wire/placement_ring.h"
#include "tests/client/fake_lease.h"

namespace lgpu::testing {

inline constexpr char kGpu0[] = "/job:localhost/replica:0/task:0/device:GPU:0";
inline constexpr char kGpu1[] = "/job:localhost/replica:0/task:0/device:GPU:1";
inline constexpr char kCpu0[] = "/job:localhost/replica:0/task:0/device:CPU:0";

/// A Context on a FakeLease, the lines that it logs, and its records, also after its end.
struct TestContext {
  explicit TestContext(const FakeLeaseOptions& lease_options = {}, ContextOptions options = {},
                       const lgpu::internal::RuntimeOptions& runtime = {}) {
    options.log_sink = [lines = lines](std::string_view line) { lines->emplace_back(line); };
    auto lease = std::make_unique<FakeLease>(lease_options, log);
    page = &lease->page();
    auto made = lgpu::internal::ContextMaker::Make(std::move(lease), options, runtime);
    EXPECT_TRUE(made.ok()) << made.status();
    gpu = std::make_unique<Context>(*std::move(made));
  }

  /// The records of ops that were not read yet. Records of copies among them are kept for Copies.
  std::vector<PlacementEntry> Records() {
    if (reader == nullptr) reader = std::make_unique<PlacementRingReader>(&page->ring);
    std::vector<PlacementEntry> records;
    while (const auto record = reader->Next()) {
      ((record->flags & PlacementEntry::kCopy) != 0 ? copies : records).push_back(*record);
    }
    return records;
  }
  /// The records of copies that were not read yet. Records of ops are dropped.
  std::vector<PlacementEntry> Copies() {
    (void)Records();
    return std::exchange(copies, {});
  }

  std::shared_ptr<FakeLeaseLog> log = std::make_shared<FakeLeaseLog>();
  std::shared_ptr<std::vector<std::string>> lines = std::make_shared<std::vector<std::string>>();
  ClientPage* page = nullptr;  // of the context
  std::unique_ptr<PlacementRingReader> reader;
  std::vector<PlacementEntry> copies;
  std::unique_ptr<Context> gpu;
};

/// The value of a StatusOr that must be OK.
template <typename T>
T Must(absl::StatusOr<T> value) {
  EXPECT_TRUE(value.ok()) << value.status();
  return value.ok() ? *std::move(value) : T();
}

}  // namespace lgpu::testing

#endif  // LGPU_TESTS_CLIENT_CONTEXT_TESTING_H_
