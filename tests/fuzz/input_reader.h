#ifndef LGPU_TESTS_FUZZ_INPUT_READER_H_
#define LGPU_TESTS_FUZZ_INPUT_READER_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace lgpu {

/// An InputReader takes values from the front of a fuzzer's input; zeros, once that is over.
class InputReader {
 public:
  InputReader(const std::uint8_t* data, std::size_t size) : at_(data), end_(data + size) {}

  bool is_empty() const { return at_ == end_; }
  std::uint8_t Byte() { return is_empty() ? std::uint8_t{0} : *at_++; }
  /// Small numbers mostly; the last few bytes stand for those at which arithmetic goes wrong.
  std::uint64_t Number() {
    static constexpr std::array<std::uint64_t, 8> kEdges = {
        ~std::uint64_t{0},      ~std::uint64_t{0} - 1,  std::uint64_t{1} << 63, (std::uint64_t{1} << 63) - 1,
        std::uint64_t{1} << 43, std::uint64_t{1} << 42, std::uint64_t{1} << 32, (std::uint64_t{1} << 32) - 1};
    const std::uint8_t byte = Byte();
    return byte < 0xf8 ? byte : kEdges[byte - 0xf8u];
  }
  /// A byte for its length, and as much of it as there is.
  std::string Text() {
    const std::size_t wanted = Byte();
    const std::size_t size = std::min(wanted, static_cast<std::size_t>(end_ - at_));
    const std::string text(at_, at_ + size);
    at_ += size;
    return text;
  }

 private:
  const std::uint8_t* at_;
  const std::uint8_t* end_;
};

}  // namespace lgpu

#endif  // LGPU_TESTS_FUZZ_INPUT_READER_H_
