#include "comm/frames.h"

namespace gptrain::inline comm {

std::string text_member(const nlohmann::json& json, const char* name) {
  if (!json.is_object()) return "";
  const auto member = json.find(name);
  return member != json.end() && member->is_string() ? member->get<std::string>() : "";
}

std::optional<int64_t> number_member(const nlohmann::json& json, const char* name, int64_t least, int64_t most) {
  if (!json.is_object()) return std::nullopt;
  const auto member = json.find(name);
  if (member == json.end() || !member->is_number_integer()) return std::nullopt;
  const bool fits = !member->is_number_unsigned() || member->get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX);
  const int64_t value = fits ? member->get<int64_t>() : -1;
  return fits && value >= least && value <= most ? std::optional(value) : std::nullopt;
}

}  // namespace gptrain::comm
