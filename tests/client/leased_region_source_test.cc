#include "client/session/leased_region_source.h"

#include <gtest/gtest.h>

#include <future>
#include <latch>

#include "allocator/device/simulated/simulated_backend.h"
#include "client/control/control_client.h"
#include "client/runtime/open_lease.h"
#include "client/session/endpoint.h"
#include "tests/client/fake_daemon.h"
#include "tests/contract/region_source_contract.h"
#include "tests/support/daemon_process.h"
#include "tests/support/daemon_stats.h"
#include "tests/support/open_files_limit.h"

namespace lgpu {
namespace {

using ::lgpu::testing::DaemonProcess;
using ::lgpu::testing::FakeDaemon;
using ::lgpu::testing::FakePeer;

/// A lease of a real lgpud with one device.
class LeasedWorld : public RegionSourceWorld {
 public:
  static std::unique_ptr<RegionSourceWorld> Make(Bytes limit, MemoryMode mode) {
    auto world = std::make_unique<LeasedWorld>();
    auto daemon = DaemonProcess::Start({.simulate = "256MiB"});
    EXPECT_TRUE(daemon.ok()) << daemon.status();
    if (!daemon.ok()) return nullptr;
    world->daemon_ = *std::move(daemon);
    ContextOptions options;
    options.endpoint = world->daemon_->dir();
    options.logical_devices = {{.memory_limit = limit, .mode = mode}};
    auto lease = OpenLease(options, Contents::kBlocksOfCaller);
    EXPECT_TRUE(lease.ok()) << lease.status();
    if (!lease.ok()) return nullptr;
    world->lease_ = *std::move(lease);
    return world;
  }
  std::unique_ptr<RegionSource> TakeSource() override { return lease_->TakeSource(0); }
  Bytes held() override {
    auto socket = FindDaemon({.directories = {daemon_->dir()}});
    if (!socket.ok()) return Bytes(~std::uint64_t{0});
    const auto control = ControlClient::Create(std::move(socket->control), socket->directory);
    if (!control.ok()) return Bytes(~std::uint64_t{0});
    auto stats = testing::StatsOf(**control);
    EXPECT_TRUE(stats.ok()) << stats.status();
    // The session's: of a preallocated device the lease holds everything, granted or not.
    return stats.ok() ? Bytes(stats->leases(0).sessions(0).held_bytes()) : Bytes(~std::uint64_t{0});
  }

