#include "client/driver/allocations.h"

#include <gtest/gtest.h>

namespace lgpu::shim {
namespace {

constexpr std::uint64_t kSize = std::uint64_t{2} << 20;
constexpr std::uint64_t kAddress = 0x7000'0000'0000;

Charge Made() { return {.card = 0, .bytes = kSize, .kind = ChargeKind::kVmm}; }

TEST(HandlesTest, MemoryLivesUntilItsLastHandleAndMapping) {
  Handles handles;
  handles.Created(1, 0, Made());
  handles.Mapped(kAddress, kSize, 1);
  EXPECT_TRUE(handles.Drop(handles.TakeHandle(1)).charges.empty()) << "the mapping keeps it";
  EXPECT_EQ(handles.Drop(handles.TakeMappings(kAddress, kSize)).charges.size(), 1U);
}

TEST(HandlesTest, OneUnmapMayFreeSeveralHandles) {
  Handles handles;
  for (std::uint64_t i = 0; i < 3; ++i) {
    handles.Created(i + 1, 0, Made());
    handles.Mapped(kAddress + i * kSize, kSize, i + 1);
    EXPECT_TRUE(handles.Drop(handles.TakeHandle(i + 1)).charges.empty());
  }
  EXPECT_EQ(handles.Drop(handles.TakeMappings(kAddress, 2 * kSize)).charges.size(), 2U);
  EXPECT_EQ(handles.Drop(handles.TakeMappings(kAddress, 3 * kSize)).charges.size(), 1U);
}

TEST(HandlesTest, ARetainedHandleIsAFurtherReference) {
  Handles handles;
  handles.Created(1, 0, Made());
  handles.Mapped(kAddress, kSize, 1);
  handles.Retained(9, kAddress + 4096);
  EXPECT_TRUE(handles.Drop(handles.TakeHandle(1)).charges.empty());
  EXPECT_TRUE(handles.Drop(handles.TakeMappings(kAddress, kSize)).charges.empty());
  EXPECT_EQ(handles.Drop(handles.TakeHandle(9)).charges.size(), 1U);
}

TEST(HandlesTest, MemoryThatTheDriverRefusedToReleaseStaysCharged) {
  Handles handles;
  handles.Created(1, 0, Made());
  handles.PutHandleBack(handles.TakeHandle(1));
  handles.Mapped(kAddress, kSize, 1);
  handles.PutMappingsBack(handles.TakeMappings(kAddress, kSize));
  EXPECT_TRUE(handles.Drop(handles.TakeHandle(1)).charges.empty());
  EXPECT_EQ(handles.Drop(handles.TakeMappings(kAddress, kSize)).charges.size(), 1U);
}

TEST(HandlesTest, ExportedMemoryMayOutliveTheProcessAndStaysCharged) {
  Handles handles;
  handles.Created(1, 0, Made());
  handles.Exported(1);
  EXPECT_TRUE(handles.Drop(handles.TakeHandle(1)).charges.empty());
}

TEST(HandlesTest, UnknownHandlesAndAddressesArePassedOn) {
  Handles handles;
  EXPECT_TRUE(handles.TakeHandle(5).empty());
  EXPECT_TRUE(handles.TakeMappings(kAddress, kSize).empty());
  handles.Mapped(kAddress, kSize, 5);
  handles.Retained(5, kAddress);
  EXPECT_TRUE(handles.TakeMappings(kAddress, kSize).empty());
}

TEST(HandlesTest, ABindingKeepsTheMemoryUntilItIsTakenBack) {
  constexpr std::uint64_t kArray = 0x5500, kOther = 0x6600;
  const Handles::Part left{0, 1}, right{0, 2};
  Handles handles;
  handles.Created(1, 0, Made());
  handles.Bound(kArray, left, 1, nullptr, 1);
  handles.Bound(kArray, right, 1, nullptr, 1);
  handles.Bound(kOther, left, 1, nullptr, 1);
  EXPECT_TRUE(handles.Drop(handles.TakeHandle(1)).charges.empty());
  EXPECT_TRUE(handles.Drop(handles.TakeBinding(kArray, left)).charges.empty());
  EXPECT_TRUE(handles.TakeBinding(kArray, left).empty()) << "it is not bound there any more";
  EXPECT_TRUE(handles.Drop(handles.TakeBindings(kArray)).charges.empty());
  EXPECT_EQ(handles.Drop(handles.TakeBinding(kOther, left)).charges.size(), 1U);
  handles.Bound(kArray, left, 1, nullptr, 1);
  EXPECT_TRUE(handles.TakeBindings(kArray).empty()) << "a handle that is not the shim's";
}

TEST(HandlesTest, BindingsOfAnArrayThatTheDriverRefusedToDestroyArePutBack) {
  constexpr std::uint64_t kArray = 0x5500;
  const Handles::Part part{0, 1};
  int context = 0;
  Handles handles;
  handles.Created(1, 0, Made());
  handles.Bound(kArray, part, 1, &context, 1);
  EXPECT_TRUE(handles.Drop(handles.TakeHandle(1)).charges.empty());
  const Handles::References taken = handles.TakeBindings(kArray);
  EXPECT_EQ(taken.size(), 1U);
  EXPECT_TRUE(handles.TakeBindings(kArray).empty()) << "a new array may have its number";
  handles.PutBindingsBack(taken);
  handles.PutBindingsBack(handles.TakeBindings(kArray));
  EXPECT_TRUE(handles.TakeBindingsOfContext(nullptr, 1).empty()) << "they have their context still";
  EXPECT_EQ(handles.Drop(handles.TakeBinding(kArray, part)).charges.size(), 1U) << "and their part";
}

TEST(HandlesTest, AContextTakesTheBindingsOfItsArraysWithIt) {
  const Handles::Part part{0, 1};
  int one = 0, two = 0;
  Handles handles;
  for (const std::uint64_t i : {1, 2}) handles.Created(i, 0, Made());
  handles.Bound(0x5500, part, 1, &one, 1);
  handles.Bound(0x6600, part, 2, &two, 1);
  for (const std::uint64_t i : {1, 2}) EXPECT_TRUE(handles.Drop(handles.TakeHandle(i)).charges.empty());
  EXPECT_EQ(handles.Drop(handles.TakeBindingsOfContext(&one, 1)).charges.size(), 1U);
  EXPECT_TRUE(handles.TakeBindings(0x5500).empty());
  EXPECT_EQ(handles.Drop(handles.TakeBindings(0x6600)).charges.size(), 1U) << "of the other context";
}

TEST(HandlesTest, ABindingByAddressKeepsEveryMappingInTheRange) {
  constexpr std::uint64_t kObject = 77;
  Handles handles;
  handles.CreatedMulticast(kObject);
  for (const std::uint64_t i : {0, 1, 2}) {
    handles.Created(i + 1, 0, Made());
    handles.Mapped(kAddress + i * kSize, kSize, i + 1);
    EXPECT_TRUE(handles.Drop(handles.TakeHandle(i + 1)).charges.empty());
  }
  handles.BoundMappings(kObject, 0, 2 * kSize, kAddress);
  EXPECT_EQ(handles.Drop(handles.TakeMappings(kAddress, 3 * kSize)).charges.size(), 1U) << "the third";
  EXPECT_TRUE(handles.TakeFromMulticast(kObject, 0, 0, kSize).empty()) << "the range is larger";
  EXPECT_EQ(handles.Drop(handles.TakeFromMulticast(kObject, 0, 0, 2 * kSize)).charges.size(), 2U);
}

TEST(HandlesTest, OneUnbindEndsEveryBindingOfItsDeviceInTheRange) {
  constexpr std::uint64_t kObject = 77;
  Handles handles;
  handles.CreatedMulticast(kObject);
  for (const std::uint64_t i : {0, 1, 2, 3}) {
    handles.Created(i + 1, /*device=*/i == 3 ? 1 : 0, Made());
    handles.BoundToMulticast(kObject, i % 3 * kSize, kSize, i + 1);
    EXPECT_TRUE(handles.Drop(handles.TakeHandle(i + 1)).charges.empty());
  }
  EXPECT_EQ(handles.Drop(handles.TakeFromMulticast(kObject, 0, 0, 2 * kSize)).charges.size(), 2U);
  EXPECT_EQ(handles.Drop(handles.TakeFromMulticast(kObject, 0, 0, 3 * kSize)).charges.size(), 1U);
  EXPECT_EQ(handles.Drop(handles.TakeFromMulticast(kObject, 1, 0, kSize)).charges.size(), 1U);
}

TEST(HandlesTest, AMulticastObjectKeepsBoundMemoryUntilItsLastReference) {
  constexpr std::uint64_t kObject = 77;
  Handles handles;
  handles.CreatedMulticast(kObject);
  handles.Mapped(kAddress, kSize, kObject);
  handles.Created(1, 0, Made());
  handles.BoundToMulticast(kObject, 0, kSize, 1);
  EXPECT_TRUE(handles.Drop(handles.TakeHandle(1)).charges.empty()) << "it is bound";
  handles.PutHandleBack(handles.TakeHandle(kObject));
  EXPECT_TRUE(handles.Drop(handles.TakeHandle(kObject)).charges.empty()) << "the object is mapped";
  EXPECT_EQ(handles.Drop(handles.TakeMappings(kAddress, kSize)).charges.size(), 1U);
}

TEST(HandlesTest, AMulticastObjectOfSeveralProcessesKeepsBoundMemoryUntilItIsUnbound) {
  constexpr std::uint64_t kExported = 77, kImported = 88;
  Handles handles;
  handles.CreatedMulticast(kExported);
  handles.Exported(kExported);
  handles.Imported(kImported, kNoDevice);
  for (const std::uint64_t object : {kExported, kImported}) {
    for (const std::uint64_t i : {0, 1}) {
      handles.Created(i + 1, 0, Made());
      handles.BoundToMulticast(object, i * kSize, kSize, i + 1);
      EXPECT_TRUE(handles.Drop(handles.TakeHandle(i + 1)).charges.empty());
    }
    EXPECT_EQ(handles.Drop(handles.TakeFromMulticast(object, 0, 0, kSize)).charges.size(), 1U);
    EXPECT_TRUE(handles.Drop(handles.TakeHandle(object)).charges.empty()) << "another process may have it";
  }
}

TEST(HandlesTest, AnImportThatIsBoundEndsWithItsUnbinding) {
  constexpr std::uint64_t kObject = 77;
  Handles handles;
  handles.CreatedMulticast(kObject);
  EXPECT_TRUE(handles.Imported(1, /*device=*/1));
  handles.BoundToMulticast(kObject, 0, kSize, 1);
  EXPECT_EQ(handles.Drop(handles.TakeHandle(1)).imports, 0U);
  EXPECT_TRUE(handles.TakeFromMulticast(kObject, /*device=*/0, 0, kSize).empty());
  EXPECT_EQ(handles.Drop(handles.TakeFromMulticast(kObject, /*device=*/1, 0, kSize)).imports, 1U);
}

TEST(AllocationsTest, AContextTakesItsAllocationsWithIt) {
  Allocations allocations;
  int one = 0, two = 0;
  allocations.Add(1, {.charge = Made(), .context = &one, .pool = nullptr});
  allocations.Add(2, {.charge = Made(), .context = &two, .pool = nullptr});
  allocations.Add(3, {.charge = Made(), .context = nullptr, .pool = nullptr});
  EXPECT_EQ(allocations.RemoveOfContext(&one, 1).size(), 1U);
  EXPECT_FALSE(allocations.Remove(1).has_value());
  EXPECT_TRUE(allocations.Remove(2).has_value());
  EXPECT_TRUE(allocations.Remove(3).has_value()) << "stream-ordered memory belongs to no context";
}

TEST(AllocationsTest, AContextLeavesThoseOfALaterOneWithItsNumber) {
  Allocations allocations;
  Handles handles;
  int number = 0;
  constexpr Era kOld = 5, kNew = 6;
  const Handles::Part part{0, 1};
  for (const std::uint64_t i : {1, 2}) handles.Created(i, 0, Made());
  allocations.Add(1, {.charge = Made(), .context = &number, .era = kOld, .pool = nullptr});
  EXPECT_TRUE(allocations.AddImport(2, &number, kOld));
  handles.Bound(0x5500, part, 1, &number, kOld);
  // Another thread's context, before the first one's end is worked off.
  EXPECT_FALSE(allocations.Add(3, {.charge = Made(), .context = &number, .era = kNew, .pool = nullptr}));
  EXPECT_TRUE(allocations.AddImport(4, &number, kNew));
  handles.Bound(0x6600, part, 2, &number, kNew);
  EXPECT_EQ(allocations.RemoveOfContext(&number, kOld).size(), 2U);
  EXPECT_EQ(handles.TakeBindingsOfContext(&number, kOld).size(), 1U);
  EXPECT_TRUE(allocations.Remove(3).has_value());
  EXPECT_TRUE(allocations.TakeImport(4).has_value());
  EXPECT_EQ(handles.TakeBindings(0x6600).size(), 1U);
}

TEST(AllocationsTest, AnAddressThatIsMadeAgainHasLostItsEarlierAllocation) {
  Allocations allocations;
  EXPECT_FALSE(allocations.Add(1, {.charge = {.card = 0, .bytes = 4}, .pool = nullptr}).has_value());
  const auto gone = allocations.Add(1, {.charge = {.card = 0, .bytes = 8}, .pool = nullptr});
  ASSERT_TRUE(gone.has_value());
  EXPECT_EQ(gone->charge.bytes, 4U);
  EXPECT_EQ(allocations.Remove(1)->charge.bytes, 8U);
  EXPECT_FALSE(allocations.Remove(1).has_value());
}

TEST(AllocationsTest, AnImportIsNewOnceAndEndsWithItsLastOpening) {
  Allocations allocations;
  int context = 0;
  EXPECT_TRUE(allocations.AddImport(1, &context, 1));
  EXPECT_FALSE(allocations.AddImport(1, &context, 1)) << "it is open already";
  const auto first = allocations.TakeImport(1);
  ASSERT_TRUE(first.has_value());
  EXPECT_FALSE(first->was_last);
  const auto second = allocations.TakeImport(1);
  ASSERT_TRUE(second.has_value());
  EXPECT_TRUE(second->was_last);
  EXPECT_EQ(second->context, &context);
  EXPECT_FALSE(allocations.TakeImport(1).has_value());
  EXPECT_TRUE(allocations.AddImport(1, &context, 1));
  EXPECT_EQ(allocations.RemoveOfContext(&context, 1).size(), 1U) << "one, however often it is open";
  allocations.Add(2, {.charge = Made(), .context = &context, .pool = nullptr});
  EXPECT_FALSE(allocations.TakeImport(2).has_value()) << "it is charged here";
}

TEST(HandlesTest, AnImportEndsWithItsLastReference) {
  Handles handles;
  EXPECT_TRUE(handles.Imported(1, 0));
  handles.Mapped(kAddress, kSize, 1);
  EXPECT_EQ(handles.Drop(handles.TakeHandle(1)).imports, 0U) << "the mapping keeps it";
  const Handles::Dropped dropped = handles.Drop(handles.TakeMappings(kAddress, kSize));
  EXPECT_EQ(dropped.imports, 1U);
  EXPECT_TRUE(dropped.charges.empty()) << "it is charged to its maker";
}

}  // namespace
}  // namespace lgpu::shim
