#include "config/source_list.h"

#include <cstddef>
#include <sstream>
#include <string>
#include <vector>

#include "base/json.h"

namespace gptrain::inline config {
namespace {

// Appends the words of a text, or a number. Returns false for other values.
bool append_words(const Json& value, std::vector<std::string>& words) {
  if (value.is_number()) words.push_back(json_text(value));
  if (value.is_string()) {
    std::istringstream text(value.get<std::string>());
    for (std::string word; text >> word;) words.push_back(word);
  }
  return value.is_number() || value.is_string();
}

}  // namespace

Json sources_of_list(const Json& list) {
  std::vector<std::string> words;
  for (const Json& value : list.is_array() ? list : Json::array({list})) {
    if (!append_words(value, words)) return Json::array();
  }
  Json sources = Json::array();
  const bool has_weights = !words.empty() && parse_json_or_discard(words[0]).is_number();
  for (size_t i = 0; i < words.size(); ++i) {
    Json source = Json::object();
    if (has_weights) {
      const auto weight = parse_json_or_discard(words[i]);
      if (!weight.is_number() || i + 1 == words.size()) return Json::array();
      source = {{"path", words[++i]}, {"weight", weight}};
    } else {
      source = {{"path", words[i]}};
    }
    sources.push_back(std::move(source));
  }
  return sources;
}

}  // namespace gptrain::config
