#ifndef LGPU_CLI_PICKLE_WRITER_H_
#define LGPU_CLI_PICKLE_WRITER_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace lgpu::cli {

/// A PickleWriter writes dictionaries, lists, texts and numbers as Python's pickle protocol 2. It checks no
/// order of calls: between Begin and End there is one value, and in a dictionary each Key is followed by one.
/// Texts are UTF-8. Not thread-safe.
class PickleWriter {
 public:
  void Begin() { text_.append("\x80\x02", 2); }
  void End() { text_.push_back('.'); }
  /// The bytes written so far; a caller may take them away at any time.
  std::string& text() { return text_; }

  template <typename Contents>
  void Dict(Contents contents) {
    text_.append("}(");
    contents();
    text_.push_back('u');
  }
  template <typename Contents>
  void List(Contents contents) {
    text_.append("](");
    contents();
    text_.push_back('e');
  }
  void Text(std::string_view text) {
    text_.push_back('X');
    Bytes(text.size(), 4);
    text_.append(text);
  }
  void Number(std::uint64_t number) {
    text_.append("\x8a\x09", 2);  // nine bytes of two's complement: never negative
    Bytes(number, 8);
    text_.push_back('\0');
  }
  void Key(std::string_view key) { Text(key); }
  void Item(std::string_view key, std::uint64_t number) {
    Key(key);
    Number(number);
  }
  void Item(std::string_view key, std::string_view text) {
    Key(key);
    Text(text);
  }

 private:
  void Bytes(std::uint64_t number, int count) {
    for (int i = 0; i < count; ++i) text_.push_back(static_cast<char>(number >> (8 * i) & 0xff));
  }

  std::string text_;
};

}  // namespace lgpu::cli

#endif  // LGPU_CLI_PICKLE_WRITER_H_
