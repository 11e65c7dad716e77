#include "data/ingest/json_member.h"

#include <algorithm>
#include <fmt/format.h>
#include <optional>
#include <utility>
#include <vector>

#include "base/units.h"

namespace gptrain::inline data {
namespace {

bool is_object_or_list(std::string_view line, JsonSpan value) {
  return line[value.begin] == '{' || line[value.begin] == '[';
}

}  // namespace

// Throws HiddenDocuments if a member of the object is a list of objects with the field: {"data": [{"text": ...}]}.
void JsonMember::refuse_hidden(const JsonRecord& record, std::string_view text, JsonSpan object) const {
  for (const auto& [key, value] : record.members(object)) {
    if (text[value.begin] != '[') continue;
    const std::vector<JsonSpan> elements = record.elements(value);
    JsonSpan found{};
    if (elements.empty() || text[elements[0].begin] != '{' || !record.member(elements[0], field, found)) continue;
    const std::string_view name = text.substr(key.begin, key.end - key.begin);
    throw HiddenDocuments(
        fmt::format("no member \"{}\", but member {} is a list of {}: make JSONL of it with: jq -c '.[{}][]' IN "
                    ">OUT.jsonl",
                    field, name, format_counted(std::ssize(elements), "object"), name));
  }
}

// Throws HiddenDocuments if the field is a column as pandas writes it: {"text": {"0": "one", "1": "two"}}.
void JsonMember::refuse_columns(const JsonRecord& record, JsonSpan column) const {
  const std::vector<JsonRecord::Member> rows = record.members(column);
  size_t number = 0;
  for (const auto& [key, value] : rows) {
    if (record.string_at(key, true) != std::to_string(number++)) return;
  }
  if (rows.empty()) return;
  throw HiddenDocuments(
      fmt::format("member \"{}\" is a column of {}: write the table with pandas' to_json(..., orient=\"records\", "
                  "lines=True)",
                  field, format_counted(std::ssize(rows), "row")));
}

// Sets `text` to the member of `value`. Returns false, with the reason in `fault`, if there is none.
bool JsonMember::text_in(const JsonRecord& record, JsonSpan value, std::string& text, std::string& fault) const {
  JsonSpan found{};
  if (const std::string_view type = record.type_name(value); type != "object") {
    fault = fmt::format("{} where an object with a member \"{}\" is needed", type, field);
  } else if (!record.member(value, field, found)) {
    fault = fmt::format("no member \"{}\" (name another with --field)", field);
  } else if (const std::string_view kind = record.type_name(found); kind != "string") {
    if (kind == "object") refuse_columns(record, found);
    fault = fmt::format("member \"{}\" is of type {}, must be a string", field, kind);
  } else {
    text = record.string_at(found, replace_invalid);
    return true;
  }
  return false;
}

// `text`: the text that `record` has checked.
void JsonMember::put_documents(const JsonRecord& record, std::string_view text, const OnJsonDocument& document) const {
  const JsonSpan root = record.root();
  const std::vector<JsonSpan> values = text[root.begin] == '[' ? record.elements(root) : std::vector{root};
  bool has_texts = false;
  std::optional<HiddenDocuments> hidden;
  for (const JsonSpan value : values) {
    std::string found;
    std::string fault;
    try {
      if (text_in(record, value, found, fault))
        has_texts = true;
      else if (text[value.begin] == '{')
        refuse_hidden(record, text, value);
    } catch (const JsonFault& error) {
      fault = json_record_fault(text, error);
    } catch (const HiddenDocuments& error) {
      if (values.size() == 1) throw;
      fault = error.what();
      if (!hidden) hidden = error;
    }
    document(found, fault);
  }
  if (hidden && !has_texts) throw HiddenDocuments(*hidden);
}

void JsonMember::texts_of(std::string_view json, const OnJsonDocument& document) const {
  put_documents(JsonRecord(json), json, document);
}

void JsonMember::texts_of_line(std::string_view line, const OnJsonDocument& document) const {
  std::vector<JsonSpan> values = json_values_of_line(line);
  const auto num_values =
      std::count_if(values.begin(), values.end(), [&](JsonSpan value) { return is_object_or_list(line, value); });
  // One object with other text beside it is one fault, of the whole line.
  if (num_values < 2 && values.size() != 1) values = {{0, line.size()}};
  bool has_texts = false;
  std::optional<HiddenDocuments> hidden;
  for (const JsonSpan value : values) {
    const std::string_view json = line.substr(value.begin, value.end - value.begin);
    int64_t count = 0;
    try {
      texts_of(json, [&](std::string_view text, const std::string& fault) {
        ++count;
        has_texts = has_texts || fault.empty();
        document(text, fault);
      });
      if (count == 0) document({}, fmt::format("an empty list where an object with a member \"{}\" is needed", field));
    } catch (const JsonFault& fault) {
      document({}, json_record_fault(line, JsonFault(value.begin + fault.at, fault.what())));
    } catch (const HiddenDocuments& fault) {
      if (values.size() == 1) throw;
      if (count == 0) document({}, fault.what());
      if (!hidden) hidden = fault;
    }
  }
  if (hidden && !has_texts) throw HiddenDocuments(*hidden);
}

}  // namespace gptrain::data
