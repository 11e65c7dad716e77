#include "data/source_record.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fmt/format.h>
#include <string_view>

#include "base/enum_array.h"
#include "base/printable.h"
#include "base/units.h"

namespace gptrain::inline data {
namespace {

using nlohmann::json;

constexpr EnumArray<SourceRecord::Covered, std::string_view, 4> covered_names = {"blocks", "index and ends", "index",
                                                                                 "ends"};
constexpr EnumArray<SourceRecord::Covered, std::string_view, 4> covered_texts = {
    "of its blocks", "of its index and its first, middle and last MiB", "of its index",
    "of its first, middle and last MiB alone"};

std::string crc_digits(uint32_t checksum) { return fmt::format("{:08x}", checksum); }

[[noreturn]] void refuse_record() {
  throw json::other_error::create(508, "a source of its data is not described as one", nullptr);
}

// Throws unless the value is a text of eight hexadecimal digits.
uint32_t parse_crc(const json& value) {
  const std::string digits = value;
  uint32_t checksum = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), checksum, 16);
  if (crc_digits(checksum) != digits) refuse_record();
  return checksum;
}

std::optional<uint32_t> parse_optional_crc(const json& object, const char* key) {
  return object.contains(key) ? std::optional(parse_crc(object[key])) : std::nullopt;
}

bool agree_if_known(const std::optional<uint32_t>& before, const std::optional<uint32_t>& now) {
  return !before || !now || *before == *now;
}

}  // namespace

nlohmann::ordered_json source_record_json(const SourceRecord& record) {
  nlohmann::ordered_json object = {{"path", record.path},
                                   {"tokens", record.tokens},
                                   {"samples", record.samples},
                                   {"covered", covered_names[record.covered]},
                                   {"crc32c", crc_digits(record.checksum)}};
  if (record.documents) object["documents_crc32c"] = crc_digits(*record.documents);
  if (record.order) object["order_crc32c"] = crc_digits(*record.order);
  return object;
}

SourceRecord parse_source_record(const json& object) {
  const std::string covered = object.at("covered");
  SourceRecord record{.path = object.at("path"), .tokens = object.at("tokens"), .samples = object.at("samples")};
  const auto* const name = std::find(covered_names.begin(), covered_names.end(), covered);
  if (name == covered_names.end() || record.tokens < 1 || record.samples < 1) refuse_record();
  record.checksum = parse_crc(object.at("crc32c"));
  record.documents = parse_optional_crc(object, "documents_crc32c");
  record.order = parse_optional_crc(object, "order_crc32c");
  record.covered = static_cast<SourceRecord::Covered>(name - covered_names.begin());
  return record;
}

bool has_same_tokens(const SourceRecord& before, const SourceRecord& now) {
  if (before.tokens != now.tokens || before.samples != now.samples) return false;
  return before.covered != now.covered || (before.checksum == now.checksum && agree_if_known(before.order, now.order));
}

bool is_same_source(const SourceRecord& before, const SourceRecord& now) {
  return has_same_tokens(before, now) && agree_if_known(before.documents, now.documents);
}

std::string describe_source(const SourceRecord& record) {
  const std::string documents =
      record.documents ? fmt::format(" and {} of its index", crc_digits(*record.documents)) : "";
  const std::string order =
      record.order ? fmt::format(" and {} of the order of its files", crc_digits(*record.order)) : "";
  return fmt::format("{}: {} in {}, checksum {} {}{}{}", printable(record.path), format_counted(record.tokens, "token"),
                     format_counted(record.samples, "sample"), crc_digits(record.checksum),
                     covered_texts[record.covered], documents, order);
}

ChangedEpoch changed_epoch(int64_t given, int64_t samples_before, int64_t samples_now) {
  const auto shared = static_cast<double>(std::min(samples_before, samples_now));
  const double seen = static_cast<double>(given % samples_before) / static_cast<double>(samples_before);
  const double passed = static_cast<double>(given % samples_now) / static_cast<double>(samples_now);
  return {std::llround(shared * seen * (1 - passed)), std::llround(shared * (1 - seen) * passed)};
}

}  // namespace gptrain::data
