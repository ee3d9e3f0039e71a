#include "cli/labels.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/output.h"

namespace lgpu::cli {

absl::StatusOr<v1::Label> ParseLabel(const std::string& text) {
  const std::size_t at = text.find('=');
  if (at == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--label ", Printable(text),
                     ": a label begins with its key, not with '='\ntry: --label team=vision"));
  }
  if (at == std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--label ", Printable(text), ": a label has a key and a value\ntry: --label team=vision"));
  }
  v1::Label label;
  label.set_key(text.substr(0, at));
  label.set_value(text.substr(at + 1));
  return label;
}

absl::Status CheckLabelFilter(const std::string& text) {
  return text.find('=') == std::string::npos ? absl::OkStatus() : ParseLabel(text).status();
}

bool HasLabels(const v1::LeaseStats& lease, const std::vector<std::string>& wanted) {
  const auto& labels = lease.management().labels();
  return std::all_of(wanted.begin(), wanted.end(), [&labels](const std::string& text) {
    return std::any_of(labels.begin(), labels.end(), [&text](const v1::Label& label) {
      return text == label.key() || text == absl::StrCat(label.key(), "=", label.value());
    });
  });
}

std::string LabelsText(const v1::LeaseStats& lease) {
  return absl::StrJoin(lease.management().labels(), " ", [](std::string* out, const v1::Label& label) {
    absl::StrAppend(out, label.key(), "=", label.value());
  });
}

}  // namespace lgpu::cli
