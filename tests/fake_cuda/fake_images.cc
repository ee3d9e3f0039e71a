// The forms of code. The fake driver takes the same forms as a driver of its version: machine code whose ELF
// is not too new, for the card's architecture, and PTX whose version it knows.

#include "tests/fake_cuda/fake_images.h"

#include <elf.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>

namespace lgpu::fake_cuda {
namespace {

constexpr std::uint32_t kFatBinary = 0xba55ed50, kFatBinaryWrapper = 0x466243b1;
constexpr std::string_view kVersion = ".version ", kTarget = ".target sm_";

std::uint32_t MagicOf(const char* image) {
  std::uint32_t magic = 0;
  std::memcpy(&magic, image, sizeof(magic));
  return magic;
}

bool IsElf(std::string_view image) { return image.substr(0, SELFMAG) == std::string_view(ELFMAG, SELFMAG); }

/// Machine code for an architecture runs on later ones of the same generation.
bool RunsOn(const Card& card, int architecture) {
  return architecture / 10 == card.compute_major && architecture % 10 <= card.compute_minor;
}

CUresult CheckMachineCode(const State& state, const Card& card, std::string_view image) {
  constexpr unsigned char kAbiOf13 = 8;
  CUresult result = CUDA_ERROR_NO_BINARY_FOR_GPU;
  for (std::size_t at = image.find(ELFMAG); at != image.npos; at = image.find(ELFMAG, at + 1)) {
    Elf64_Ehdr header{};
    if (image.size() - at < sizeof(header)) break;
    std::memcpy(&header, image.data() + at, sizeof(header));
    if (header.e_machine != EM_CUDA) continue;
    const unsigned char abi = header.e_ident[EI_ABIVERSION];
    const auto architecture =
        static_cast<int>((abi >= kAbiOf13 ? header.e_flags >> 8 : header.e_flags) & 0xff);
    if (!RunsOn(card, architecture)) continue;
    if (abi < kAbiOf13 || state.driver_version >= 13000) return CUDA_SUCCESS;
    result = static_cast<CUresult>(state.too_new_image.load());
  }
  return result;
}

// The PTX that came with CUDA 11.x is 7.x, that of 12.0 to 12.5 is 8.x, that of 13.0 is 9.0.
int NewestPtx(int driver_version) {
  const int minor = driver_version % 1000 / 10;
  const int generation = driver_version / 1000 - 4;
  return generation * 10 + (generation == 8 ? std::min(minor, 5) : minor);
}

CUresult CheckPtx(const State& state, const Card& card, std::string_view text) {
  const std::size_t version = text.find(kVersion);
  const std::size_t target = text.find(kTarget);
  if (version == text.npos || target == text.npos) return CUDA_ERROR_INVALID_IMAGE;
  const char* const number = text.data() + version + kVersion.size();
  if ((number[0] - '0') * 10 + number[2] - '0' > NewestPtx(state.driver_version)) {
    return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
  }
  const int architecture = std::atoi(text.data() + target + kTarget.size());
  return architecture > card.compute_major * 10 + card.compute_minor ? CUDA_ERROR_INVALID_PTX : CUDA_SUCCESS;
}

template <typename T>
T At(std::string_view image, std::uint64_t offset) {
  T value{};
  if (offset <= image.size() && image.size() - offset >= sizeof(T)) {
    std::memcpy(&value, image.data() + offset, sizeof(T));
  }
  return value;
}

// Of the table of symbols.
std::map<std::string, std::uint64_t> GlobalsOfMachineCode(std::string_view image) {
  std::map<std::string, std::uint64_t> found;
  const auto header = At<Elf64_Ehdr>(image, 0);
  for (unsigned i = 0; i < header.e_shnum; ++i) {
    const auto section = At<Elf64_Shdr>(image, header.e_shoff + i * sizeof(Elf64_Shdr));
    if (section.sh_type != SHT_SYMTAB) continue;
    const auto names = At<Elf64_Shdr>(image, header.e_shoff + section.sh_link * sizeof(Elf64_Shdr));
    for (std::uint64_t at = 0; at + sizeof(Elf64_Sym) <= section.sh_size; at += sizeof(Elf64_Sym)) {
      const auto symbol = At<Elf64_Sym>(image, section.sh_offset + at);
      const std::uint64_t name = names.sh_offset + symbol.st_name;
      if (ELF64_ST_TYPE(symbol.st_info) != STT_OBJECT || symbol.st_size == 0 || name >= image.size()) {
        continue;
      }
      found[image.data() + name] = symbol.st_size;
    }
  }
  return found;
}

// ".global .align 4 .b8 name[64]" and the like.
std::map<std::string, std::uint64_t> GlobalsOfPtx(std::string_view text) {
  std::map<std::string, std::uint64_t> found;
  for (const std::string_view kind : {".global .", ".const ."}) {
    for (std::size_t at = text.find(kind); at != text.npos; at = text.find(kind, at + 1)) {
      std::string line(text.substr(at, text.find_first_of(";={", at) - at));
      while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back())) != 0) line.pop_back();
      const std::size_t space = line.rfind(' ');
      if (space == line.npos) continue;
      const std::string name = line.substr(space + 1);
      const std::size_t dot = line.rfind('.', space);
      const std::uint64_t element = std::strtoull(line.c_str() + dot + 2, nullptr, 10) / 8;
      const std::size_t bracket = name.find('[');
      const std::uint64_t count =
          bracket == name.npos ? 1 : std::strtoull(name.c_str() + bracket + 1, nullptr, 10);
      if (element != 0 && count != 0) found[name.substr(0, bracket)] = element * count;
    }
  }
  return found;
}

}  // namespace

std::string_view ImageAt(const void* image) {
  const auto* data = static_cast<const char*>(image);
  if (MagicOf(data) == kFatBinaryWrapper) std::memcpy(&data, data + 8, sizeof(data));
  if (MagicOf(data) == kFatBinary) {
    // Magic, version and length of the header, then length of the rest.
    std::uint16_t header = 0;
    std::uint64_t rest = 0;
    std::memcpy(&header, data + 6, sizeof(header));
    std::memcpy(&rest, data + 8, sizeof(rest));
    return {data, header + rest};
  }
  if (std::memcmp(data, ELFMAG, SELFMAG) != 0) return data;  // a text, to the zero that ends it
  Elf64_Ehdr header{};
  std::memcpy(&header, data, sizeof(header));
  return {data, std::max<std::size_t>(header.e_shoff + header.e_shnum * sizeof(Elf64_Shdr),
                                      header.e_phoff + header.e_phnum * sizeof(Elf64_Phdr))};
}

CUresult CheckImage(const State& state, const Card& card, std::string_view image) {
  const bool is_code = IsElf(image) || (image.size() > 4 && MagicOf(image.data()) == kFatBinary);
  return is_code ? CheckMachineCode(state, card, image) : CheckPtx(state, card, image);
}

std::map<std::string, std::uint64_t> GlobalsOf(std::string_view image) {
  if (IsElf(image)) return GlobalsOfMachineCode(image);
  if (image.size() > 4 && MagicOf(image.data()) == kFatBinary) return {};
  return GlobalsOfPtx(image);
}

bool HasKernel(std::string_view image, std::string_view name) { return image.find(name) != image.npos; }

}  // namespace lgpu::fake_cuda
