// driver_lookups NAMES: what libcuda.so.1 answers to look-ups, with and without the shim before it. NAMES is
// a file with a name at the start of each line. It prints
//   version NUMBER                          of the driver
//   export SYMBOL there|missing             of each call that the shim changes or makes
//   CALL NAME VERSION FLAGS RESULT STATUS PLACE [SYMBOL]
// PLACE is where the answer lies in the real driver; for an answer of the shim's it is the place of the real
// call of the same SYMBOL, and for code that notes a use, the place where that code goes on.

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "client/driver/surface.h"

namespace {

using lgpu::shim::Flags64;
using lgpu::shim::Result;

constexpr int kVersions[] = {2000,  2020,  3000,  3010,  3020,  4000,  4010,  5000,  5050,
                             6000,  6050,  7000,  7050,  8000,  9000,  9020,  10000, 10010,
                             10020, 11000, 11010, 11020, 11030, 11040, 11060, 11070, 11080,
                             12000, 12010, 12020, 12030, 12040, 12050, 12080, 13000};

const char* const kChanged[] = {
#define LGPU_NAME(symbol, ...) #symbol,
    LGPU_SHIM_SURFACE(LGPU_NAME)};
const char* const kUsed[] = {LGPU_SHIM_OWN_USE(LGPU_NAME)};
#undef LGPU_NAME

void* opened = nullptr;  // what programs open
void* real = nullptr;    // the driver itself; the same without a shim
std::uint64_t real_base = 0;
const void* shim_base = nullptr;
std::map<const void*, std::string> shims;  // the shim's calls

std::string PlaceOf(const void* answer) {
  char text[64];
  std::snprintf(text, sizeof(text), "%#llx",
                static_cast<unsigned long long>(reinterpret_cast<std::uint64_t>(answer) - real_base));
  return text;
}

/// Where the shim's code that notes a use goes on (client/driver/use_thunks.S, of x86-64): its second
/// instruction loads the address of the word with the function. Any other answer is given back.
const void* GoesOnAt(const void* answer) {
  constexpr unsigned char kBegin[] = {0xf3, 0x0f, 0x1e, 0xfa, 0x4c, 0x8b, 0x1d};
  constexpr unsigned char kLoad[] = {0x4c, 0x8d, 0x15};
  Dl_info about{};
  if (::dladdr(answer, &about) == 0 || about.dli_fbase != shim_base) return answer;
  const auto* const code = static_cast<const unsigned char*>(answer);
  if (std::memcmp(code, kBegin, sizeof(kBegin)) != 0 || std::memcmp(code + 11, kLoad, sizeof(kLoad)) != 0) {
    return answer;
  }
  std::int32_t distance = 0;
  std::memcpy(&distance, code + 14, sizeof(distance));
  const void* target = nullptr;
  std::memcpy(&target, code + 18 + distance, sizeof(target));
  return target;
}

std::string About(const void* answer) {
  if (answer == nullptr) return "none";
  if (!shims.contains(answer)) answer = GoesOnAt(answer);
  const auto shim = shims.find(answer);
  if (shim == shims.end()) return PlaceOf(answer);
  const void* const own = ::dlsym(real, shim->second.c_str());
  return (own == nullptr ? "none" : PlaceOf(own)) + " " + shim->second;
}

}  // namespace

int main(int argc, char** argv) {
  opened = argc < 2 ? nullptr : ::dlopen("libcuda.so.1", RTLD_NOW);
  if (opened == nullptr) {
    std::fprintf(stderr, "%s\n", argc < 2 ? "driver_lookups NAMES" : ::dlerror());
    return 1;
  }
  real = ::dlopen("liblgpu_real_cuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  const bool has_shim = real != nullptr;
  if (!has_shim) real = opened;
  Dl_info about{};
  if (::dladdr(::dlsym(real, "cuInit"), &about) == 0) return 1;
  real_base = reinterpret_cast<std::uint64_t>(about.dli_fbase);
  if (has_shim && ::dladdr(::dlsym(opened, "cuInit"), &about) != 0) shim_base = about.dli_fbase;
  int version = 0;
  reinterpret_cast<Result (*)(int*)>(::dlsym(real, "cuDriverGetVersion"))(&version);
  std::printf("version %d\n", version);
  for (const char* const symbol : kChanged) {
    const void* const found = ::dlsym(opened, symbol);
    if (has_shim) shims[found] = symbol;
    std::printf("export %s %s\n", symbol, ::dlsym(real, symbol) == nullptr ? "missing" : "there");
  }
  for (const char* const symbol : kUsed) {
    std::printf("export %s %s\n", symbol, ::dlsym(real, symbol) == nullptr ? "missing" : "there");
  }
  const auto first =
      reinterpret_cast<Result (*)(const char*, void**, int, Flags64)>(::dlsym(opened, "cuGetProcAddress"));
  const auto second = reinterpret_cast<Result (*)(const char*, void**, int, Flags64, int*)>(
      ::dlsym(opened, "cuGetProcAddress_v2"));
  std::ifstream file(argv[1]);
  std::set<std::string> names;
  for (std::string line, name; std::getline(file, line);) {
    if (std::istringstream(line) >> name) names.insert(name);
  }
  for (const char* const symbol : kChanged) names.insert(symbol);
  for (const std::string& name : names) {
    for (const int asked : kVersions) {
      for (const Flags64 flags : {0, 1, 2}) {
        void* answer = nullptr;
        int status = -1;
        if (first != nullptr) {
          const Result result = first(name.c_str(), &answer, asked, flags);
          std::printf("v1 %s %d %d %d 0 %s\n", name.c_str(), asked, static_cast<int>(flags), result,
                      About(answer).c_str());
        }
        answer = nullptr;
        if (second != nullptr) {
          const Result result = second(name.c_str(), &answer, asked, flags, &status);
          std::printf("v2 %s %d %d %d %d %s\n", name.c_str(), asked, static_cast<int>(flags), result, status,
                      About(answer).c_str());
        }
      }
    }
  }
  return 0;
}
