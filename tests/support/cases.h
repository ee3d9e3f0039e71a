#ifndef LGPU_TESTS_SUPPORT_CASES_H_
#define LGPU_TESTS_SUPPORT_CASES_H_

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <string>
#include <vector>

namespace lgpu::testing {

/// One row of a table of cases (tests/cases/*.tsv): columns between tabs, (empty) for an empty text.
/// Lines that begin with # are comments.
struct Case {
  std::string where;  // "device_names.tsv:12 DN-09", for failure messages
  std::vector<std::string> columns;

  /// The column, or an empty text where the row has fewer.
  std::string operator[](std::size_t column) const {
    if (column >= columns.size() || columns[column] == "(empty)") return "";
    return columns[column];
  }
};

/// The rows of LGPU_TEST_CASES/`file`; none if it cannot be read, so that callers test for that.
inline std::vector<Case> ReadCases(const std::string& file) {
  std::vector<Case> cases;
  std::ifstream in(std::string(LGPU_TEST_CASES).append("/").append(file));
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    if (line.empty() || line.front() == '#') continue;
    Case& row = cases.emplace_back();
    for (std::size_t begin = 0; begin <= line.size();) {
      const std::size_t end = std::min(line.find('\t', begin), line.size());
      row.columns.push_back(line.substr(begin, end - begin));
      begin = end + 1;
    }
    row.where.append(file).append(":").append(std::to_string(number)).append(" ").append(row.columns.front());
  }
  return cases;
}

}  // namespace lgpu::testing

#endif  // LGPU_TESTS_SUPPORT_CASES_H_
