#include "client/driver/address_table.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>

namespace lgpu::shim {
namespace {

TEST(AddressTableTest, AnEmptyTableHasNothing) {
  AddressTable<int> table;
  EXPECT_EQ(table.Find(0), nullptr);
  EXPECT_FALSE(table.Take(7).has_value());
  table.Erase(7);
  EXPECT_EQ(table.size(), 0U);
}

TEST(AddressTableTest, AKeyIsNewOnce) {
  AddressTable<int> table;
  const auto added = table.Add(4096);
  EXPECT_TRUE(added.is_new);
  EXPECT_EQ(*added.value, 0);
  *added.value = 5;
  EXPECT_FALSE(table.Add(4096).is_new);
  EXPECT_EQ(*table.Find(4096), 5);
  EXPECT_EQ(table.Take(4096), 5);
  EXPECT_EQ(table.Find(4096), nullptr);
  EXPECT_EQ(*table.Add(4096).value, 0) << "the value went with the entry";
}

TEST(AddressTableTest, TheLargestNumberIsNotFound) {
  AddressTable<int> table;
  table.Add(1);
  EXPECT_EQ(table.Find(~std::uint64_t{0}), nullptr);
  EXPECT_FALSE(table.Take(~std::uint64_t{0}).has_value());
}

TEST(AddressTableTest, ValuesThatAreTakenOutLeaveNothingBehind) {
  const auto value = std::make_shared<int>(1);
  AddressTable<std::shared_ptr<int>> table;
  for (std::uint64_t key = 0; key < 100; ++key) *table.Add(key << 21).value = value;
  for (std::uint64_t key = 0; key < 50; ++key) table.Erase(key << 21);
  for (std::uint64_t key = 50; key < 100; ++key) EXPECT_EQ(table.Take(key << 21), value);
  EXPECT_EQ(value.use_count(), 1);
}

// Keys as drivers make them: multiples of small and of large powers of two, which a poor hash puts side by
// side. Entries that move up and wrap around the end of the array are met many times.
TEST(AddressTableTest, AgreesWithAMapOverLongUse) {
  std::mt19937_64 random(39);
  AddressTable<int> table;
  std::map<std::uint64_t, int> expected;
  const auto agree = [&] {
    ASSERT_EQ(table.size(), expected.size());
    std::size_t seen = 0;
    table.ForEach([&](std::uint64_t key, const int& value) {
      ++seen;
      const auto found = expected.find(key);
      EXPECT_TRUE(found != expected.end() && found->second == value) << key;
    });
    ASSERT_EQ(seen, expected.size());
  };
  for (int step = 0; step < 200'000; ++step) {
    // The number of keys in use grows and shrinks.
    const std::uint64_t range = step / 50'000 % 2 == 0 ? 3000 : 12;
    const std::uint64_t key = random() % range << (random() % 2 == 0 ? 9 : 21);
    if (random() % 2 == 0) {
      const auto added = table.Add(key);
      const bool is_new = expected.emplace(key, 0).second;
      ASSERT_EQ(added.is_new, is_new);
      *added.value = expected[key] = step;
    } else {
      const std::optional<int> taken = table.Take(key);
      const auto found = expected.find(key);
      ASSERT_EQ(taken.has_value(), found != expected.end());
      if (!taken) continue;
      ASSERT_EQ(*taken, found->second);
      expected.erase(found);
    }
    if (step % 1000 == 0) agree();
  }
  agree();
}

}  // namespace
}  // namespace lgpu::shim
