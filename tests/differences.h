// Finds the first difference of two large values. Catch prints both sides of a failed comparison, which takes minutes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <fmt/format.h>
#include <map>
#include <string>
#include <vector>

namespace gptrain::testing {

// Returns "" if they are equal, else e.g. "element 7 of 12 and 12: 0.5 and 0.25".
template <typename T>
std::string first_difference(const std::vector<T>& a, const std::vector<T>& b) {
  const auto [in_a, in_b] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  if (in_a == a.end() && in_b == b.end()) return "";
  const auto text = [](const auto& at, const auto& end) {
    return at == end ? std::string("none") : fmt::format("{:.9g}", static_cast<double>(*at));
  };
  return fmt::format("element {} of {} and {}: {} and {}", in_a - a.begin(), a.size(), b.size(), text(in_a, a.end()),
                     text(in_b, b.end()));
}

// Does the same by name: "weight/head.weight: element ...".
template <typename T>
std::string first_difference(const std::map<std::string, T>& a, const std::map<std::string, T>& b) {
  for (const auto& [name, values] : a) {
    const auto other = b.find(name);
    if (other == b.end()) return name + ": only in the first";
    if (const std::string text = first_difference(values, other->second); !text.empty()) return name + ": " + text;
  }
  for (const auto& [name, values] : b)
    if (!a.contains(name)) return name + ": only in the second";
  return "";
}

}  // namespace gptrain::testing
