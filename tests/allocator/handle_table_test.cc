#include "allocator/device/handle_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "allocator/device/memory_table.h"
#include "lgpu/id.h"

namespace lgpu {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

using Handle = Id<struct HandleTableTestTag>;
constexpr HandleWords kWords = {.what = "thing", .end = "drop", .ended = "dropped"};

TEST(HandleTableTest, FindsInsertedValues) {
  HandleTable<Handle, std::string, 4> table(kWords);
  const Handle one = *table.Insert("one");
  const Handle two = *table.Insert("two");
  EXPECT_NE(one, two);
  EXPECT_EQ(*table.Find(one), "one");
  EXPECT_EQ(*table.Find(two), "two");
  EXPECT_TRUE(table.Contains(two).ok());
  EXPECT_THAT(table.All(), ElementsAre(Pair(one, "one"), Pair(two, "two")));
}

TEST(HandleTableTest, RemovedHandleIsNotFoundAlthoughItsSlotIsUsedAgain) {
  HandleTable<Handle, std::string, 4> table(kWords);
  const Handle old = *table.Insert("old");
  EXPECT_EQ(*table.Remove(old), "old");
  const Handle next = *table.Insert("next");
  EXPECT_EQ(next.value % 4, old.value % 4) << "the slot";
  EXPECT_EQ(table.Find(old).status(),
            absl::NotFoundError("thing " + std::to_string(old.value) + " is not known: dropped already?"));
  EXPECT_TRUE(absl::IsNotFound(table.Contains(old)));
  EXPECT_TRUE(absl::IsNotFound(table.Remove(old).status()));
  EXPECT_TRUE(absl::IsNotFound(table.Update(old, [](std::string&) { return absl::OkStatus(); })));
  EXPECT_EQ(*table.Find(next), "next");
}

TEST(HandleTableTest, HandlesThatWereNeverGivenAreNotFound) {
  HandleTable<Handle, int, 4096> table(kWords);
  for (const std::uint64_t value : {0ULL, 1ULL, 4095ULL, 4096ULL, 3000ULL + 4096ULL, ~0ULL}) {
    EXPECT_TRUE(absl::IsNotFound(table.Contains(Handle{value}))) << value;
  }
  const Handle first = *table.Insert(7);
  for (const std::uint64_t value : {0ULL, 1ULL, 4095ULL, 3000ULL + 4096ULL, ~0ULL}) {
    ASSERT_NE(value, first.value);
    EXPECT_TRUE(absl::IsNotFound(table.Find(Handle{value}).status())) << value;
  }
}

TEST(HandleTableTest, RefusesMoreThanItsLimitUntilOneIsRemoved) {
  HandleTable<Handle, int, 4> table(kWords);
  std::vector<Handle> handles;
  for (int i = 0; i < 4; ++i) handles.push_back(*table.Insert(i));
  EXPECT_EQ(table.Insert(4).status(),
            absl::ResourceExhaustedError("a backend has at most 4 things at a time; drop some"));
  EXPECT_EQ(*table.Remove(handles[2]), 2);
  const absl::StatusOr<Handle> again = table.Insert(5);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*table.Find(*again), 5);
  EXPECT_EQ(*table.Find(handles[3]), 3);
}

TEST(HandleTableTest, ManyBlocksOfSlotsKeepTheirValues) {
  HandleTable<Handle, int, 4096> table(kWords);
  std::vector<Handle> handles;
  for (int i = 0; i < 4096; ++i) handles.push_back(*table.Insert(i));
  for (int i = 0; i < 4096; ++i) ASSERT_EQ(*table.Find(handles[static_cast<std::size_t>(i)]), i);
  EXPECT_EQ(std::set<Handle>(handles.begin(), handles.end()).size(), handles.size());
}

TEST(HandleTableTest, RemoveIfKeepsAValueThatFailsTheCheck) {
  HandleTable<Handle, int, 4> table(kWords);
  const Handle handle = *table.Insert(1);
  const auto only_two = [](int value) {
    return value == 2 ? absl::OkStatus() : absl::FailedPreconditionError("not two");
  };
  EXPECT_EQ(table.RemoveIf(handle, only_two).status(), absl::FailedPreconditionError("not two"));
  EXPECT_TRUE(table
                  .Update(handle,
                          [](int& value) {
                            value = 2;
                            return absl::OkStatus();
                          })
                  .ok());
  EXPECT_EQ(*table.RemoveIf(handle, only_two), 2);
}

TEST(HandleTableTest, ARemovedValueIsNotKeptAlive) {
  auto value = std::make_shared<int>(1);
  HandleTable<Handle, std::shared_ptr<int>, 4> table(kWords);
  const Handle handle = *table.Insert(value);
  EXPECT_EQ(value.use_count(), 2);
  EXPECT_TRUE(table.Remove(handle).ok());
  EXPECT_EQ(value.use_count(), 1);
}

TEST(HandleTableTest, AForkedChildForgetsValuesWithoutDestroyingThem) {
  auto value = std::make_shared<int>(1);
  auto table = std::make_unique<HandleTable<Handle, std::shared_ptr<int>, 4>>(kWords);
  ASSERT_TRUE(table->Insert(value).ok());
  const pid_t child = ::fork();
  if (child == 0) {
    table->Forget();
    table.reset();
    ::_exit(value.use_count() == 2 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(HandleTableTest, ThreadsThatInsertAndRemoveNeverFindEachOthersValues) {
  HandleTable<Handle, std::shared_ptr<int>, 64> table(kWords);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&table, thread] {
      for (int i = 0; i < 2000; ++i) {
        const absl::StatusOr<Handle> handle = table.Insert(std::make_shared<int>(thread));
        ASSERT_TRUE(handle.ok());
        ASSERT_TRUE(table.Contains(*handle).ok());
        ASSERT_EQ(**table.Find(*handle), thread);
        ASSERT_EQ(**table.Remove(*handle), thread);
        ASSERT_TRUE(absl::IsNotFound(table.Contains(*handle)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(table.All(), ElementsAre());
}

TEST(MemoryTableTest, AChunkIsMappedOnceAndRemovedUnmapped) {
  MemoryTable<int> table;
  const MemoryHandle memory = *table.Insert(std::make_shared<int>(3));
  EXPECT_EQ(**table.SetMapped(memory), 3);
  EXPECT_THAT(std::string(table.SetMapped(memory).status().message()), HasSubstr("is mapped already"));
  EXPECT_TRUE(absl::IsFailedPrecondition(table.FindUnmapped(memory).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(table.RemoveUnmapped(memory).status()));
  EXPECT_EQ(**table.Find(memory), 3);
  table.SetUnmapped(memory);
  EXPECT_EQ(**table.FindUnmapped(memory), 3);
  EXPECT_EQ(**table.RemoveUnmapped(memory), 3);
  EXPECT_TRUE(absl::IsNotFound(table.SetMapped(memory).status()));
}

TEST(MemoryTableTest, ClearAlsoDropsMappedChunks) {
  auto chunk = std::make_shared<int>(3);
  MemoryTable<int> table;
  const MemoryHandle memory = *table.Insert(chunk);
  ASSERT_TRUE(table.SetMapped(memory).ok());
  table.Clear();
  EXPECT_EQ(chunk.use_count(), 1);
}

}  // namespace
}  // namespace lgpu
