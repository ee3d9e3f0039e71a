#include "cli/placement_tables.h"

#include "absl/strings/str_cat.h"
#include "lgpu/bytes.h"

namespace lgpu::cli {
namespace {

using Align = Table::Align;

/// "GPU:0" of "/job:localhost/replica:0/task:0/device:GPU:0"; in full where the width has no bound (-v).
std::string Device(const std::string& name, const Style& style) {
  const std::size_t at = name.rfind("device:");
  return Printable(style.width == 0 || at == std::string::npos ? name : name.substr(at + 7));
}

std::string HostTime(std::uint64_t ns) { return ns == 0 ? "-" : FormatNanoseconds(ns); }

std::string DeviceTime(const v1::PlacementRecord& record) {
  return record.has_device_ns() ? FormatNanoseconds(record.device_ns()) : "-";
}

void AppendCopyTotals(const v1::PlacementReport& report, const Style& style, std::string& text) {
  Table totals({{"COPIED FROM"},
                {"TO"},
                {"COUNT", Align::kRight},
                {"BYTES", Align::kRight},
                {"HOST TIME", Align::kRight}});
  for (const auto& total : report.copy_totals()) {
    totals.AddRow({Device(total.source(), style), Device(total.target(), style), absl::StrCat(total.count()),
                   FormatBytes(Bytes(total.bytes())), HostTime(total.host_ns())});
  }
  if (!totals.empty()) absl::StrAppend(&text, "\n", totals.Format(style));
}

void AppendCopies(const v1::PlacementReport& report, const Style& style, std::string& text) {
  Table copies({{"TIME"},
                {"PID", Align::kRight},
                {"COPIED FROM"},
                {"TO"},
                {"DTYPE"},
                {"BYTES", Align::kRight},
                {"HOST TIME", Align::kRight}});
  for (const auto& copy : report.copies()) {
    copies.AddRow({FormatClock(copy.submitted_at()), absl::StrCat(copy.pid()), Device(copy.source(), style),
                   Device(copy.target(), style), Printable(copy.dtype()), FormatBytes(Bytes(copy.bytes())),
                   HostTime(copy.host_ns())});
  }
  if (!copies.empty()) absl::StrAppend(&text, "\n", copies.Format(style));
}

std::string FormatCopy(const v1::CopyRecord& copy) {
  return absl::StrCat(FormatClock(copy.submitted_at()), "  ", copy.pid(), "  copy ", Printable(copy.dtype()),
                      " from ", Printable(copy.source()), " to ", Printable(copy.target()), "  ",
                      FormatBytes(Bytes(copy.bytes())), "  host ", HostTime(copy.host_ns()));
}

}  // namespace

std::string FormatReport(const v1::PlacementReport& report, const Style& style) {
  Table totals({{"DEVICE"},
                {"OP"},
                {"DTYPE", Align::kLeft, /*drop=*/1},
                {"COUNT", Align::kRight},
                {"OUTPUT", Align::kRight},
                {"HOST TIME", Align::kRight},
                {"SOFT PLACED", Align::kRight, /*drop=*/2}});
  for (const auto& total : report.totals()) {
    totals.AddRow({Device(total.device(), style), Printable(total.op()), Printable(total.dtype()),
                   absl::StrCat(total.count()), FormatBytes(Bytes(total.output_bytes())),
                   HostTime(total.host_ns()), absl::StrCat(total.soft_placed())});
  }
  std::string text =
      absl::StrCat("Lease ", Printable(report.lease_name().empty() ? report.lease_id() : report.lease_name()),
                   ": ", report.records_total(), report.records_total() == 1 ? " op" : " ops", " recorded, ",
                   report.dropped_total(), " dropped.\n");
  if (!totals.empty()) absl::StrAppend(&text, "\n", totals.Format(style));
  AppendCopyTotals(report, style, text);

  Table records({{"TIME"},
                 {"PID", Align::kRight, /*drop=*/5},
                 {"OP"},
                 {"DTYPE", Align::kLeft, /*drop=*/4},
                 {"DEVICE"},
                 {"ASKED FOR", Align::kLeft, /*drop=*/3},
                 {"OUTPUT", Align::kRight, /*drop=*/2},
                 {"HOST TIME", Align::kRight, /*drop=*/1},
                 {"DEVICE TIME", Align::kRight}});
  for (const auto& record : report.records()) {
    records.AddRow({FormatClock(record.submitted_at()), absl::StrCat(record.pid()), Printable(record.op()),
                    Printable(record.dtype()), Device(record.device(), style),
                    Device(record.requested_device(), style) + (record.soft_placed() ? " (soft)" : ""),
                    FormatBytes(Bytes(record.output_bytes())), HostTime(record.host_ns()),
                    DeviceTime(record)});
  }
  if (!records.empty()) absl::StrAppend(&text, "\n", records.Format(style));
  AppendCopies(report, style, text);
  return text;
}

std::string FormatRecord(const v1::PlacementRecord& record) {
  if (record.has_copy()) return FormatCopy(record.copy());
  std::string line = absl::StrCat(FormatClock(record.submitted_at()), "  ", record.pid(), "  ",
                                  Printable(record.op()), " ", Printable(record.dtype()), " in device ",
                                  Printable(record.device()), "  ", FormatBytes(Bytes(record.output_bytes())),
                                  "  host ", HostTime(record.host_ns()), "  device ", DeviceTime(record));
  if (record.soft_placed()) absl::StrAppend(&line, "  asked for ", Printable(record.requested_device()));
  return line;
}

}  // namespace lgpu::cli
