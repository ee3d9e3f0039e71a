#include "allocator/broker/overhead_table.h"

#include <gtest/gtest.h>

#include "lgpu/bytes.h"
#include "tests/allocator/broker/tables_fixture.h"

namespace lgpu {
namespace {

class OverheadTableTest : public TablesFixture {
 protected:
  void Attach(SessionId session) { overheads_.Charge(tables_.sessions.at(session)); }

  OverheadTable overheads_{tables_};
  const LogicalId device_ = AddDevice(64_MiB);
};

TEST_F(OverheadTableTest, SessionsOfOneProcessShareItsAllowance) {
  AddSession(SessionId{2}, 100);
  AddSession(SessionId{3}, 200);
  Attach(kSession);
  Attach(SessionId{2});
  EXPECT_EQ(View().overhead, 16_MiB);
  Attach(SessionId{3});
  EXPECT_EQ(View().overhead, 32_MiB);
  EXPECT_TRUE(overheads_.Refund(tables_.sessions.at(SessionId{2})).empty());
  EXPECT_EQ(overheads_.Refund(tables_.sessions.at(kSession)).count(card_), 1u);
  EXPECT_EQ(View().overhead, 16_MiB);
  ExpectInStep();
}

TEST_F(OverheadTableTest, AMeasuredProcessReplacesItsAllowance) {
  Attach(kSession);
  overheads_.Observe(card_, {.free = 216_MiB, .processes = {{.pid = 100, .used = 40_MiB}}});
  EXPECT_EQ(View().overhead, 40_MiB);
  EXPECT_EQ(View().foreign, Bytes());
  EXPECT_EQ(overheads_.Overheads().of_session.at(kSession), 40_MiB);
  ExpectInStep();
}

TEST_F(OverheadTableTest, MemoryOfAProcessWithoutASessionIsForeign) {
  overheads_.Observe(card_, {.free = 156_MiB, .processes = {{.pid = 300, .used = 100_MiB}}});
  EXPECT_EQ(View().foreign, 100_MiB);
  ASSERT_NE(overheads_.OutsidersOf(card_), nullptr);
  ASSERT_EQ(overheads_.OutsidersOf(card_)->size(), 1u);
  EXPECT_EQ(overheads_.OutsidersOf(card_)->front().pid, 300);
}

TEST_F(OverheadTableTest, SessionsOfOneProcessAreAccountedForWithOneContext) {
  EXPECT_EQ(overheads_.AccountedTo(100, card_), Bytes()) << "no session of the process uses the card";
  Attach(kSession);
  const Bytes context = overheads_.AccountedTo(100, card_);
  EXPECT_GT(context, Bytes());
  AddSession(SessionId{2}, 100);
  Attach(SessionId{2});
  EXPECT_EQ(overheads_.AccountedTo(100, card_), context);
  AddSession(SessionId{3}, 100);
  EXPECT_EQ(overheads_.AccountedTo(100, card_), context) << "this one is on no card";
}

TEST_F(OverheadTableTest, OneReadingBeyondTheAllowanceIsNotNamed) {
  Attach(kSession);
  const CardReport report{.free = 56_MiB, .processes = {{.pid = 100, .used = 200_MiB}}};
  overheads_.NoteUncharged(card_, report, overheads_.Observe(card_, report), {});
  EXPECT_TRUE(overheads_.Uncharged().empty());
  overheads_.NoteUncharged(card_, report, overheads_.Observe(card_, report), {});
  ASSERT_EQ(overheads_.Uncharged().size(), 1u);
  EXPECT_EQ(overheads_.Uncharged().front().beside, 200_MiB);
}

TEST_F(OverheadTableTest, MemoryThatWasHeldBeforeTheReportWasMadeIsNotNamed) {
  Attach(kSession);
  const CardReport report{.free = 56_MiB, .processes = {{.pid = 100, .used = 200_MiB}}};
  for (int i = 0; i < 3; ++i) {
    overheads_.NoteUncharged(card_, report, overheads_.Observe(card_, report), {{100, 150_MiB}});
  }
  EXPECT_TRUE(overheads_.Uncharged().empty()) << "the program freed it while the driver was asked";
}

class ListedOverheadTest : public OverheadTableTest {
 protected:
  ListedOverheadTest() { tables_.cards.at(card_).lists_processes = true; }
};

TEST_F(ListedOverheadTest, NothingIsSetAsideForAConnection) {
  Attach(kSession);
  EXPECT_EQ(View().overhead, Bytes());
  overheads_.Observe(card_, {.free = 256_MiB, .processes = {}});
  EXPECT_EQ(View().overhead, Bytes()) << "it has no context";
  overheads_.Observe(card_, {.free = 216_MiB, .processes = {{.pid = 100, .used = 40_MiB}}});
  EXPECT_EQ(View().overhead, 40_MiB);
  overheads_.Observe(card_, {.free = 256_MiB, .processes = {}});
  EXPECT_EQ(View().overhead, Bytes()) << "the context has ended";
  ExpectInStep();
}

}  // namespace
}  // namespace lgpu
