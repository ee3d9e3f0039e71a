// The built code of the GPU kernels: the drivers and GPUs that docs/cuda-reference.md promises can load it,
// its parameters have the host's layout, and it reads and writes memory wide. No GPU needed.

#include <elf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <string_view>

#include "allocator/device/cuda/cuda_image.h"
#include "kernels/bodies/add_n.h"
#include "kernels/bodies/cast.h"
#include "kernels/bodies/elementwise.h"
#include "kernels/bodies/reduce.h"
#include "kernels/bodies/softmax.h"
#include "kernels/bodies/transpose.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/device_kernels.h"
#include "kernels/cuda/kernel_parameters.h"
#include "tests/support/child_program.h"

namespace lgpu {
namespace {

using ::testing::HasSubstr;

struct KnownKernel {
  const DeviceKernel* kernel;
  std::size_t parameter_bytes;
};

std::vector<KnownKernel> AllKernels() {
  std::vector<KnownKernel> all = {{&kFillKernel, sizeof(FillParameters)},
                                  {&kCopyKernel, sizeof(CopyParameters)}};
  const auto add = [&all](const DeviceKernel* kernel, std::size_t bytes) {
    if (kernel != nullptr) all.push_back({kernel, bytes});
  };
  for (const DType dtype :
       {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64, DType::kInt32, DType::kInt64}) {
    add(AddNKernel(dtype, false), sizeof(code::AddNFew));
    add(AddNKernel(dtype, true), sizeof(code::AddNMany));
    add(CastKernel(dtype), sizeof(code::CastParameters));
    add(ElementwiseKernel(dtype), sizeof(code::ElementwiseParameters));
    add(ReduceKernel(dtype), sizeof(code::ReduceParameters));
    add(ReducePartialsKernel(dtype), sizeof(code::ReduceParameters));
    add(SoftmaxKernel(dtype), sizeof(code::SoftmaxParameters));
  }
  for (const std::size_t bytes : {2, 4, 8}) add(TransposeKernel(bytes), sizeof(code::TransposeParameters));
  return all;
}

std::string_view PtxOf(const DeviceImage& image) { return static_cast<const char*>(image.ptx); }

/// The text of one kernel.
std::string EntryOf(const DeviceKernel& kernel) {
  const std::string text(PtxOf(*kernel.image));
  const std::size_t begin = text.find(std::string(".visible .entry ") + kernel.name + "(");
  if (begin == text.npos) return "";
  return text.substr(begin, text.find("\n}", begin) - begin);
}

struct MachineCode {
  int architecture = 0;
  int abi = 0;
  std::string_view file;
};

/// The machine code in the fat binary, which is not compressed.
std::vector<MachineCode> MachineCodeOf(const DeviceImage& image) {
  const auto* const start = static_cast<const char*>(image.machine_code);
  std::uint16_t header = 0;
  std::uint64_t rest = 0;
  std::memcpy(&header, start + 6, sizeof(header));
  std::memcpy(&rest, start + 8, sizeof(rest));
  const std::string_view all(start, header + rest);
  std::vector<MachineCode> found;
  for (std::size_t at = all.find(ELFMAG); at != all.npos; at = all.find(ELFMAG, at + 1)) {
    Elf64_Ehdr elf{};
    std::memcpy(&elf, all.data() + at, sizeof(elf));
    if (elf.e_machine != EM_CUDA) continue;
    const int abi = elf.e_ident[EI_ABIVERSION];
    const std::size_t sections_end = elf.e_shoff + std::size_t{elf.e_shnum} * elf.e_shentsize;
    const std::size_t segments_end = elf.e_phoff + std::size_t{elf.e_phnum} * elf.e_phentsize;
    found.push_back({static_cast<int>((abi >= 8 ? elf.e_flags >> 8 : elf.e_flags) & 0xff), abi,
                     all.substr(at, std::max(sections_end, segments_end))});
  }
  return found;
}

/// Rows of the table of architectures in docs/cuda-reference.md that promise machine code: 75 for "7.5".
std::set<int> PromisedArchitectures() {
  std::ifstream file(LGPU_CUDA_DOCUMENT);
  std::set<int> promised;
  const std::regex row("\\| ([0-9]+)\\.([0-9]) \\|.*\\| machine code \\|");
  std::smatch match;
  for (std::string line; std::getline(file, line);) {
    if (std::regex_match(line, match, row)) promised.insert(std::stoi(match[1]) * 10 + std::stoi(match[2]));
  }
  return promised;
}

TEST(CudaImagesTest, EveryKernelTakesTheParametersOfTheHost) {
  EXPECT_EQ(AllKernels().size(), 45u) << "two of them stand twice: their partial sums have their own type";
  for (const KnownKernel& known : AllKernels()) {
    const std::string entry = EntryOf(*known.kernel);
    EXPECT_THAT(entry, HasSubstr(std::string(known.kernel->name) + "_param_0[" +
                                 std::to_string(known.parameter_bytes) + "]"))
        << known.kernel->name;
  }
}

TEST(CudaImagesTest, PtxIsForTheOldestDriverAndTheOldestGpu) {
  // CUDA 11.4 has PTX 7.4, and so on (PTX ISA, "Release Notes").
  const int minor = CudaDriver::kOldestVersion % 1000 / 10;
  for (const KnownKernel& known : AllKernels()) {
    const std::string text(PtxOf(*known.kernel->image));
    EXPECT_THAT(text, HasSubstr("\n.version 7." + std::to_string(minor) + "\n"));
    EXPECT_THAT(text, HasSubstr("\n.target sm_" + std::to_string(kOldestComputeCapability) + "\n"));
  }
}

TEST(CudaImagesTest, MachineCodeIsThereForEveryArchitectureThatIsPromised) {
  const std::set<int> promised = PromisedArchitectures();
  ASSERT_GE(promised.size(), 5u);
  for (const KnownKernel& known : AllKernels()) {
    std::set<int> there;
    for (const MachineCode& code : MachineCodeOf(*known.kernel->image)) {
      there.insert(code.architecture);
      // 7: drivers of CUDA 12 load it; 8: drivers of CUDA 13.
      EXPECT_LE(code.abi, 8);
      EXPECT_NE(code.file.find(known.kernel->name), code.file.npos) << known.kernel->name;
    }
    if (LGPU_ALL_ARCHITECTURES) {
      EXPECT_EQ(there, promised);
    } else {
      EXPECT_EQ(there.size(), 1u);
    }
  }
}

/// How often each instruction stands in the code.
std::map<std::string, int> Count(const std::string& code, const std::string& pattern) {
  std::map<std::string, int> counts;
  const std::regex instruction(pattern);
  for (std::sregex_iterator it(code.begin(), code.end(), instruction), end; it != end; ++it) {
    ++counts[it->str()];
  }
  return counts;
}

bool MovesBytes(const DeviceKernel& kernel) { return &kernel == &kFillKernel || &kernel == &kCopyKernel; }
bool MovesOneElementEach(const DeviceKernel& kernel) {
  const std::string_view name = kernel.name;
  return name.rfind("lgpu_transpose_", 0) == 0;
}

// Single bytes only where bytes are moved, and 16 bytes at a time in every kernel that has packs.
TEST(CudaImagesTest, PtxReadsAndWritesWide) {
  for (const KnownKernel& known : AllKernels()) {
    const auto counts = Count(EntryOf(*known.kernel), "(ld|st)\\.global\\.[a-z0-9.]+");
    int wide = 0;
    for (const auto& [instruction, times] : counts) {
      const bool single_bytes = std::regex_search(instruction, std::regex("\\.[usb]8$"));
      EXPECT_FALSE(single_bytes && !MovesBytes(*known.kernel)) << known.kernel->name << ": " << instruction;
      if (std::regex_search(instruction, std::regex("v4\\.[fu]32$|v2\\.[fu]64$"))) wide += times;
    }
    EXPECT_TRUE(wide > 0 || MovesOneElementEach(*known.kernel)) << known.kernel->name;
  }
}

/// The disassembled machine code, by kernel.
std::map<std::string, std::string> Disassemble(const MachineCode& code) {
  const testing::TempDir directory;
  const std::string file = directory.path() + "/code.cubin";
  std::ofstream(file, std::ios::binary) << code.file;
  const auto result = testing::RunProgram({.argv = {LGPU_NVDISASM, file}});
  EXPECT_TRUE(result.ok() && result->code == 0);
  std::map<std::string, std::string> kernels;
  if (!result.ok()) return kernels;
  constexpr std::string_view kBegin = "\n.text.", kEnd = "\n\t.section";
  const std::string& text = result->out;
  for (std::size_t at = text.find(kBegin); at != text.npos; at = text.find(kBegin, at + 1)) {
    const std::size_t name = at + kBegin.size();
    kernels[text.substr(name, text.find(':', name) - name)] = text.substr(at, text.find(kEnd, at) - at);
  }
  return kernels;
}

/// One letter per instruction that matters: B and b load or store a single byte; L, D and W load 16 bytes, 8
/// and fewer; S stores 16 bytes and s fewer; M uses local memory.
std::string Summary(const std::string& text) {
  std::string summary;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const auto has = [&line](std::string_view word) { return line.find(word) != line.npos; };
    const bool loads = has(" LDG");
    const bool stores = has(" STG");
    if ((loads || stores) && (has(".U8") || has(".S8"))) {
      summary += loads ? 'B' : 'b';
    } else if (loads) {
      // " LDG.E.64.CONSTANT desc[UR4][R2.64]": the address has a .64 as well.
      const std::string name =
          line.substr(line.find(" LDG"), line.find_first_of(" ;", line.find(" LDG") + 1) - line.find(" LDG"));
      summary += name.find(".128") != name.npos ? 'L' : name.find(".64") != name.npos ? 'D' : 'W';
    } else if (stores) {
      summary += has(".128") ? 'S' : 's';
    } else if (has(" LDL") || has(" STL")) {
      summary += 'M';
    }
  }
  return summary;
}

/// The registers of a thread: one more than the highest that the code names.
int Registers(const std::string& text) {
  int highest = -1;
  for (std::size_t at = text.find('R'); at != text.npos; at = text.find('R', at + 1)) {
    const bool begins = at > 0 && std::string_view(" [-|!~(").find(text[at - 1]) != std::string_view::npos;
    if (!begins || at + 1 >= text.size() || text[at + 1] < '0' || text[at + 1] > '9') continue;
    highest = std::max(highest, std::stoi(text.substr(at + 1, 3)));
  }
  return highest + 1;
}

/// How often `letters` stand in `summary`.
int Times(const std::string& summary, std::string_view letters) {
  int times = 0;
  for (std::size_t at = summary.find(letters); at != summary.npos;
       at = summary.find(letters, at + letters.size())) {
    ++times;
  }
  return times;
}

// What each kernel was built for. Loads that stand together are on their way together.
void ExpectWide(const MachineCode& code, const std::string& kernel, const std::string& text) {
  const std::string summary = Summary(text);
  const auto has = [&summary](std::string_view letters) { return summary.find(letters) != summary.npos; };
  const auto is = [&kernel](std::string_view begin) { return kernel.rfind(begin, 0) == 0; };
  SCOPED_TRACE(kernel + " of architecture " + std::to_string(code.architecture) + ": " + summary);
  EXPECT_FALSE(has("M")) << "local memory";
  const bool moves_bytes = kernel == "lgpu_fill" || kernel == "lgpu_copy";
  EXPECT_TRUE(moves_bytes || (!has("B") && !has("b"))) << "single bytes";
  const bool whole_numbers = kernel.find("_int") != kernel.npos;
  const bool loads_together =
      (is("lgpu_add_n_") && !whole_numbers) || is("lgpu_reduce_") || kernel == "lgpu_copy";
  EXPECT_TRUE(has("LLLL") || !loads_together) << "one load at a time";
  if (is("lgpu_softmax_")) {
    EXPECT_EQ(Times(summary, "LLLL"), 2) << "one pass over a row for its sum, one for its gradient";
    EXPECT_TRUE(has("SSSS")) << "gradients stored whole";
  }
  if (is("lgpu_cast_")) {
    // To each of six types: 16 bytes of the wider type at a time, so a narrower one is loaded by 8 or by 4.
    EXPECT_GE(Times(summary, "LLLL") + Times(summary, "DDDD") + Times(summary, "WWWW"), 6);
    const bool narrowest = kernel == "lgpu_cast_half" || kernel == "lgpu_cast_bfloat16";
    EXPECT_GE(Times(summary, "DDDD"), narrowest || kernel == "lgpu_cast_float" ? 2 : 0);
  }
  // More would leave a multiprocessor with too few threads to hide what memory costs.
  const int most = is("lgpu_softmax_") ? 128 : is("lgpu_cast_") ? 80 : 64;
  EXPECT_LE(Registers(text), most);
}

TEST(CudaImagesTest, MachineCodeReadsAndWritesWide) {
  if (!std::filesystem::exists(LGPU_NVDISASM)) {
    GTEST_SKIP() << "there is no nvdisasm at " << LGPU_NVDISASM << "; scripts/nvdisasm fetches it";
  }
  std::set<const DeviceImage*> images;
  std::size_t kernels = 0;
  for (const KnownKernel& known : AllKernels()) {
    if (!images.insert(known.kernel->image).second) continue;
    for (const MachineCode& code : MachineCodeOf(*known.kernel->image)) {
      for (const auto& [kernel, text] : Disassemble(code)) {
        ExpectWide(code, kernel, text);
        ++kernels;
      }
    }
  }
  EXPECT_EQ(kernels % 43, 0u) << "43 kernels for every architecture";
  EXPECT_GT(kernels, 0u);
}

}  // namespace
}  // namespace lgpu
