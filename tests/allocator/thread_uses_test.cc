#include "allocator/pool/thread_uses.h"

#include <gtest/gtest.h>

namespace lgpu {
namespace {

TEST(ThreadUsesTest, AThreadIsNoOtherThread) {
  ThreadUses uses;
  EXPECT_FALSE(uses.LastOfOthers(1, 10));
  uses.NoteTaken(1, 10);
  uses.NoteFreed(1);
  EXPECT_FALSE(uses.LastOfOthers(1, 20));
}

TEST(ThreadUsesTest, AnAllocationHasItsOwnTime) {
  ThreadUses uses;
  uses.NoteTaken(1, 10);
  EXPECT_EQ(uses.LastOfOthers(2, 50), 10U);
  uses.NoteTaken(2, 60);
  EXPECT_EQ(uses.LastOfOthers(2, 70), 10U);
  EXPECT_EQ(uses.LastOfOthers(1, 70), 60U);
  EXPECT_EQ(uses.LastOfOthers(3, 70), 60U);
}

TEST(ThreadUsesTest, AFreeHasTheNextTime) {
  ThreadUses uses;
  uses.NoteTaken(1, 10);
  uses.NoteFreed(1);
  uses.NoteTime(20);
  EXPECT_EQ(uses.LastOfOthers(2, 50), 20U);
  uses.NoteFreed(1);
  EXPECT_EQ(uses.LastOfOthers(2, 60), 60U);
  EXPECT_EQ(uses.LastOfOthers(2, 90), 60U) << "it was dated";
}

TEST(ThreadUsesTest, AFreeBeforeAnotherThreadsAllocationIsDatedByIt) {
  ThreadUses uses;
  uses.NoteFreed(1);
  uses.NoteTaken(2, 30);
  EXPECT_EQ(uses.LastOfOthers(2, 90), 30U);
}

TEST(ThreadUsesTest, TheLastOfSeveralOtherThreadsCounts) {
  ThreadUses uses;
  uses.NoteTaken(1, 10);
  uses.NoteTaken(2, 20);
  uses.NoteTaken(3, 30);
  uses.NoteTaken(3, 40);
  EXPECT_EQ(uses.LastOfOthers(3, 50), 20U);
  uses.NoteTaken(1, 60);
  EXPECT_EQ(uses.LastOfOthers(1, 70), 40U);
}

}  // namespace
}  // namespace lgpu
