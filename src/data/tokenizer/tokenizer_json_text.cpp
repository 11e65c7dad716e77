#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/json.h"
#include "data/tokenizer/tokenizer_json.h"
#include "data/tokenizer/unicode.h"

namespace gptrain::inline data {
namespace {

using nlohmann::json;

nlohmann::ordered_json split_of(std::string_view regex, bool only_matches) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", regex}}},
          {"behavior", only_matches ? "Removed" : "Isolated"},
          {"invert", only_matches}};
}

nlohmann::ordered_json pre_tokenizer_of(const TokenizerParts& parts) {
  auto list = nlohmann::ordered_json::array();
  bool own_regex = false;
  for (const Stage& stage : parts.stages) {
    if (const auto* kind = std::get_if<PatternKind>(&stage)) {
      // ByteLevel itself contains GPT-2's pattern.
      own_regex = *kind == PatternKind::gpt2 && &stage == &parts.stages.back();
      if (!own_regex) {
        list.push_back(split_of(regex_of_pattern(*kind), false));
      }
    } else if (const auto* regex = std::get_if<RegexStage>(&stage)) {
      list.push_back(split_of(regex->regex, regex->behavior == SplitBehavior::only_matches));
    } else {
      list.push_back({{"type", "Digits"}, {"individual_digits", true}});
    }
  }
  list.push_back({{"type", "ByteLevel"},
                  {"add_prefix_space", parts.add_prefix_space},
                  {"trim_offsets", true},
                  {"use_regex", own_regex}});
  if (list.size() == 1) return list[0];
  return {{"type", "Sequence"}, {"pretokenizers", list}};
}

// Returns a JSON string. Most tokens need no escapes.
std::string json_string(const std::string& text) {
  const bool is_plain = std::none_of(text.begin(), text.end(), [](char c) {
    return static_cast<uint8_t>(c) < 0x20 || c == '"' || c == '\\' || c == '\x7F' || c == '\xC2';
  });
  return is_plain && find_invalid_utf8(text) == text.size() ? '"' + text + '"' : json_text(json(text));
}

// Returns the members of model.vocab, as json_text() writes them with an indentation of 2, many times faster.
// `quoted_texts`: by id; empty: no token.
std::string vocabulary_text(const std::vector<std::string>& quoted_texts) {
  std::string members;
  for (size_t id = 0; id < quoted_texts.size(); ++id) {
    if (quoted_texts[id].empty()) continue;
    members += members.empty() ? "\n      " : ",\n      ";
    members += quoted_texts[id];
    members += ": ";
    members += std::to_string(id);
  }
  return members;
}

// Returns the elements of model.merges in the same way.
std::string merges_text(const std::vector<std::string>& quoted_texts, const std::vector<Merge>& merges) {
  std::string elements;
  for (const Merge& merge : merges) {
    elements += elements.empty() ? "\n      [\n        " : ",\n      [\n        ";
    elements += quoted_texts[merge.left];
    elements += ",\n        ";
    elements += quoted_texts[merge.right];
    elements += "\n      ]";
  }
  return elements;
}

// Inserts elements into the last empty list or object that follows `key` in a text of JSON.
void insert_list(std::string& text, std::string_view key, const std::string& elements) {
  if (elements.empty()) return;
  text.insert(text.rfind(key) + key.size(), elements + "\n    ");
}

}  // namespace

std::string tokenizer_json(const TokenizerParts& parts) {
  if (!parts.text.empty()) return parts.text;
  auto texts = std::vector<std::string>(parts.tokens.size());
  for (size_t id = 0; id < parts.tokens.size(); ++id) {
    if (!parts.tokens[id].empty()) texts[id] = to_byte_level(parts.tokens[id]);
  }
  auto added = nlohmann::ordered_json::array();
  std::vector<AddedToken> in_order = parts.added;
  std::sort(in_order.begin(), in_order.end(), [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  for (const AddedToken& token : in_order) {
    added.push_back({{"id", token.id},
                     {"content", token.content},
                     {"single_word", false},
                     {"lstrip", token.takes_left_space},
                     {"rstrip", token.takes_right_space},
                     {"normalized", token.normalized},
                     {"special", token.special}});
    const auto index = static_cast<size_t>(token.id);
    if (index < texts.size() && texts[index].empty()) texts[index] = token.content;
  }
  for (std::string& text : texts) {
    if (!text.empty()) text = json_string(text);
  }
  const nlohmann::ordered_json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}};
  nlohmann::ordered_json root = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", std::move(added)},
      {"normalizer", parts.nfc ? nlohmann::ordered_json{{"type", "NFC"}} : nlohmann::ordered_json()},
      {"pre_tokenizer", pre_tokenizer_of(parts)},
      {"post_processor", nullptr},
      {"decoder", byte_level},
      {"model",
       {{"type", "BPE"},
        {"dropout", nullptr},
        {"unk_token", nullptr},
        {"continuing_subword_prefix", nullptr},
        {"end_of_word_suffix", nullptr},
        {"fuse_unk", false},
        {"byte_fallback", false},
        {"ignore_merges", parts.ignore_merges},
        {"vocab", nlohmann::ordered_json::object()},
        {"merges", nlohmann::ordered_json::array()}}}};
  std::string text = json_text(root, 2) + "\n";
  insert_list(text, "\"merges\": [", merges_text(texts, parts.merges));
  insert_list(text, "\"vocab\": {", vocabulary_text(texts));
  return text;
}

std::string with_added_ids(const std::string& text) {
  json root = parse_json(text);
  const auto model = root.find("model");
  const auto added = root.find("added_tokens");
  if (model == root.end() || added == root.end() || !added->is_array() || !(*model)["vocab"].is_object()) return text;
  json& vocabulary = (*model)["vocab"];
  json with_added = vocabulary;
  auto next_id = static_cast<int64_t>(vocabulary.size());
  bool are_found = true;
  for (const json& token : *added) {
    const int64_t id = token["id"].get<int64_t>();
    const auto [known, is_new] = with_added.emplace(token["content"].get<std::string>(), id);
    if (is_new && id != next_id) are_found = false;
    next_id = std::max(next_id, id + 1);
  }
  if (are_found) return text;
  vocabulary = std::move(with_added);
  return json_text(root, 2) + "\n";
}

}  // namespace gptrain::data