 private:
  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<Lease> lease_;
};

RegionSourceFactory Factory(const char* name, MemoryMode mode) {
  return {name, [mode](Bytes limit) { return LeasedWorld::Make(limit, mode); }};
}
INSTANTIATE_TEST_SUITE_P(Leased, RegionSourceContract,
                         ::testing::Values(Factory("Growth", MemoryMode::kGrowth),
                                           Factory("Preallocate", MemoryMode::kPreallocate)),
                         RegionSourceName);

TEST(LeasedRegionSourceTest, AFailedImportGivesTheWholeGrantBack) {
  std::vector<std::uint64_t> given_back;
  FakeDaemon daemon([&given_back](FakePeer& peer) {
    peer.Greet();
    // Plain memfds without seals are no chunks of a simulated device.
    peer.Grant({.request = peer.Read().grow().request_id(), .first_id = 3, .count = 3});
    v1::Frame back = peer.Read();
    if (back.has_ack()) back = peer.Read();  // else the Return itself acknowledges
    given_back.assign(back.return_chunks().chunk_ids().begin(), back.return_chunks().chunk_ids().end());
    peer.Returned(back.return_chunks().request_id());
    v1::Frame end = peer.Read();
    if (end.has_ack()) end = peer.Read();  // by the session thread, which the Return overtook
    EXPECT_EQ(end.body_case(), v1::Frame::BODY_NOT_SET);
  });
  auto connection = daemon.Connect();
  ASSERT_TRUE(connection.ok());
  auto backend = MakeSimulatedBackend({.devices = {SimulatedDevice(0, 64_MiB, "test")}});
  auto source = LeasedRegionSource::Create(
      **connection, *backend, {.device_id = 1, .backend_device = 0, .granularity = 2_MiB, .limit = 16_MiB});
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_FALSE((*source)->Grow({.at_least = 6_MiB, .wanted = 6_MiB}).ok());
  source->reset();
  connection->reset();
  daemon.Join();
  EXPECT_EQ(given_back, (std::vector<std::uint64_t>{3, 4, 5}));
}

TEST(LeasedRegionSourceTest, AGrowthThatIsNoMultipleOfTheChunksUnitIsRefusedHere) {
  FakeDaemon daemon([](FakePeer& peer) {
    peer.Greet();
    EXPECT_EQ(peer.Read().body_case(), v1::Frame::BODY_NOT_SET);
  });
  auto connection = daemon.Connect();
  ASSERT_TRUE(connection.ok());
  auto backend = MakeSimulatedBackend({.devices = {SimulatedDevice(0, 64_MiB, "test")}});
  auto source = LeasedRegionSource::Create(
      **connection, *backend, {.device_id = 1, .backend_device = 0, .granularity = 2_MiB, .limit = 16_MiB});
  ASSERT_TRUE(source.ok()) << source.status();
  for (const Bytes bytes : {Bytes(), Bytes(4096), 3_MiB}) {
    const absl::Status grown = (*source)->Grow({.at_least = bytes, .wanted = bytes}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(grown)) << grown;
  }
  source->reset();
  connection->reset();
}

TEST(LeasedRegionSourceTest, AGrantWhoseDescriptorsDoNotFitIsGivenBackAndSaysSo) {
  std::vector<std::uint64_t> given_back;
  const UniqueFd chunk(::memfd_create("fake-chunk", MFD_CLOEXEC));
  std::latch greeted(1);  // its descriptors are closed then, and none falls into the limit
  FakeDaemon daemon([&](FakePeer& peer) {
    peer.Greet();
    greeted.count_down();
    v1::Frame frame;
    v1::Grant& grant = *frame.mutable_grant();
    grant.set_request_id(peer.Read().grow().request_id());
    grant.set_grant_id(1);
    grant.set_device_id(1);
    grant.add_chunks()->set_id(3);
    grant.mutable_chunks(0)->set_bytes((2_MiB).count());
    peer.Send(frame, {chunk.get()});
    v1::Frame back = peer.Read();
    if (back.has_ack()) back = peer.Read();
    given_back.assign(back.return_chunks().chunk_ids().begin(), back.return_chunks().chunk_ids().end());
    peer.Returned(back.return_chunks().request_id());
    peer.Read();
  });
  auto connection = daemon.Connect();
  ASSERT_TRUE(connection.ok());
  auto backend = MakeSimulatedBackend({.devices = {SimulatedDevice(0, 64_MiB, "test")}});
  auto source = LeasedRegionSource::Create(
      **connection, *backend, {.device_id = 1, .backend_device = 0, .granularity = 2_MiB, .limit = 16_MiB});
  ASSERT_TRUE(source.ok()) << source.status();
  absl::StatusOr<std::vector<Chunk>> granted;
  greeted.wait();
  {
    const OpenFilesLimit none(OpenFilesLimit::ForMore(0));
    granted = (*source)->Grow({.at_least = 2_MiB, .wanted = 2_MiB});
  }
  EXPECT_TRUE(absl::IsResourceExhausted(granted.status())) << granted.status();
  EXPECT_NE(granted.status().message().find("RLIMIT_NOFILE"), std::string::npos) << granted.status();
  source->reset();
  connection->reset();
  daemon.Join();
  EXPECT_EQ(given_back, std::vector<std::uint64_t>{3});
}

TEST(LeasedRegionSourceTest, TheLimitIsReadFromTheStatsPage) {
  std::promise<void> resize;
  std::promise<void> resized;
  FakeDaemon daemon([&](FakePeer& peer) {
    peer.Greet();
    resize.get_future().wait();
    peer.stats()->devices[3].limit.store((8_MiB).count());
    peer.stats()->devices[3].id.store(42);
    resized.set_value();
    peer.Read();
  });
  auto connection = daemon.Connect();
  ASSERT_TRUE(connection.ok());
  auto backend = MakeSimulatedBackend({.devices = {SimulatedDevice(0, 64_MiB, "test")}});
  auto source = LeasedRegionSource::Create(
      **connection, *backend, {.device_id = 42, .backend_device = 0, .granularity = 2_MiB, .limit = 16_MiB});
  ASSERT_TRUE(source.ok());
  EXPECT_EQ((*source)->limit(), 16_MiB);
  resize.set_value();
  resized.get_future().wait();
  EXPECT_EQ((*source)->limit(), 8_MiB);
  source->reset();
  connection->reset();
}

}  // namespace
}  // namespace lgpu
