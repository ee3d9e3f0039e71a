// The part of `lgpu doctor` that is about MatMul on the CPU.

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/doctor.h"

namespace lgpu::cli {

std::vector<std::string> ProcessorAdvice(const std::string& openblas_core, const std::string& cpuinfo) {
  constexpr std::array<std::string_view, 3> kWithAvx512 = {"SkylakeX", "Cooperlake", "SapphireRapids"};
  // What OpenBLAS wants of a processor for SkylakeX.
  constexpr std::array<std::string_view, 4> kWanted = {"avx512f", "avx512dq", "avx512bw", "avx512vl"};
  const auto has = [](const auto& words, std::string_view word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  if (openblas_core.empty() || has(kWithAvx512, openblas_core)) return {};
  const std::size_t begin = cpuinfo.find("\nflags");
  if (begin == std::string::npos) return {};
  const std::string line = cpuinfo.substr(begin + 1, cpuinfo.find('\n', begin + 1) - begin - 1);
  const std::vector<std::string> flags = absl::StrSplit(line, ' ');
  if (!std::all_of(kWanted.begin(), kWanted.end(), [&](std::string_view flag) { return has(flags, flag); })) {
    return {};
  }
  return {absl::StrCat("OpenBLAS uses its code for ", openblas_core,
                       " for MatMul on the CPU, and this processor has AVX-512"),
          "try: OPENBLAS_CORETYPE=SkylakeX in the environment of programs, and compare their times"};
}

}  // namespace lgpu::cli
