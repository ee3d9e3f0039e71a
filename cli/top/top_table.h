#ifndef LGPU_CLI_TOP_TOP_TABLE_H_
#define LGPU_CLI_TOP_TOP_TABLE_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/top/top_layout.h"

namespace lgpu::cli {

// The table of logical devices of `lgpu top`: pure functions of the model.

/// A row of the table; its pointers lead into the model.
struct TopRow {
  const v1::LeaseStats* lease;
  const v1::LogicalDeviceStats* device;
  TopKey key;
  std::optional<TopRates> rates;
};

/// All rows, sorted as the view says.
std::vector<TopRow> TopTableRows(const TopModel& model, const TopView& view);
/// A screen of so many columns has the titles, and each row, in one line.
TopLine TopTableTitle(std::size_t columns);
TopLine TopTableLine(const TopRow& row, const TopModel& model, const TopView& view, std::size_t columns,
                     bool chosen);

/// The first `columns` characters of UTF-8.
std::string CutText(std::string_view text, std::size_t columns);
/// "GPU:0", of a device's full name.
std::string ShortDevice(const std::string& name);

}  // namespace lgpu::cli

#endif  // LGPU_CLI_TOP_TOP_TABLE_H_
