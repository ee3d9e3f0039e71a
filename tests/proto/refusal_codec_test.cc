#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "proto/refusal_messages.h"

namespace lgpu {
namespace {

using ::testing::HasSubstr;

Refusal FullRefusal() {
  return {
      .reason = RefusalReason::kCard,
      .device = "/device:GPU:1",
      .lease = "train",
      .what = "output of op MatMul, shape [8192,16384], float",
      .asked = Bytes(1) * (std::uint64_t{1} << 63),
      .limit = Bytes(1),
      .used = Bytes(2),
      .held = Bytes(3),
      .peak_used = Bytes(4),
      .live_blocks = 5,
      .largest_free_block = Bytes(6),
      .card = "GPU 0 (simulated)",
      .card_total = Bytes(7),
      .card_free = Bytes(8),
      .coming_back = Bytes(9),
      .holders = {{.lease = "a",
                   .owner = "ann",
                   .pid = 10,
                   .device = "/device:GPU:0",
                   .held = Bytes(11),
                   .guarantee = Bytes(0)},
                  {.lease = "b", .owner = "1001", .device = "", .held = Bytes(0), .guarantee = Bytes(12)}},
      .waited = std::chrono::milliseconds(13),
      .advice = {"lgpu resize train --memory 5GiB", "free something"}};
}

// A refusal where every number is known to be zero; not the same as one where nothing is known.
Refusal ZeroRefusal() {
  Refusal refusal;
  refusal.limit = refusal.used = refusal.held = refusal.peak_used = refusal.largest_free_block = Bytes(0);
  refusal.card_total = refusal.card_free = refusal.coming_back = Bytes(0);
  refusal.live_blocks = 0;
  refusal.waited = std::chrono::milliseconds(0);
  return refusal;
}

TEST(RefusalCodecTest, RefusalsComeBackAsTheyWere) {
  for (const Refusal& refusal : {Refusal(), ZeroRefusal(), FullRefusal()}) {
    EXPECT_EQ(RefusalFromProto(RefusalToProto(refusal)), refusal) << RefusalToProto(refusal).DebugString();
  }
  EXPECT_NE(RefusalToProto(ZeroRefusal()).SerializeAsString(), RefusalToProto(Refusal()).SerializeAsString());
}

TEST(RefusalCodecTest, EveryReasonHasTheSameNumberOnTheWire) {
  for (int number = 0; number <= 7; ++number) {
    Refusal refusal;
    refusal.reason = static_cast<RefusalReason>(number);
    EXPECT_EQ(RefusalToProto(refusal).reason(), number);
    EXPECT_EQ(RefusalFromProto(RefusalToProto(refusal)).reason, refusal.reason);
  }
}

TEST(RefusalCodecTest, AReasonOfALaterVersionIsUnspecified) {
  v1::Refusal proto;
  proto.set_reason(static_cast<v1::Refusal::Reason>(1000));
  EXPECT_EQ(RefusalFromProto(proto).reason, RefusalReason::kUnspecified);
}

TEST(RefusalCodecTest, StatusFromWireCarriesTheRefusal) {
  const wire::Refusal message = RefusalToWire(FullRefusal());
  const absl::Status status = StatusFromWire(8, "as the daemon said it", message);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "as the daemon said it");
  EXPECT_EQ(GetRefusal(status), FullRefusal());
}

TEST(RefusalCodecTest, StatusFromWireWritesTheTextWhereThereIsNone) {
  const wire::Refusal message = RefusalToWire(FullRefusal());
  EXPECT_EQ(StatusFromWire(8, "", message), RefusalStatus(FullRefusal()));
}

TEST(RefusalCodecTest, StatusFromWireKnowsEveryCode) {
  EXPECT_TRUE(StatusFromWire(0, "ignored").ok());
  EXPECT_EQ(StatusFromWire(5, "no such lease"), absl::NotFoundError("no such lease"));
  EXPECT_EQ(StatusFromWire(16, "x").code(), absl::StatusCode::kUnauthenticated);
  for (const int code : {-1, 17, 1 << 30}) {
    EXPECT_EQ(StatusFromWire(code, "x"), absl::UnknownError("x")) << code;
  }
  const wire::Refusal message = RefusalToWire(FullRefusal());
  EXPECT_EQ(StatusFromWire(14, "gone", message), absl::UnavailableError("gone"));
}

TEST(RefusalCodecTest, StatusDetailsComeBack) {
  const absl::Status status = RefusalStatus(FullRefusal());
  const absl::Status bare(status.code(), status.message());
  EXPECT_EQ(DecodeStatusDetails(bare, EncodeStatusDetails(status)), status);
}

TEST(RefusalCodecTest, StatusDetailsAreAGoogleRpcStatus) {
  v1::StatusDetails details;
  ASSERT_TRUE(details.ParseFromString(EncodeStatusDetails(RefusalStatus(FullRefusal()))));
  EXPECT_EQ(details.code(), 8);
  EXPECT_EQ(details.message(), FormatRefusal(FullRefusal()));
  ASSERT_EQ(details.details_size(), 1);
  EXPECT_EQ(details.details(0).type_url(), "type.googleapis.com/lgpu.v1.Refusal");
}

TEST(RefusalCodecTest, StatusWithoutRefusalHasNoDetails) {
  EXPECT_EQ(EncodeStatusDetails(absl::OkStatus()), "");
  EXPECT_EQ(EncodeStatusDetails(absl::ResourceExhaustedError("only words")), "");
}

TEST(RefusalCodecTest, DetailsThatDoNotFitTheStatusChangeNothing) {
  const std::string details = EncodeStatusDetails(RefusalStatus(FullRefusal()));
  const absl::Status other = absl::UnavailableError("gone");
  EXPECT_EQ(DecodeStatusDetails(other, details), other);
  EXPECT_EQ(DecodeStatusDetails(absl::OkStatus(), details), absl::OkStatus());
  const absl::Status bare = absl::ResourceExhaustedError("full");
  EXPECT_EQ(DecodeStatusDetails(bare, ""), bare);
  EXPECT_EQ(DecodeStatusDetails(bare, "\xff\xff garbage"), bare);
  // Cut off anywhere: never a crash, and never another code or text.
  for (std::size_t length = 0; length < details.size(); ++length) {
    const absl::Status decoded = DecodeStatusDetails(bare, details.substr(0, length));
    EXPECT_EQ(decoded.code(), bare.code());
    EXPECT_EQ(decoded.message(), bare.message());
  }
}

TEST(RefusalCodecTest, ManyHoldersFitIntoTheMetadataOfACall) {
  Refusal refusal = FullRefusal();
  for (int i = 0; i < 1000; ++i) {
    Refusal::Holder& holder = refusal.holders.emplace_back();
    holder.lease = "lease" + std::to_string(i);
    holder.owner = "somebody";
  }
  const std::string details = EncodeStatusDetails(RefusalStatus(refusal));
  EXPECT_LE(details.size(), 4096u + 64u);
  const auto decoded = GetRefusal(DecodeStatusDetails(absl::ResourceExhaustedError("full"), details));
  ASSERT_TRUE(decoded.has_value());
  ASSERT_FALSE(decoded->holders.empty());
  EXPECT_EQ(decoded->holders.front(), refusal.holders.front());
  EXPECT_EQ(decoded->advice, refusal.advice);
}

}  // namespace
}  // namespace lgpu
