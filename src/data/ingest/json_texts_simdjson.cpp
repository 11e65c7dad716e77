#include <simdjson.h>
#include <vector>

#include "base/json_scanner.h"
#include "data/ingest/json_texts.h"

namespace gptrain::inline data {

struct JsonTexts::Impl {
  JsonMember member;
  simdjson::dom::parser parser;
  std::vector<std::string_view> texts;  // memory for the texts of a list, used again

  bool parse(std::string_view json, simdjson::dom::element& root) {
    // simdjson counts the document itself as a level, hence + 1.
    simdjson::error_code error = simdjson::SUCCESS;
    if (parser.capacity() < json.size() || parser.max_depth() != max_python_json_depth + 1)
      error = parser.allocate(json.size(), max_python_json_depth + 1);
    return error == simdjson::SUCCESS && parser.parse(json.data(), json.size(), false).get(root) == simdjson::SUCCESS;
  }

  // Returns false if `element` is no object with a text.
  bool text_in(simdjson::dom::element element, std::string_view& found) const {
    simdjson::dom::object object;
    if (element.get(object) != simdjson::SUCCESS) return false;
    bool has_member = false;
    simdjson::dom::element value;
    for (const auto& [key, candidate] : object) {
      if (key != member.field) continue;
      value = candidate;
      has_member = true;
    }
    return has_member && value.get(found) == simdjson::SUCCESS;
  }
};

JsonTexts::JsonTexts(bool replace_invalid) : impl_(std::make_unique<Impl>()) {
  impl_->member.replace_invalid = replace_invalid;
}

JsonTexts::~JsonTexts() = default;

void JsonTexts::texts_of_line(std::string_view line, const std::string& field, const OnJsonDocument& document) {
  impl_->member.field = field;
  simdjson::dom::element root;
  std::string_view text;
  if (impl_->parse(line, root) && impl_->text_in(root, text)) return document(text, {});
  impl_->member.texts_of_line(line, document);
}

void JsonTexts::texts_of(std::string_view json, const std::string& field, const OnJsonDocument& document) {
  impl_->member.field = field;
  simdjson::dom::element root;
  simdjson::dom::array list;
  const bool is_list = impl_->parse(json, root) && root.get(list) == simdjson::SUCCESS;
  std::vector<std::string_view>& texts = impl_->texts;
  texts.clear();
  bool has_all = is_list;
  if (is_list) {
    for (const simdjson::dom::element element : list) {
      texts.emplace_back();
      has_all = has_all && impl_->text_in(element, texts.back());
    }
  }
  if (!has_all) return impl_->member.texts_of(json, document);
  for (const std::string_view text : texts) document(text, {});
}

}  // namespace gptrain::data
