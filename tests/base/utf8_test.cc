#include "base/utf8.h"

#include <gtest/gtest.h>

#include <utility>

namespace lgpu {
namespace {

TEST(Utf8Test, EveryCharacterThatThereIsPasses) {
  for (const char* text : {"", "python3", "обучение", "学习", "\xf0\x9f\x90\xa7", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(IsUtf8(text)) << text;
    EXPECT_EQ(AsUtf8(text), text);
  }
}

TEST(Utf8Test, InvalidBytesBecomeQuestionMarks) {
  const std::pair<const char*, const char*> cases[] = {
      {"\xff", "?"},                    // never in UTF-8
      {"a\xd0\xbe\xd0", "a\xd0\xbe?"},  // cut in the middle
      {"\xc0\xaf", "??"},               // longer than it need be
      {"\xed\xa0\x80", "???"},          // half of a pair
      {"\xf4\x90\x80\x80", "????"},     // beyond the last one
      {"\x80z", "?z"},                  // begins in the middle
  };
  for (const auto& [text, clean] : cases) {
    EXPECT_FALSE(IsUtf8(text));
    EXPECT_EQ(AsUtf8(text), clean);
    EXPECT_TRUE(IsUtf8(AsUtf8(text)));
  }
  EXPECT_EQ(AsUtf8("tab\tesc\x1b[31m\x7f"), "tab?esc?[31m?") << "nothing moves a terminal";
  EXPECT_EQ(AsUtf8("\xc2\x9b"
                   "31m\xc2\xa0"),
            "?31m\xc2\xa0")
      << "nor does a control character of C1";
}

}  // namespace
}  // namespace lgpu
