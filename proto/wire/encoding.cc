#include "proto/wire/encoding.h"

namespace lgpu::wire {
namespace {

constexpr int kVarintBytes = 10;
constexpr int kTagBytes = 5;  // of tags and lengths, which have 32 bits

}  // namespace

void Encoder::Varint(std::uint64_t value) {
  char bytes[kVarintBytes];
  std::size_t count = 0;
  for (; value >= 0x80; value >>= 7U) bytes[count++] = static_cast<char>(value | 0x80U);
  bytes[count++] = static_cast<char>(value);
  out_.append(bytes, count);
}

void Encoder::SetLength(std::size_t start) {
  std::size_t length = out_.size() - start - 1;
  if (length >= 0x80) {
    std::size_t more = 0;
    for (std::size_t rest = length >> 7U; rest != 0; rest >>= 7U) ++more;
    out_.insert(start + 1, more, '\0');
  }
  std::size_t at = start;
  for (; length >= 0x80; length >>= 7U) out_[at++] = static_cast<char>(length | 0x80U);
  out_[at] = static_cast<char>(length);
}

bool Decoder::Varint(std::uint64_t& value) {
  value = 0;
  // Drops bits beyond 64, as protobuf does.
  for (unsigned i = 0; i < kVarintBytes && at_ != end_; ++i) {
    const auto byte = static_cast<unsigned char>(*at_++);
    value |= std::uint64_t{byte & 0x7fU} << (7 * i);
    if (byte < 0x80) return true;
  }
  return false;
}

bool Decoder::Tag(std::uint32_t& tag) {
  const char* const start = at_;
  std::uint64_t value = 0;
  if (!Varint(value) || at_ - start > kTagBytes) return false;
  tag = static_cast<std::uint32_t>(value);
  return tag >> 3U != 0 && (tag & 7U) <= static_cast<std::uint32_t>(WireType::kFixed32);
}

bool Decoder::Length(std::string_view& bytes) {
  const char* const start = at_;
  std::uint64_t length = 0;
  if (!Varint(length) || at_ - start > kTagBytes) return false;
  const char* const text = at_;
  if (length > static_cast<std::uint64_t>(end_ - at_)) return false;
  at_ += length;
  bytes = std::string_view(text, length);
  return true;
}

bool Decoder::Advance(std::size_t bytes) {
  if (bytes > static_cast<std::size_t>(end_ - at_)) return false;
  at_ += bytes;
  return true;
}

bool Decoder::Field::ReadTag() {
  return in_.Tag(tag_) && (tag_ & 7U) != static_cast<std::uint32_t>(WireType::kEndGroup);
}

bool Decoder::Skip(std::uint32_t tag) {
  std::uint64_t number = 0;
  std::string_view bytes;
  switch (static_cast<WireType>(tag & 7U)) {
    case WireType::kVarint:
      return Varint(number);
    case WireType::kFixed64:
      return Advance(8);
    case WireType::kLength:
      return Length(bytes);
    case WireType::kStartGroup:
      return SkipGroup(tag);
    case WireType::kEndGroup:
      return false;
    case WireType::kFixed32:
      return Advance(4);
  }
  return false;
}

bool Decoder::SkipGroup(std::uint32_t start) {
  if (depth_ <= 0) return false;
  --depth_;
  std::uint32_t tag = 0;
  while (Tag(tag)) {
    if ((tag & 7U) == static_cast<std::uint32_t>(WireType::kEndGroup)) {
      ++depth_;
      return tag == start + 1;
    }
    if (!Skip(tag)) return false;
  }
  return false;
}

}  // namespace lgpu::wire
