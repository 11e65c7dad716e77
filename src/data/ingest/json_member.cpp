#include "data/ingest/json_member.h"

#include <fmt/format.h>

#include "data/ingest/json_record.h"

namespace gptrain::inline data {
namespace {

// Sets `text` to the member of `value`. Returns false, with the reason in `fault`, if there is none.
bool text_in(const JsonRecord& record, JsonSpan value, const JsonMember& member, std::string& text,
             std::string& fault) {
  JsonSpan found{};
  if (const std::string_view type = record.type_name(value); type != "object") {
    fault = member.no_object(type.data());
  } else if (!record.member(value, member.field, found)) {
    fault = member.no_member();
  } else if (const std::string_view kind = record.type_name(found); kind != "string") {
    fault = member.no_string(kind.data());
  } else {
    text = record.string_at(found, member.replace_invalid);
    return true;
  }
  return false;
}

}  // namespace

bool JsonMember::text_of(std::string_view json, std::string& text, std::string& fault) const {
  try {
    const JsonRecord record(json);
    return text_in(record, record.root(), *this, text, fault);
  } catch (const JsonFault& error) {
    fault = describe_json_fault(json, error);
    return false;
  }
}

void JsonMember::texts_of(std::string_view json, const OnJsonDocument& document) const {
  const JsonRecord record(json);
  for (const JsonSpan element : record.elements()) {
    std::string text;
    std::string fault;
    try {
      text_in(record, element, *this, text, fault);
    } catch (const JsonFault& error) {
      fault = describe_json_fault(json, error);
    }
    document(text, fault);
  }
}

std::string JsonMember::no_object(const char* type) const {
  return fmt::format("{} where an object with a member \"{}\" is needed", type, field);
}

std::string JsonMember::no_member() const { return fmt::format("no member \"{}\" (--field names it)", field); }

std::string JsonMember::no_string(const char* type) const {
  return fmt::format("member \"{}\" is of type {}, must be a string", field, type);
}

}  // namespace gptrain::data
