// lgpu's own codec against protobuf's generated code, message for message.

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "proto/every_message.h"
#include "tests/support/codec_comparison.h"

namespace lgpu {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// protobuf writes a line for every string that is not UTF-8.
[[maybe_unused]] google::protobuf::LogHandler* const kQuiet = google::protobuf::SetLogHandler(nullptr);

/// Messages with some fields set, by reflection.
class RandomMessages {
 public:
  explicit RandomMessages(std::uint64_t seed) : random_(seed) {}

  void Fill(Message& message, int depth = 0) {
    const Descriptor& descriptor = *message.GetDescriptor();
    for (int i = 0; i < descriptor.field_count(); ++i) {
      const FieldDescriptor& field = *descriptor.field(i);
      if (random_() % 3 == 0 || (depth > 3 && field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE)) continue;
      const int times = field.is_repeated() ? static_cast<int>(random_() % 4) : 1;
      for (int t = 0; t < times; ++t) Set(message, field, depth);
    }
  }
  /// The bytes with a few of them changed, taken away or put in.
  std::string Damage(std::string bytes) {
    for (std::uint64_t i = 0; i <= random_() % 3; ++i) {
      const std::size_t at = bytes.empty() ? 0 : random_() % bytes.size();
      switch (random_() % 4) {
        case 0:
          bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), static_cast<char>(random_()));
          break;
        case 1:
          if (!bytes.empty()) bytes.erase(at, 1 + random_() % 3);
          break;
        case 2:
          if (!bytes.empty()) bytes[at] = static_cast<char>(random_());
          break;
        default:
          if (!bytes.empty()) {
            bytes[at] = static_cast<char>(bytes[at] ^ static_cast<char>(1U << (random_() % 8)));
          }
      }
    }
    return bytes;
  }

 private:
  std::uint64_t Number() { return random_() >> (random_() % 64); }
  std::string Text(bool utf8) {
    std::string text;
    const std::uint64_t length = random_() % 8 == 0 ? random_() % 300 : random_() % 8;
    for (std::uint64_t i = 0; i < length; ++i) {
      text +=
          utf8 ? std::string(i % 5 == 4 ? "\xc3\xa4" : "a") : std::string(1, static_cast<char>(random_()));
    }
    return text;
  }
  void Set(Message& message, const FieldDescriptor& field, int depth) {
    const Reflection& reflection = *message.GetReflection();
    const bool list = field.is_repeated();
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_BOOL:
        return reflection.SetBool(&message, &field, Number() % 2 == 0);
      case FieldDescriptor::CPPTYPE_UINT32:
        return list ? reflection.AddUInt32(&message, &field, static_cast<std::uint32_t>(Number()))
                    : reflection.SetUInt32(&message, &field, static_cast<std::uint32_t>(Number()));
      case FieldDescriptor::CPPTYPE_INT32:
        return reflection.SetInt32(&message, &field, static_cast<std::int32_t>(Number()));
      case FieldDescriptor::CPPTYPE_INT64:
        return reflection.SetInt64(&message, &field, static_cast<std::int64_t>(Number()));
      case FieldDescriptor::CPPTYPE_UINT64:
        return list ? reflection.AddUInt64(&message, &field, Number())
                    : reflection.SetUInt64(&message, &field, Number());
      case FieldDescriptor::CPPTYPE_ENUM:
        return list ? reflection.AddEnumValue(&message, &field, static_cast<int>(Number()))
                    : reflection.SetEnumValue(&message, &field, static_cast<int>(Number()));
      case FieldDescriptor::CPPTYPE_STRING: {
        std::string text = Text(field.type() == FieldDescriptor::TYPE_STRING);
        return list ? reflection.AddString(&message, &field, std::move(text))
                    : reflection.SetString(&message, &field, std::move(text));
      }
      case FieldDescriptor::CPPTYPE_MESSAGE:
        return Fill(
            *(list ? reflection.AddMessage(&message, &field) : reflection.MutableMessage(&message, &field)),
            depth + 1);
      default:
        FAIL() << field.full_name() << " has a type that this test does not know";
    }
  }

  std::mt19937_64 random_;
};

constexpr std::uint64_t kSeed = 20261122;

TEST(WireMessagesTest, AreReadAndWrittenAsByProtobuf) {
  RandomMessages random(kSeed);
  ForEachWireMessage([&]<typename Wire, typename Generated>() {
    for (int i = 0; i < 300; ++i) {
      Generated message;
      random.Fill(message);
      const std::string difference = testing::CompareCodecs<Wire, Generated>(message.SerializeAsString());
      ASSERT_EQ(difference, "") << "seed " << kSeed << "\n" << message.DebugString();
    }
  });
}

