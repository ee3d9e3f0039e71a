#ifndef LGPU_PROTO_WIRE_ENCODING_H_
#define LGPU_PROTO_WIRE_ENCODING_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "base/utf8.h"

namespace lgpu::wire {

/// The protobuf encoding (https://protobuf.dev/programming-guides/encoding) of plain structs, without the
/// protobuf library. A message is a struct with default values and a static `Fields(visit, message)` that
/// calls `visit(number, member)` for every field. Its members are numbers, enums, bool, std::string (UTF-8),
/// Blob, other messages as std::optional, lists as std::vector, and std::optional of a number where presence
/// counts. A oneof is a std::variant; `visit.template Case<T>(number, variant)` names each of its messages.
///
/// Decode accepts and refuses the same bytes as protobuf's generated C++ code. Unknown fields are skipped and
/// not kept. The writer supplies UTF-8 in every std::string: a reader refuses anything else.

/// A `bytes` field.
struct Blob {
  std::string bytes;
  friend bool operator==(const Blob&, const Blob&) = default;
};

enum class WireType : std::uint32_t {
  kVarint = 0,
  kFixed64 = 1,
  kLength = 2,
  kStartGroup = 3,
  kEndGroup = 4,
  kFixed32 = 5,
};

template <typename T>
inline constexpr bool kIsNumber = std::is_integral_v<T> || std::is_enum_v<T>;
template <typename T>
inline constexpr bool kIsText = std::is_same_v<T, std::string> || std::is_same_v<T, Blob>;

/// An Encoder appends fields to a string. One thread.
class Encoder {
 public:
  explicit Encoder(std::string& out) : out_(out) {}

  template <typename Message>
  void Write(const Message& message) {
    Message::Fields(*this, message);
  }

  template <typename T>
  void operator()(int number, const T& value) {
    if constexpr (kIsNumber<T>) {
      if (value != T{}) Number(number, value);
    } else {
      if (!TextOf(value).empty()) Text(number, TextOf(value));
    }
  }
  template <typename T>
  void operator()(int number, const std::optional<T>& value) {
    if (!value) return;
    if constexpr (kIsNumber<T>) {
      Number(number, *value);
    } else {
      Nested(number, [&] { Write(*value); });
    }
  }
  template <typename T>
  void operator()(int number, const std::vector<T>& values) {
    if constexpr (kIsNumber<T>) {
      if (values.empty()) return;
      Nested(number, [&] {
        for (const T value : values) Varint(AsVarint(value));
      });
    } else {
      for (const T& value : values) {
        if constexpr (kIsText<T>) {
          Text(number, TextOf(value));
        } else {
          Nested(number, [&] { Write(value); });
        }
      }
    }
  }
  template <typename T, typename Variant>
  void Case(int number, const Variant& body) {
    if (const T* const message = std::get_if<T>(&body)) Nested(number, [&] { Write(*message); });
  }

 private:
  static const std::string& TextOf(const std::string& value) { return value; }
  static const std::string& TextOf(const Blob& value) { return value.bytes; }
  template <typename T>
  static std::uint64_t AsVarint(T value) {
    if constexpr (std::is_enum_v<T>) {
      return static_cast<std::uint64_t>(static_cast<std::int64_t>(value));
    } else {
      return static_cast<std::uint64_t>(value);  // signed ones grow to 64 bits with their sign
    }
  }

  void Key(int number, WireType type) {
    Varint(static_cast<std::uint64_t>(number) << 3U | static_cast<std::uint64_t>(type));
  }
  template <typename T>
  void Number(int number, T value) {
    Key(number, WireType::kVarint);
    Varint(AsVarint(value));
  }
  void Text(int number, const std::string& text) {
    Key(number, WireType::kLength);
    Varint(text.size());
    out_.append(text);
  }
  /// A length of one byte is assumed, and more are inserted where that was too few.
  template <typename Contents>
  void Nested(int number, Contents write) {
    Key(number, WireType::kLength);
    const std::size_t start = out_.size();
    out_.push_back('\0');
    write();
    SetLength(start);
  }
  void SetLength(std::size_t start);
  void Varint(std::uint64_t value);

  std::string& out_;
};

/// A Decoder reads one message out of bytes from an untrusted writer. One thread.
class Decoder {
 public:
  explicit Decoder(std::string_view bytes) : at_(bytes.data()), end_(bytes.data() + bytes.size()) {}

  /// Merges the bytes into `message`. False for bytes that are no message; it is half read then.
  template <typename Message>
  bool Read(Message& message) {
    while (at_ != end_) {
      Field field(*this);
      if (!field.ReadTag()) return false;
      Message::Fields(field, message);
      if (!field.Finish()) return false;
    }
    return true;
  }

