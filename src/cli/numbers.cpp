#include "cli/numbers.h"

#include <charconv>
#include <cmath>
#include <fmt/format.h>
#include <optional>
#include <string>

namespace gptrain {
namespace {

// The whole text as a T, or nothing.
template <typename T>
std::optional<T> parse(const std::string& text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

CLI::Validator whole_number_from(int64_t least) {
  return CLI::Validator(
      [least](std::string& text) {
        const auto value = parse<int64_t>(text);
        return value && *value >= least ? std::string()
                                        : fmt::format("{} is not a whole number of at least {}", text, least);
      },
      "");
}

CLI::Validator number_from(double least) {
  return CLI::Validator(
      [least](std::string& text) {
        const auto value = parse<double>(text);
        return value && std::isfinite(*value) && *value >= least
                   ? std::string()
                   : fmt::format("{} is not a number of at least {}", text, least);
      },
      "");
}

CLI::Validator positive_number() {
  return CLI::Validator(
      [](std::string& text) {
        const auto value = parse<double>(text);
        return value && std::isfinite(*value) && *value > 0 ? std::string()
                                                            : fmt::format("{} is not a number above 0", text);
      },
      "");
}

}  // namespace gptrain