TEST(WireMessagesTest, DamagedBytesAreJudgedAsByProtobuf) {
  RandomMessages random(kSeed + 1);
  ForEachWireMessage([&]<typename Wire, typename Generated>() {
    for (int i = 0; i < 2000; ++i) {
      Generated message;
      random.Fill(message);
      const std::string bytes = random.Damage(message.SerializeAsString());
      ASSERT_EQ((testing::CompareCodecs<Wire, Generated>(bytes)), "")
          << "seed " << kSeed + 1 << ", round " << i;
    }
  });
}

// Bytes that each break, or seem to break, one rule; all against v1::GrowRefused: number, number, text,
// message.
struct Case {
  std::string name;
  std::string bytes;
  bool is_read;
};

std::string Bytes(std::initializer_list<int> bytes) {
  std::string text;
  for (const int byte : bytes) text += static_cast<char>(byte);
  return text;
}
std::string Repeat(const std::string& part, int times) {
  std::string text;
  for (int i = 0; i < times; ++i) text += part;
  return text;
}

std::vector<Case> Cases() {
  const std::string start = Bytes({0x9b, 0x06});  // field 99 begins a group
  const std::string end = Bytes({0x9c, 0x06});
  return {
      {"nothing", "", true},
      {"a number", Bytes({0x08, 0x05}), true},
      {"a number without its bytes", Bytes({0x08}), false},
      {"a number of eleven bytes", Bytes({0x08}) + Repeat(Bytes({0xff}), 10) + Bytes({0x01}), false},
      {"a number of ten bytes with bits beyond 64", Bytes({0x08}) + Repeat(Bytes({0xff}), 9) + Bytes({0x7f}),
       true},
      {"a number written longer than it needs", Bytes({0x08, 0x85, 0x80, 0x00}), true},
      {"a negative code", Bytes({0x10}) + Repeat(Bytes({0xff}), 9) + Bytes({0x01}), true},
      {"a code of more than 32 bits", Bytes({0x10, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01}), true},
      {"a text", Bytes({0x1a, 0x02, 'h', 'i'}), true},
      {"a text that is cut", Bytes({0x1a, 0x03, 'h', 'i'}), false},
      {"a text that is no UTF-8", Bytes({0x1a, 0x02, 0xc3, 0x28}), false},
      {"a text with half a surrogate", Bytes({0x1a, 0x03, 0xed, 0xa0, 0x80}), false},
      {"a text with an overlong slash", Bytes({0x1a, 0x02, 0xc0, 0xaf}), false},
      {"a length of 2^32 + 1", Bytes({0x1a, 0x81, 0x80, 0x80, 0x80, 0x10, 'a'}), false},
      {"a length of 2^31", Bytes({0x1a, 0x80, 0x80, 0x80, 0x80, 0x08, 'a'}), false},
      {"a length of 2^64 - 1", Bytes({0x1a}) + Repeat(Bytes({0xff}), 9) + Bytes({0x01, 'a'}), false},
      {"a length written in six bytes", Bytes({0x1a, 0x81, 0x80, 0x80, 0x80, 0x80, 0x00, 'a'}), false},
      {"a length written in five bytes", Bytes({0x1a, 0x81, 0x80, 0x80, 0x80, 0x00, 'a'}), true},
      {"a message", Bytes({0x22, 0x02, 0x28, 0x07}), true},
      {"a message twice", Bytes({0x22, 0x02, 0x28, 0x07, 0x22, 0x02, 0x08, 0x01}), true},
      {"a message longer than what is there", Bytes({0x22, 0x05, 0x28, 0x07}), false},
      {"a message whose last field is cut", Bytes({0x22, 0x01, 0x28, 0x07}), false},
      {"a text in a message that is longer than it", Bytes({0x22, 0x03, 0x12, 0x04, 'a', 'b', 'c'}), false},
      {"a number where a text belongs", Bytes({0x18, 0x01}), true},
      {"a text where a number belongs", Bytes({0x0a, 0x01, 'a'}), true},
      {"a message where a number belongs", Bytes({0x12, 0x02, 0x28, 0x07}), true},
      {"eight bytes where a number belongs", Bytes({0x09}) + Repeat("a", 8), true},
      {"four bytes where a number belongs", Bytes({0x0d}) + Repeat("a", 4), true},
      {"an unknown number", Bytes({0x98, 0x06, 0x05}), true},
      {"an unknown text that is no UTF-8", Bytes({0x9a, 0x06, 0x01, 0xff}), true},
      {"an unknown text that is cut", Bytes({0x9a, 0x06, 0x02, 'a'}), false},
      {"eight unknown bytes", Bytes({0x99, 0x06}) + Repeat("a", 8), true},
      {"seven of eight unknown bytes", Bytes({0x99, 0x06}) + Repeat("a", 7), false},
      {"four unknown bytes", Bytes({0x9d, 0x06}) + Repeat("a", 4), true},
      {"a group", start + Bytes({0x08, 0x05}) + end, true},
      {"a group in a group", start + start + end + end, true},
      {"a group without an end", start + Bytes({0x08, 0x05}), false},
      {"a group with another's end", start + Bytes({0x94, 0x06}), false},
      {"an end without a group", end, false},
      {"a hundred groups in each other", Repeat(start, 100) + Repeat(end, 100), true},
      {"a hundred and one groups in each other", Repeat(start, 101) + Repeat(end, 101), false},
      {"a hundred groups in a message", Bytes({0x22, 0x90, 0x03}) + Repeat(start, 100) + Repeat(end, 100),
       false},
      {"groups after each other", Repeat(start + end, 200), true},
      {"a type that does not exist", Bytes({0x0e, 0x00}), false},
      {"another type that does not exist", Bytes({0x9f, 0x06, 0x00}), false},
      {"field zero", Bytes({0x00}), false},
      {"field zero with a text", Bytes({0x02, 0x00}), false},
      {"a field number in six bytes", Bytes({0x88, 0x80, 0x80, 0x80, 0x80, 0x00, 0x05}), false},
      {"a field number in five bytes", Bytes({0x88, 0x80, 0x80, 0x80, 0x00, 0x05}), true},
      {"a field number beyond 32 bits", Bytes({0x88, 0x80, 0x80, 0x80, 0x70, 0x05}), true},
      {"the highest field number", Bytes({0xf8, 0xff, 0xff, 0xff, 0x0f, 0x05}), true},
  };
}

