#include "cli/option_checks.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <optional>
#include <string>
#include <system_error>

#include "base/control_group.h"
#include "base/error.h"
#include "base/units.h"

namespace gptrain::inline cli {
namespace {

// Parses the whole text as a T; nullopt if that fails.
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
        constexpr double least = 1e-12, most = 1e18;
        const auto value = parse<double>(text);
        return value && *value >= least && *value <= most
                   ? std::string()
                   : fmt::format("{} is not a number from {:g} to {:g}", text, least, most);
      },
      "");
}

CLI::Validator some_text() {
  return CLI::Validator([](std::string& text) { return text.empty() ? std::string("is empty") : std::string(); }, "");
}

CLI::Validator number_of_threads() {
  return CLI::Validator(
      [](std::string& text) {
        constexpr int64_t usual_most = 64;
        constexpr int64_t most_per_core = 4;
        const int cores = usable_cores();
        const int64_t most = std::max(usual_most, most_per_core * cores);
        const auto value = parse<int64_t>(text);
        if (value && *value >= 1 && *value <= most) return std::string();
        return fmt::format("{} is not a whole number from 1 to {}, the most for the {} that this process may use", text,
                           most, format_counted(cores, "core"));
      },
      "");
}

void refuse_same_file(const OutputPath& first, const OutputPath& second) {
  namespace fs = std::filesystem;
  if (first.path.empty() || second.path.empty()) return;
  std::error_code unknown;  // ignored: a path that cannot be resolved fails when its file is opened
  const fs::path path = fs::weakly_canonical(fs::absolute(first.path), unknown);
  if (!unknown && path == fs::weakly_canonical(fs::absolute(second.path), unknown))
    throw Error(ExitCode::usage, "{} and {} name the same file: {}", first.option, second.option, first.path);
}

}  // namespace gptrain::cli
