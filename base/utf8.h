#ifndef LGPU_BASE_UTF8_H_
#define LGPU_BASE_UTF8_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace lgpu {

/// The length of the character that `text` begins with; 0: it begins with none.
std::size_t Utf8Length(std::string_view text);

/// Whether a message may hold it: protobuf refuses to read a string that is no UTF-8.
bool IsUtf8(std::string_view text);

/// The text with a question mark for each byte that belongs to no character, and for each control character
/// (those of C1, U+0080 to U+009F, too: terminals obey them).
std::string AsUtf8(std::string_view text);

}  // namespace lgpu

#endif  // LGPU_BASE_UTF8_H_
