#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "data/ingest/json_texts.h"

namespace gptrain {

struct JsonTexts::Impl {
  std::string field;
  nlohmann::json root;

  bool parse(std::string_view json, std::string& fault) {
    try {
      root = parse_json(json);
    } catch (const nlohmann::json::exception& error) {
      fault = fmt::format("not valid JSON: {}", error.what());
      return false;
    }
    return true;
  }

  bool text_of(const nlohmann::json& element, std::string_view& text, std::string& fault) const {
    if (!element.is_object()) {
      fault = fmt::format("{} where an object with a member \"{}\" is needed", element.type_name(), field);
      return false;
    }
    const auto member = element.find(field);
    if (member == element.end()) {
      fault = fmt::format("no member \"{}\"", field);
      return false;
    }
    if (!member->is_string()) {
      fault = fmt::format("member \"{}\" is of type {}, must be a string", field, member->type_name());
      return false;
    }
    text = member->get_ref<const std::string&>();
    return true;
  }
};

JsonTexts::JsonTexts(std::string field) : impl_(std::make_unique<Impl>()) { impl_->field = std::move(field); }

JsonTexts::~JsonTexts() = default;

bool JsonTexts::text_of(std::string_view json, std::string_view& text, std::string& fault) {
  return impl_->parse(json, fault) && impl_->text_of(impl_->root, text, fault);
}

void JsonTexts::texts_of(std::string_view json,
                         const std::function<void(std::string_view, const std::string&)>& document) {
  std::string fault;
  if (!impl_->parse(json, fault)) return document({}, fault);
  const auto put = [&](const nlohmann::json& element) {
    std::string_view text;
    fault.clear();
    impl_->text_of(element, text, fault);
    document(text, fault);
  };
  if (!impl_->root.is_array()) return put(impl_->root);
  for (const nlohmann::json& element : impl_->root) put(element);
}

}  // namespace gptrain
