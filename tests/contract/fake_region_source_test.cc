#include "tests/support/fake_region_source.h"

#include "allocator/device/simulated/simulated_backend.h"
#include "tests/contract/region_source_contract.h"

namespace lgpu {
namespace {

class FakeWorld final : public RegionSourceWorld {
 public:
  FakeWorld(Bytes limit, Bytes chunk)
      : backend_(MakeSimulatedBackend({.devices = {SimulatedDevice(0, 1_GiB, "test")}})) {
    auto source = FakeRegionSource::Make(*backend_, {.limit = limit, .chunk = chunk, .upstream = upstream_});
    EXPECT_TRUE(source.ok()) << source.status();
    source_ = *std::move(source);
  }
  std::unique_ptr<RegionSource> TakeSource() override { return std::move(source_); }
  Bytes held() override { return Bytes(upstream_->granted); }

 private:
  std::unique_ptr<DeviceBackend> backend_;
  std::shared_ptr<FakeUpstream> upstream_ = std::make_shared<FakeUpstream>();
  std::unique_ptr<RegionSource> source_;
};

RegionSourceFactory Factory(std::string name, Bytes chunk) {
  return {std::move(name), [chunk](Bytes limit) { return std::make_unique<FakeWorld>(limit, chunk); }};
}

INSTANTIATE_TEST_SUITE_P(Fake, RegionSourceContract,
                         ::testing::Values(Factory("SmallChunks", 2_MiB), Factory("LargeChunks", 8_MiB)),
                         RegionSourceName);

}  // namespace
}  // namespace lgpu