 private:
  /// A Field is one tag with its value; it visits a message's fields until one takes it.
  class Field {
   public:
    explicit Field(Decoder& in) : in_(in) {}
    bool ReadTag();
    /// Skips a field that the message does not know; false where anything was wrong.
    bool Finish() { return state_ == State::kUnknown ? in_.Skip(tag_) : state_ == State::kTaken; }

    template <typename T>
    void operator()(int number, T& value) {
      if constexpr (kIsNumber<T>) {
        if (Is(number, WireType::kVarint)) Take(in_.Number(value));
      } else {
        if (Is(number, WireType::kLength)) Take(in_.Text(value));
      }
    }
    template <typename T>
    void operator()(int number, std::optional<T>& value) {
      if constexpr (kIsNumber<T>) {
        if (Is(number, WireType::kVarint)) Take(in_.Number(value.emplace()));
      } else {
        if (Is(number, WireType::kLength)) Take(in_.Nested(value ? *value : value.emplace()));
      }
    }
    template <typename T>
    void operator()(int number, std::vector<T>& values) {
      if constexpr (kIsNumber<T>) {
        if (Is(number, WireType::kVarint)) Take(in_.Number(values.emplace_back()));
        if (Is(number, WireType::kLength)) Take(in_.Packed(values));
      } else if (Is(number, WireType::kLength)) {
        if constexpr (kIsText<T>) {
          Take(in_.Text(values.emplace_back()));
        } else {
          Take(in_.Nested(values.emplace_back()));
        }
      }
    }
    template <typename T, typename Variant>
    void Case(int number, Variant& body) {
      if (!Is(number, WireType::kLength)) return;
      T* const message = std::get_if<T>(&body);
      Take(in_.Nested(message != nullptr ? *message : body.template emplace<T>()));
    }

   private:
    enum class State { kUnknown, kTaken, kBroken };
    bool Is(int number, WireType type) const {
      return state_ == State::kUnknown &&
             tag_ == (static_cast<std::uint32_t>(number) << 3U | static_cast<std::uint32_t>(type));
    }
    void Take(bool read) { state_ = read ? State::kTaken : State::kBroken; }

    Decoder& in_;
    std::uint32_t tag_ = 0;
    State state_ = State::kUnknown;
  };

  Decoder(const char* at, const char* end, int depth) : at_(at), end_(end), depth_(depth) {}

  template <typename T>
  bool Number(T& value) {
    std::uint64_t number = 0;
    if (!Varint(number)) return false;
    if constexpr (std::is_same_v<T, bool>) {
      value = number != 0;
    } else {
      value = static_cast<T>(number);
    }
    return true;
  }
  bool Text(std::string& value) {
    std::string_view text;
    if (!Length(text) || !IsUtf8(text)) return false;
    value = text;
    return true;
  }
  bool Text(Blob& value) {
    std::string_view text;
    if (!Length(text)) return false;
    value.bytes = text;
    return true;
  }
  template <typename Message>
  bool Nested(Message& message) {
    std::string_view bytes;
    return Length(bytes) && depth_ > 0 &&
           Decoder(bytes.data(), bytes.data() + bytes.size(), depth_ - 1).Read(message);
  }
  template <typename T>
  bool Packed(std::vector<T>& values) {
    std::string_view bytes;
    if (!Length(bytes)) return false;
    Decoder inner(bytes.data(), bytes.data() + bytes.size(), depth_);
    while (inner.at_ != inner.end_) {
      if (!inner.Number(values.emplace_back())) return false;
    }
    return true;
  }

  bool Tag(std::uint32_t& tag);
  bool Varint(std::uint64_t& value);
  /// A length and that many bytes.
  bool Length(std::string_view& bytes);
  bool Advance(std::size_t bytes);
  bool Skip(std::uint32_t tag);
  bool SkipGroup(std::uint32_t start);

  const char* at_;
  const char* end_;
  int depth_ = 100;  // protobuf's default limit of messages and groups inside each other
};

/// Replaces `out` by the encoded message; the string's memory is used again.
template <typename Message>
void Encode(const Message& message, std::string& out) {
  out.clear();
  Encoder(out).Write(message);
}
template <typename Message>
std::string Encode(const Message& message) {
  std::string out;
  Encoder(out).Write(message);
  return out;
}
/// Nothing where the bytes are no such message.
template <typename Message>
std::optional<Message> Decode(std::string_view bytes) {
  std::optional<Message> message(std::in_place);
  if (!Decoder(bytes).Read(*message)) message.reset();
  return message;
}

}  // namespace lgpu::wire

#endif  // LGPU_PROTO_WIRE_ENCODING_H_
