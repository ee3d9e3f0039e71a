// The ring between real processes that are killed.

#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "proto/mapped_region.h"
#include "proto/wire/pages.h"
#include "tests/proto/peer_process.h"

namespace lgpu {
namespace {

// Reads until the ring is empty; every record must be a whole one.
std::uint64_t Drain(PlacementRingReader& reader) {
  std::uint64_t read = 0;
  while (read < PlacementRing::kSlots) {
    const auto entry = reader.Next();
    if (!entry) break;
    EXPECT_EQ(entry->op, static_cast<std::uint16_t>(entry->output_bytes));
    EXPECT_EQ(entry->submitted_unix_ns, entry->output_bytes);
    EXPECT_EQ(entry->host_ns, entry->output_bytes);
    ++read;
  }
  return read;
}

void WaitForHead(const ClientPage& page, std::uint64_t head) {
  while (page.ring.head.load() < head) std::this_thread::yield();
}

TEST(PlacementRingProcessTest, AKilledProducerLeavesAReaderThatEnds) {
  for (int round = 0; round < 30; ++round) {
    auto page = SharedPages::CreateClientPage(MapWithBoost);
    ASSERT_TRUE(page.ok()) << page.status().message;
    PlacementRingReader reader(&(*page)->ring);
    SpawnedProcess producer = StartPeer(page->fd(), {"push", "3"});
    ASSERT_TRUE(producer.pid() > 0);
    WaitForHead(**page, static_cast<std::uint64_t>(round) * 1000 + 1);
    std::uint64_t read = Drain(reader);
    producer.Kill();
    reader.WriterIsGone();
    while (const std::uint64_t more = Drain(reader)) read += more;
    ASSERT_EQ(read + reader.lost(), (*page)->ring.head.load());
  }
}

// As when a process is killed and another one goes on with the page: the slots that the dead one left
// half-written stay busy, and only they are lost.
TEST(PlacementRingProcessTest, SlotsOfKilledProducersDoNotStopTheNextOne) {
  auto page = SharedPages::CreateClientPage(MapWithBoost);
  ASSERT_TRUE(page.ok()) << page.status().message;
  PlacementRingReader reader(&(*page)->ring);
  std::uint64_t read = 0;
  for (int round = 0; round < 30; ++round) {
    SpawnedProcess producer = StartPeer(page->fd(), {"push", "2"});
    ASSERT_TRUE(producer.pid() > 0);
    WaitForHead(**page, (*page)->ring.head.load() + 1000);
    // A producer that runs while the reader does not may write every slot anew: then the next look finds
    // some.
    std::uint64_t now = 0;
    while (now == 0) now = Drain(reader);
    read += now;
  }
  reader.WriterIsGone();
  while (const std::uint64_t more = Drain(reader)) read += more;
  EXPECT_EQ(read + reader.lost(), (*page)->ring.head.load());
}

}  // namespace
}  // namespace lgpu