TEST(WireMessagesTest, HostileBytesAreJudgedAsByProtobuf) {
  for (const Case& test : Cases()) {
    EXPECT_EQ((testing::CompareCodecs<wire::GrowRefused, v1::GrowRefused>(test.bytes)), "") << test.name;
    EXPECT_EQ(wire::Decode<wire::GrowRefused>(test.bytes).has_value(), test.is_read) << test.name;
  }
}

TEST(WireMessagesTest, ListsOfNumbersAreReadPackedAndNot) {
  for (const std::string& bytes : {Bytes({0x1a, 0x02, 0x05, 0x06}), Bytes({0x18, 0x05, 0x18, 0x06}),
                                   Bytes({0x1a, 0x01, 0x05, 0x18, 0x06})}) {
    EXPECT_EQ((testing::CompareCodecs<wire::ReturnRequest, v1::ReturnRequest>(bytes)), "");
    const auto request = wire::Decode<wire::ReturnRequest>(bytes);
    ASSERT_TRUE(request.has_value());
    EXPECT_EQ(request->chunk_ids, (std::vector<std::uint64_t>{5, 6}));
  }
  const std::string cut = Bytes({0x1a, 0x02, 0x05, 0x86, 0x01});
  EXPECT_EQ((testing::CompareCodecs<wire::ReturnRequest, v1::ReturnRequest>(cut)), "");
  EXPECT_FALSE(wire::Decode<wire::ReturnRequest>(cut).has_value());
}

TEST(WireMessagesTest, TheLastBodyOfAFrameCounts) {
  const std::string ack = wire::Encode(wire::Frame{.body = wire::Ack{.grant_id = 7}});
  const std::string trim =
      wire::Encode(wire::Frame{.body = wire::Trim{.trim_id = 1, .device_id = 2, .bytes = 3}});
  const std::string more =
      wire::Encode(wire::Frame{.body = wire::Trim{.trim_id = 0, .device_id = 0, .bytes = 9}});
  const std::string bytes = ack + trim + more;
  EXPECT_EQ((testing::CompareCodecs<wire::Frame, v1::Frame>(bytes)), "");
  const auto frame = wire::Decode<wire::Frame>(bytes);
  ASSERT_TRUE(frame.has_value());
  const auto* const last = frame->Get<wire::Trim>();
  ASSERT_NE(last, nullptr);
  EXPECT_EQ(last->trim_id, 1U) << "the same body twice is one that has the fields of both";
  EXPECT_EQ(last->bytes, 9U);
}

}  // namespace
}  // namespace lgpu
