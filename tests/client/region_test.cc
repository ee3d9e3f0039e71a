#include "client/session/region.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "allocator/device/simulated/simulated_backend.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

using ::testing::HasSubstr;

constexpr Bytes kUnit = 2_MiB;

class RegionTest : public ::testing::Test {
 protected:
  RegionTest()
      : backend_(MakeSimulatedBackend({.devices = {SimulatedDevice(0, 64_MiB, "region")}})),
        region_(Reserve()) {}

  std::unique_ptr<Region> Reserve() {
    absl::StatusOr<std::unique_ptr<Region>> region = Region::Reserve(*backend_, 0, kUnit, 16_MiB);
    EXPECT_EQ(region.status(), absl::OkStatus());
    return *std::move(region);
  }

  ChunkId AddChunk(Bytes bytes = kUnit) {
    const ChunkId id{++last_};
    const absl::StatusOr<MemoryHandle> memory = backend_->Create(0, bytes);
    EXPECT_EQ(memory.status(), absl::OkStatus());
    EXPECT_EQ(region_->Add({{id, bytes}, *memory}), absl::OkStatus());
    return id;
  }

  absl::Status Map(ChunkId id, Bytes offset) {
    const ChunkPlacement place{id, offset};
    return region_->Map(std::span(&place, 1));
  }
  absl::Status Unmap(ChunkId id) { return region_->Unmap(std::span(&id, 1)); }

  const std::unique_ptr<DeviceBackend> backend_;
  std::unique_ptr<Region> region_;
  std::uint64_t last_ = 0;
};

TEST_F(RegionTest, ReservesRoomForTheWholeCardWhenTheLimitIsSmall) {
  EXPECT_GE(region_->reserved(), 64_MiB * 4);
  EXPECT_NE(region_->base(), nullptr);
}

TEST_F(RegionTest, AChunkIsMappedUnmappedAndTaken) {
  const ChunkId id = AddChunk();
  EXPECT_EQ(Map(id, 4_MiB), absl::OkStatus());
  EXPECT_EQ(Unmap(id), absl::OkStatus());
  const absl::StatusOr<std::vector<Region::Held>> taken = region_->Take(std::span(&id, 1));
  ASSERT_EQ(taken.status(), absl::OkStatus());
  EXPECT_EQ(taken->at(0).chunk.id, id);
  EXPECT_TRUE(region_->All().empty());
  EXPECT_EQ(backend_->Release(taken->at(0).memory), absl::OkStatus());
}

TEST_F(RegionTest, AnIdIsAddedOnce) {
  const ChunkId id = AddChunk();
  EXPECT_TRUE(absl::IsAlreadyExists(region_->Add({{id, kUnit}, MemoryHandle{}})));
  EXPECT_EQ(region_->All().size(), 1u);
}

TEST_F(RegionTest, PlacesOutsideTheRegionOrInsideAPageAreRefused) {
  const ChunkId id = AddChunk();
  EXPECT_TRUE(absl::IsInvalidArgument(Map(id, 1_MiB)));
  EXPECT_TRUE(absl::IsInvalidArgument(Map(id, region_->reserved())));
  EXPECT_EQ(Map(id, region_->reserved() - kUnit), absl::OkStatus());
}

TEST_F(RegionTest, TwoChunksNeverOverlap) {
  const ChunkId large = AddChunk(4_MiB);
  const ChunkId small = AddChunk();
  ASSERT_EQ(Map(large, 4_MiB), absl::OkStatus());
  for (const Bytes offset : {4_MiB, 6_MiB}) {
    const absl::Status status = Map(small, offset);
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("another chunk lies at offset"));
  }
  EXPECT_EQ(Map(small, 2_MiB), absl::OkStatus());
}

TEST_F(RegionTest, AFailedMapOfSeveralChunksMapsNone) {
  const ChunkId first = AddChunk();
  const ChunkId second = AddChunk();
  const std::vector<ChunkPlacement> places = {{first, Bytes()}, {second, Bytes()}};
  EXPECT_TRUE(absl::IsFailedPrecondition(region_->Map(places)));
  EXPECT_EQ(Map(first, kUnit), absl::OkStatus());
  EXPECT_EQ(Map(second, Bytes()), absl::OkStatus());
}

