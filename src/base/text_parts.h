// Pieces of text that several reports use.
#pragma once

#include <cstdint>
#include <fmt/format.h>
#include <string>
#include <string_view>

#include "base/lines.h"
#include "base/units.h"

namespace gptrain::inline base {

// A line of a table: label, value, remark.
inline std::string text_row(std::string_view label, const std::string& value, const std::string& remark = "") {
  return Lines("  {:<24} {:>20}{}{}\n", label, value, remark.empty() ? "" : "   ", remark).text();
}

inline std::string bytes_text(int64_t bytes) { return format_bytes(static_cast<double>(bytes)); }
// Returns "1.2k with failures". `amount`: need of a run without failures, in any unit. `goodput`: share of time that
// failures leave.
inline std::string with_failures_text(double amount, double goodput) {
  return goodput > 0 ? fmt::format("{} with failures", format_count(amount / goodput)) : "without end where nodes fail";
}
// "1.01 days".
inline std::string days_text(double seconds) {
  constexpr double most = 1e9;
  const double days = seconds / 86400;
  return days < most ? fmt::format("{:.2f} days", days) : fmt::format("{:.2e} days", days);
}
// A share below 1 is never "100.0%": "99.96%".
inline std::string goodput_text(double goodput) {
  constexpr int most_digits = 6;
  for (int digits = 1; digits < most_digits; ++digits) {
    const std::string text = fmt::format("{:.{}f}%", 100 * goodput, digits);
    if (goodput >= 1 || !text.starts_with("100")) return text;
  }
  return ">99.9999%";
}
// "312 TFLOP/s" with `digits` digits after the point; below one TFLOP/s "84.2 GFLOP/s".
inline std::string flops_rate_text(double rate, int digits) {
  const bool small = rate < 1e12;
  return fmt::format("{:.{}f} {}FLOP/s", rate / (small ? 1e9 : 1e12), small ? 1 : digits, small ? "G" : "T");
}
inline std::string seconds_text(double seconds) { return fmt::format("{:.4g} s", seconds); }
// "412 ms", "57.53 s", "3605 s".
inline std::string step_seconds_text(double seconds) {
  return seconds < 1 ? format_duration(seconds) : seconds_text(seconds);
}

}  // namespace gptrain::base
