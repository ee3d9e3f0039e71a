// Writes down which edges of the tested code any run of this fuzzer ever took: one index a line, each once,
// in the file that LGPU_FUZZ_EDGES names, which the next process goes on with. libFuzzer counts the edges of
// its own process; where threads and hash seeds decide some of them, the same number can be other edges.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

// The counters of this executable, between what the linker puts around their section.
extern "C" std::uint8_t __start___sancov_cntrs[];  // NOLINT(bugprone-reserved-identifier)
extern "C" std::uint8_t __stop___sancov_cntrs[];   // NOLINT(bugprone-reserved-identifier)

extern "C" int __real_LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

class EdgeLog {
 public:
  EdgeLog() : seen_(static_cast<std::size_t>(__stop___sancov_cntrs - __start___sancov_cntrs)) {
    const char* const path = std::getenv("LGPU_FUZZ_EDGES");
    if (path == nullptr) return;
    std::ifstream before(path);
    for (std::string line; std::getline(before, line);) {
      std::istringstream words(line);
      std::size_t edge = 0;
      if (words >> edge && edge < seen_.size()) seen_[edge] = true;
    }
    file_.open(path, std::ios::app);
  }

  void Note() {
    if (!file_.is_open()) return;
    bool is_new = false;
    for (std::size_t edge = 0; edge < seen_.size(); ++edge) {
      if (__start___sancov_cntrs[edge] == 0 || seen_[edge]) continue;
      seen_[edge] = true;
      file_ << edge << " " << std::time(nullptr) << "\n";
      is_new = true;
    }
    if (is_new) file_.flush();
  }

 private:
  std::vector<bool> seen_;
  std::ofstream file_;
};

}  // namespace

// The linker puts it in the place of the fuzzer's own (--wrap).
extern "C" int __wrap_LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static EdgeLog log;
  const int answer = __real_LLVMFuzzerTestOneInput(data, size);
  log.Note();
  return answer;
}
