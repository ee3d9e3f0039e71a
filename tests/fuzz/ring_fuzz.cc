// A client page that a hostile client writes between any two steps of the reader.
//
// Input: steps of 11 bytes: what to do, which word (2 bytes), which value (8 bytes).

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "proto/wire/pages.h"

namespace lgpu {
namespace {

constexpr std::size_t kStepBytes = 11;

// A page is large: one serves all inputs, and each input clears the words that it touched.
class Harness {
 public:
  explicit Harness(ClientPage& page) : page_(page) {}
  ~Harness() {
    for (const std::uint64_t slot : slots_) {
      for (auto& word : page_.ring.slots[slot].words) word.store(0);
    }
    for (const std::size_t name : names_) {
      for (auto& word : page_.op_names[name].words) word.store(0);
    }
    page_.ring.head.store(0);
    page_.op_count.store(0);
  }
  Harness(const Harness&) = delete;
  Harness& operator=(const Harness&) = delete;

  void Step(const std::uint8_t* step) {
    std::uint16_t where;
    std::uint64_t value;
    std::memcpy(&where, step + 1, sizeof(where));
    std::memcpy(&value, step + 3, sizeof(value));
    const std::uint64_t slot = where % PlacementRing::kSlots;
    switch (step[0] % 8) {
      case 0:
        page_.ring.head.store(value);
        break;
      case 1:  // a word of a slot
        slots_.push_back(slot);
        page_.ring.slots[slot].words[value % 8].store(value);
        break;
      case 2:  // a mark near the ones that the reader expects
        slots_.push_back(slot);
        page_.ring.slots[slot].words[0].store(2 * (slot + PlacementRing::kSlots * (value >> 32)) + value % 4);
        break;
      case 3:
        slots_.push_back(page_.ring.head.load() % PlacementRing::kSlots);
        page_.ring.Push({.op = where, .output_bytes = value});
        break;
      case 4:
        names_.push_back(where % ClientPage::kMaxOps);
        page_.op_names[names_.back()].words[value % 4].store(value);
        break;
      case 5:
        page_.op_count.store(value);
        CheckOpName(static_cast<int>(where) - 8);
        break;
      case 6:
        reader_.WriterIsGone();
        break;
      default:
        Read();
    }
  }

 private:
  void Read() {
    // Nothing writes meanwhile, so the ring has at most one lap of records.
    for (std::uint64_t read = 0; reader_.Next(); ++read) LGPU_CHECK_OP(read, <, PlacementRing::kSlots);
  }
  void CheckOpName(int index) const {
    const std::string name = GetOpName(page_, index);
    LGPU_CHECK(!name.empty() && name.size() <= ClientPage::kOpNameBytes);
    for (const char c : name) LGPU_CHECK(c > ' ' && c < 0x7f && c != '<' && c != '"');
  }

  ClientPage& page_;
  PlacementRingReader reader_{&page_.ring};
  std::vector<std::uint64_t> slots_;  // touched
  std::vector<std::size_t> names_;
};

}  // namespace
}  // namespace lgpu

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::unique_ptr<lgpu::ClientPage> page = std::make_unique<lgpu::ClientPage>();
  lgpu::Harness harness(*page);
  for (; size >= lgpu::kStepBytes; data += lgpu::kStepBytes, size -= lgpu::kStepBytes) harness.Step(data);
  return 0;
}
