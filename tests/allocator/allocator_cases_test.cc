#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/cases.h"
#include "tests/support/pool_fixture.h"

namespace lgpu {
namespace {

std::vector<std::string> Split(const std::string& text, const std::string& separator) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0;;) {
    const std::size_t end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == std::string::npos) return parts;
    begin = end + separator.size();
  }
}

/// Runs the steps of a row on a Pool.
class AllocatorCasesTest : public PoolFixture {
 protected:
  void Call(const std::vector<std::string>& words) {
    const auto size = [&](std::size_t i) { return Size(words.at(i)); };
    if (words[0] == "fill") {
      MustFree(Must(pool_->stats().limit));
      pool_->ResetPeak();
      before_ = pool_->stats().num_allocs;
    } else if (words[0] == "alloc") {
      Allocate(size(1), words.size() > 2 ? words[2] : "");
    } else if (words[0] == "allocs") {
      for (int i = std::stoi(words.at(1)); i > 0; --i) Allocate(size(2), "");
    } else if (words[0] == "each") {
      for (Bytes bytes = size(1); bytes <= size(2); bytes += Bytes(1)) Allocate(bytes, "");
    } else if (words[0] == "rounds") {
      for (int i = std::stoi(words.at(1)); i > 0; --i) Round(Split(words.at(2), ","));
    } else if (words[0] == "refuse") {
      MustRefuse(size(1));
    } else if (words[0] == "where") {
      EXPECT_EQ(RefusalReasonName(MustRefuse(size(1)).reason), words.at(2));
    } else if (words[0] == "card") {
      upstream_->card = size(1).count();
    } else if (words[0] == "trim") {
      ASSERT_TRUE(pool_->Trim(1_TiB).ok());
    } else if (words[0] == "reset") {
      pool_->ResetPeak();
    } else if (words[0] == "free") {
      Free(words.at(1));
    } else if (words[0] == "first") {
      EXPECT_EQ(named_.at(words.at(1)).address, first_);
    } else if (words[0] == "text") {
      EXPECT_EQ(FormatBytes(size(1)), words.at(2));
    } else {
      ASSERT_EQ(words[0], "=");
      const std::uint64_t value = Value(words.at(1));
      const std::uint64_t expected = std::stoull(words.at(2));
      if (words.size() > 3) {
        EXPECT_LE(value, expected);
      } else {
        EXPECT_EQ(value, expected);
      }
    }
  }

  void Forget() {
    live_.clear();
    named_.clear();
    before_ = 0;
    largest_ = 0;
    first_ = nullptr;
  }

 private:
  static Bytes Size(const std::string& text) {
    const absl::StatusOr<Bytes> bytes = ParseBytes(text);
    EXPECT_TRUE(bytes.ok()) << bytes.status();
    return bytes.value_or(Bytes());
  }

  Block Allocate(Bytes bytes, const std::string& name) {
    const Block block = Must(bytes);
    for (const Block& other : live_) {
      EXPECT_TRUE(block.address + block.bytes.count() <= other.address ||
                  other.address + other.bytes.count() <= block.address);
    }
    live_.push_back(block);
    if (first_ == nullptr) first_ = block.address;
    if (!name.empty()) named_[name] = block;
    largest_ = std::max(largest_, block.bytes.count());
    return block;
  }

  void Round(const std::vector<std::string>& sizes) {
    std::vector<Block> blocks;
    for (const std::string& text : sizes) blocks.push_back(Must(Size(text)));
    for (const Block& block : blocks) {
      largest_ = std::max(largest_, block.bytes.count());
      MustFree(block);
    }
  }

  void Free(const std::string& which) {
    const auto named = named_.find(which);
    if (named != named_.end()) {
      MustFree(named->second);
      std::erase(live_, named->second);
      return;
    }
    ASSERT_TRUE(which == "all" || which == "all-but-one");
    const std::size_t keep = which == "all" ? 0 : 1;
    while (live_.size() > keep) {
      MustFree(live_.back());
      live_.pop_back();
    }
  }

  std::uint64_t Value(const std::string& what) const {
    const MemoryStats stats = pool_->stats();
    const std::map<std::string, std::uint64_t> values = {{"used", stats.used.count()},
                                                         {"requested", stats.requested.count()},
                                                         {"peak", stats.peak_used.count()},
                                                         {"held", stats.held.count()},
                                                         {"largest_free", stats.largest_free_block.count()},
                                                         {"largest", largest_},
                                                         {"allocs", stats.num_allocs - before_},
                                                         {"refusals", stats.num_refusals},
                                                         {"live", stats.live_blocks}};
    EXPECT_TRUE(values.contains(what)) << what;
    return values.at(what);
  }

  std::vector<Block> live_;
  std::map<std::string, Block> named_;
  std::uint64_t before_ = 0;  // allocations of `fill`
  std::uint64_t largest_ = 0;
  const std::byte* first_ = nullptr;
};

TEST_F(AllocatorCasesTest, ThePoolFollowsTheTable) {
  const std::vector<testing::Case> cases = testing::ReadCases("allocator.tsv");
  ASSERT_GT(cases.size(), 20U);
  for (const testing::Case& row : cases) {
    Forget();
    const absl::StatusOr<Bytes> limit = ParseBytes(row[1]);
    ASSERT_TRUE(limit.ok()) << row.where;
    // Without front caches, whose contents are in no number here.
    ASSERT_NO_FATAL_FAILURE(Open({.limit = *limit, .options = {.cache_per_thread = Bytes()}}));
    for (const std::string& step : Split(row[3], " ; ")) {
      SCOPED_TRACE(row.where + ": " + step);
      std::istringstream in(step);
      std::vector<std::string> words;
      for (std::string word; in >> word;) words.push_back(word);
      ASSERT_NO_FATAL_FAILURE(Call(words));
    }
    SCOPED_TRACE(row.where);
    ExpectSound();
  }
}

}  // namespace
}  // namespace lgpu
