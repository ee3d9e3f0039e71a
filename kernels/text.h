#ifndef LGPU_KERNELS_TEXT_H_
#define LGPU_KERNELS_TEXT_H_

#include <string>
#include <string_view>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace lgpu {

/// absl::StrCat for std::string_view too, which is another type than Debian's absl::string_view.
template <typename... Parts>
std::string Cat(const Parts&... parts) {
  const auto for_abseil = []<typename T>(const T& part) -> decltype(auto) {
    if constexpr (std::is_same_v<T, std::string_view>) {
      return absl::string_view(part.data(), part.size());
    } else {
      return (part);
    }
  };
  return absl::StrCat(for_abseil(parts)...);
}

}  // namespace lgpu

#endif  // LGPU_KERNELS_TEXT_H_
