#ifndef LGPU_PROTO_WIRE_TEXT_H_
#define LGPU_PROTO_WIRE_TEXT_H_

#include <string>
#include <string_view>
#include <type_traits>

namespace lgpu::wire {

/// The parts one after another, numbers in decimal: for error texts, without abseil.
template <typename... Parts>
std::string Text(const Parts&... parts) {
  std::string text;
  const auto append = [&text]<typename T>(const T& part) {
    if constexpr (std::is_integral_v<T>) {
      text += std::to_string(part);
    } else {
      text += std::string_view(part);
    }
  };
  (append(parts), ...);
  return text;
}

}  // namespace lgpu::wire

#endif  // LGPU_PROTO_WIRE_TEXT_H_
