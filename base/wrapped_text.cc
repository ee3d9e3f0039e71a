#include "base/wrapped_text.h"

#include <algorithm>

namespace lgpu {
namespace {

bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

}  // namespace

std::size_t CharacterCount(std::string_view text) {
  return text.size() - static_cast<std::size_t>(std::count_if(text.begin(), text.end(), IsContinuation));
}

std::size_t LineEnd(std::string_view text, std::size_t columns) {
  std::size_t end = 0;
  std::size_t blank = 0;
  for (std::size_t used = 0; end < text.size(); ++end) {
    if (IsContinuation(text[end])) continue;
    if (used++ == columns) break;
    if (text[end] == ' ') blank = end;
  }
  if (end == text.size() || text[end] == ' ' || blank == 0) return end;
  return blank;
}

void AppendWrapped(std::string& text, std::string_view words, std::size_t column, std::size_t indent) {
  words.remove_suffix(words.size() - (words.find_last_not_of(' ') + 1));
  for (std::size_t end = LineEnd(words, kTextColumns - column); end < words.size();
       end = LineEnd(words, kTextColumns - indent)) {
    text.append(words.substr(0, words.find_last_not_of(' ', end == 0 ? 0 : end - 1) + 1));
    text.append("\n").append(indent, ' ');
    words.remove_prefix(std::min(words.find_first_not_of(' ', end), words.size()));
  }
  text.append(words);
}

}  // namespace lgpu