TEST_F(RegionTest, AFailedUnmapOfSeveralChunksUnmapsNone) {
  const ChunkId mapped = AddChunk();
  const ChunkId unmapped = AddChunk();
  ASSERT_EQ(Map(mapped, Bytes()), absl::OkStatus());
  const std::vector<ChunkId> both = {mapped, unmapped};
  EXPECT_TRUE(absl::IsFailedPrecondition(region_->Unmap(both)));
  EXPECT_EQ(Unmap(mapped), absl::OkStatus());
}

TEST_F(RegionTest, AFailedTakeOfSeveralChunksTakesNone) {
  const ChunkId unmapped = AddChunk();
  const ChunkId mapped = AddChunk();
  ASSERT_EQ(Map(mapped, Bytes()), absl::OkStatus());
  const std::vector<ChunkId> both = {unmapped, mapped};
  EXPECT_TRUE(absl::IsFailedPrecondition(region_->Take(both).status()));
  EXPECT_EQ(region_->All().size(), 2u);
}

TEST_F(RegionTest, AChunkThatIsNamedTwiceIsRefused) {
  const ChunkId id = AddChunk();
  ASSERT_EQ(Map(id, Bytes()), absl::OkStatus());
  const std::vector<ChunkId> twice{id, id};
  EXPECT_TRUE(absl::IsFailedPrecondition(region_->Unmap(twice)));
  EXPECT_EQ(Unmap(id), absl::OkStatus()) << "it is mapped as before";
}

TEST_F(RegionTest, ALimitBeyondAllAddressesIsRefusedWhereAddressesAreLimited) {
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  const rlimit limited = {.rlim_cur = std::min<rlim_t>(before.rlim_cur, RLIM_INFINITY - 1),
                          .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &limited), 0);
  const absl::Status status =
      Region::Reserve(*backend_, 0, kUnit, Bytes(~std::uint64_t{0} - 2 * kUnit.count())).status();
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("ask for less"));
}

TEST_F(RegionTest, AnUnknownChunkIsNotFound) {
  const ChunkId unknown{99};
  EXPECT_TRUE(absl::IsNotFound(Map(unknown, Bytes())));
  EXPECT_TRUE(absl::IsNotFound(Unmap(unknown)));
  EXPECT_TRUE(absl::IsNotFound(region_->Take(std::span(&unknown, 1)).status()));
}

TEST_F(RegionTest, TakeAllUnmapsAndHandsOverEveryChunkById) {
  const ChunkId first = AddChunk();
  const ChunkId second = AddChunk();
  ASSERT_EQ(Map(second, Bytes()), absl::OkStatus());
  const std::vector<Region::Held> all = region_->TakeAll();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].chunk.id, first);
  EXPECT_EQ(all[1].chunk.id, second);
  for (const Region::Held& held : all) EXPECT_EQ(backend_->Release(held.memory), absl::OkStatus());
}

TEST_F(RegionTest, TheDestructorGivesMemoryAndAddressesBack) {
  const auto open_files = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  const auto is_mapped = [](std::byte* address) { return ::msync(address, 4096, MS_ASYNC) == 0; };
  const auto before = open_files();
  ASSERT_EQ(Map(AddChunk(), Bytes()), absl::OkStatus());
  AddChunk();
  std::byte* const base = region_->base();
  EXPECT_EQ(open_files(), before + 2) << "a file for each chunk";
  EXPECT_TRUE(is_mapped(base));
  region_.reset();
  EXPECT_EQ(open_files(), before);
  EXPECT_FALSE(is_mapped(base));
}

TEST_F(RegionTest, AForkedChildGetsAnError) {
  const ChunkId id = AddChunk();
  const pid_t child = fork();
  if (child == 0) {
    const bool refused = !Map(id, Bytes()).ok() && !Unmap(id).ok() && !region_->Take(std::span(&id, 1)).ok();
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace lgpu
