#include "base/units.h"

#include <cmath>
#include <fmt/format.h>
#include <string_view>

namespace gptrain::inline base {
namespace {

// Three significant digits below 1000, so that columns keep their width.
std::string three_digits(double value) {
  if (value < 9.995) return fmt::format("{:.2f}", value);
  if (value < 99.95) return fmt::format("{:.1f}", value);
  return fmt::format("{:.0f}", value);
}

}  // namespace

std::string format_count(double count) {
  static constexpr const char* suffixes[] = {"", "k", "M", "G", "T", "P", "E", "Z"};
  if (!(count < 999.5e21)) return fmt::format("{:.2e}", count);
  if (count < 1000 && count == std::floor(count)) return fmt::format("{:.0f}", count);
  int power = 0;
  while (count >= 999.5 && power < 7) {
    count /= 1000;
    ++power;
  }
  return three_digits(count) + suffixes[power];
}

std::string format_bytes(double bytes) {
  static constexpr const char* suffixes[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  int power = 0;
  while (bytes >= 1023.5 && power < 6) {
    bytes /= 1024;
    ++power;
  }
  if (power == 0) return fmt::format("{:.0f} B", bytes);
  return fmt::format("{} {}", bytes < 99.95 ? fmt::format("{:.1f}", bytes) : fmt::format("{:.0f}", bytes),
                     suffixes[power]);
}

std::string format_duration(double seconds) {
  if (seconds < 0.9995) return fmt::format("{:.0f} ms", seconds * 1000);
  if (seconds < 59.95) return fmt::format("{:.1f} s", seconds);
  constexpr double most_days = 1e6;
  if (!(seconds < 86400 * most_days)) return fmt::format("{:.2e} days", seconds / 86400);
  const auto minutes = static_cast<int64_t>(std::llround(seconds / 60));
  if (minutes < 60) return fmt::format("{}m", minutes);
  if (minutes < 24 * 60) return fmt::format("{}h {}m", minutes / 60, minutes % 60);
  const int64_t hours = minutes / 60;
  return fmt::format("{}d {}h", hours / 24, hours % 24);
}

std::string format_counted(int64_t number, const std::string& noun) {
  const std::string_view plural = noun.ends_with("ch") ? "es" : "s";
  return fmt::format("{} {}{}", format_grouped(number), noun, number == 1 ? "" : plural);
}

std::string format_grouped(int64_t number) {
  std::string digits = fmt::format("{}", number);
  const size_t first = number < 0 ? 1 : 0;
  for (size_t i = digits.size(); i > first + 3;) {
    i -= 3;
    digits.insert(i, 1, ',');
  }
  return digits;
}

}  // namespace gptrain::base
