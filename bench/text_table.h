#ifndef LGPU_BENCH_TEXT_TABLE_H_
#define LGPU_BENCH_TEXT_TABLE_H_

#include <string>
#include <vector>

namespace lgpu::bench {

/// A TextTable lines cells up: the first column to the left, the others to the right.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> header) : rows_{std::move(header)} {}

  void AddRow(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  /// With two spaces in front of each line and a newline at the end.
  std::string Text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

/// "1.0302"
std::string Fixed(double value, int digits);

}  // namespace lgpu::bench

#endif  // LGPU_BENCH_TEXT_TABLE_H_
