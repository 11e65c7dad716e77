#include "base/json.h"

#include <simdjson.h>

#include "data/ingest/json_texts.h"

namespace gptrain::inline data {
namespace {

const char* type_name(simdjson::dom::element element) {
  using simdjson::dom::element_type;
  switch (element.type()) {
    case element_type::ARRAY:
      return "array";
    case element_type::OBJECT:
      return "object";
    case element_type::STRING:
      return "string";
    case element_type::BOOL:
      return "boolean";
    case element_type::NULL_VALUE:
      return "null";
    default:
      return "number";
  }
}

}  // namespace

struct JsonTexts::Impl {
  JsonMember member;
  simdjson::dom::parser parser;
  std::string text;  // result for JSON that simdjson refuses

  bool parse(std::string_view json, simdjson::dom::element& root) {
    // simdjson counts the document itself as a level, hence + 1.
    simdjson::error_code error = simdjson::SUCCESS;
    if (parser.capacity() < json.size() || parser.max_depth() != max_json_depth + 1)
      error = parser.allocate(json.size(), max_json_depth + 1);
    return error == simdjson::SUCCESS && parser.parse(json.data(), json.size(), false).get(root) == simdjson::SUCCESS;
  }

  bool text_in(simdjson::dom::element element, std::string_view& found, std::string& fault) const {
    simdjson::dom::object object;
    if (element.get(object) != simdjson::SUCCESS) {
      fault = member.no_object(type_name(element));
      return false;
    }
    bool has_member = false;
    simdjson::dom::element value;
    for (const auto& [key, candidate] : object) {
      if (key != member.field) continue;
      value = candidate;
      has_member = true;
    }
    if (!has_member) {
      fault = member.no_member();
    } else if (value.get(found) != simdjson::SUCCESS) {
      fault = member.no_string(type_name(value));
    } else {
      return true;
    }
    return false;
  }
};

JsonTexts::JsonTexts(bool replace_invalid) : impl_(std::make_unique<Impl>()) {
  impl_->member.replace_invalid = replace_invalid;
}

JsonTexts::~JsonTexts() = default;

bool JsonTexts::text_of(std::string_view json, const std::string& field, std::string_view& text, std::string& fault) {
  impl_->member.field = field;
  simdjson::dom::element root;
  if (impl_->parse(json, root)) return impl_->text_in(root, text, fault);
  if (!impl_->member.text_of(json, impl_->text, fault)) return false;
  text = impl_->text;
  return true;
}

void JsonTexts::texts_of(std::string_view json, const std::string& field, const OnJsonDocument& document) {
  impl_->member.field = field;
  simdjson::dom::element root;
  if (!impl_->parse(json, root)) return impl_->member.texts_of(json, document);
  const auto put = [&](simdjson::dom::element element) {
    std::string_view text;
    std::string fault;
    impl_->text_in(element, text, fault);
    document(text, fault);
  };
  simdjson::dom::array list;
  if (root.get(list) != simdjson::SUCCESS) return put(root);
  for (const simdjson::dom::element element : list) put(element);
}

}  // namespace gptrain::data
