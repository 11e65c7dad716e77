#include "data/ingest/json_texts.h"

namespace gptrain::inline data {

struct JsonTexts::Impl {
  JsonMember member;
};

JsonTexts::JsonTexts(bool replace_invalid) : impl_(std::make_unique<Impl>()) {
  impl_->member.replace_invalid = replace_invalid;
}

JsonTexts::~JsonTexts() = default;

void JsonTexts::texts_of_line(std::string_view line, const std::string& field, const OnJsonDocument& document) {
  impl_->member.field = field;
  impl_->member.texts_of_line(line, document);
}

void JsonTexts::texts_of(std::string_view json, const std::string& field, const OnJsonDocument& document) {
  impl_->member.field = field;
  impl_->member.texts_of(json, document);
}

}  // namespace gptrain::data
