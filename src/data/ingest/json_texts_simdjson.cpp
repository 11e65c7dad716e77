#include <simdjson.h>

#include "base/error.h"
#include "base/json.h"
#include "data/ingest/json_texts.h"

namespace gptrain {
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
  std::string field;
  simdjson::dom::parser parser;

  bool parse(std::string_view json, simdjson::dom::element& root, std::string& fault) {
    // simdjson counts the document itself, too.
    simdjson::error_code error = simdjson::SUCCESS;
    if (parser.capacity() < json.size() || parser.max_depth() != max_json_depth + 1)
      error = parser.allocate(json.size(), max_json_depth + 1);
    if (error == simdjson::SUCCESS) error = parser.parse(json.data(), json.size(), false).get(root);
    if (error == simdjson::DEPTH_ERROR) fault = fmt::format("nested deeper than {} levels", max_json_depth);
    else if (error != simdjson::SUCCESS) fault = fmt::format("not valid JSON: {}", simdjson::error_message(error));
    return error == simdjson::SUCCESS;
  }

  bool text_of(simdjson::dom::element element, std::string_view& text, std::string& fault) const {
    simdjson::dom::object object;
    if (element.get(object) != simdjson::SUCCESS) {
      fault = fmt::format("{} where an object with a member \"{}\" is needed", type_name(element), field);
      return false;
    }
    simdjson::dom::element member;
    if (object.at_key(field).get(member) != simdjson::SUCCESS) {
      fault = fmt::format("no member \"{}\"", field);
      return false;
    }
    if (member.get(text) != simdjson::SUCCESS) {
      fault = fmt::format("member \"{}\" is of type {}, must be a string", field, type_name(member));
      return false;
    }
    return true;
  }
};

JsonTexts::JsonTexts(std::string field) : impl_(std::make_unique<Impl>()) { impl_->field = std::move(field); }

JsonTexts::~JsonTexts() = default;

bool JsonTexts::text_of(std::string_view json, std::string_view& text, std::string& fault) {
  simdjson::dom::element root;
  return impl_->parse(json, root, fault) && impl_->text_of(root, text, fault);
}

void JsonTexts::texts_of(std::string_view json,
                         const std::function<void(std::string_view, const std::string&)>& document) {
  simdjson::dom::element root;
  std::string fault;
  if (!impl_->parse(json, root, fault)) return document({}, fault);
  const auto put = [&](simdjson::dom::element element) {
    std::string_view text;
    fault.clear();
    impl_->text_of(element, text, fault);
    document(text, fault);
  };
  simdjson::dom::array list;
  if (root.get(list) != simdjson::SUCCESS) return put(root);
  for (const simdjson::dom::element element : list) put(element);
}

}  // namespace gptrain
