#ifndef LGPU_BASE_WRAPPED_TEXT_H_
#define LGPU_BASE_WRAPPED_TEXT_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace lgpu {

/// Texts for terminals have lines of at most this many characters.
inline constexpr std::size_t kTextColumns = 80;

/// How many characters of UTF-8 `text` has. A byte that begins no character is one.
std::size_t CharacterCount(std::string_view text);

/// Where the first line of at most `columns` characters ends: before its last blank; inside a word that is
/// longer than that.
std::size_t LineEnd(std::string_view text, std::size_t columns);

/// Appends `words` in lines of at most kTextColumns. The first line begins at `column`, and the others begin
/// behind `indent` blanks; both are below kTextColumns.
void AppendWrapped(std::string& text, std::string_view words, std::size_t column, std::size_t indent);

}  // namespace lgpu

#endif  // LGPU_BASE_WRAPPED_TEXT_H_
