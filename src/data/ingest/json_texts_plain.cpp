#include "data/ingest/json_texts.h"

namespace gptrain::inline data {

struct JsonTexts::Impl {
  JsonMember member;
  std::string text;
};

JsonTexts::JsonTexts(bool replace_invalid) : impl_(std::make_unique<Impl>()) {
  impl_->member.replace_invalid = replace_invalid;
}

JsonTexts::~JsonTexts() = default;

bool JsonTexts::text_of(std::string_view json, const std::string& field, std::string_view& text, std::string& fault) {
  impl_->member.field = field;
  if (!impl_->member.text_of(json, impl_->text, fault)) return false;
  text = impl_->text;
  return true;
}

void JsonTexts::texts_of(std::string_view json, const std::string& field, const OnJsonDocument& document) {
  impl_->member.field = field;
  impl_->member.texts_of(json, document);
}

}  // namespace gptrain::data
