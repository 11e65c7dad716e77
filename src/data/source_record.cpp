#include "data/source_record.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <fmt/format.h>
#include <string_view>

#include "base/printable.h"
#include "base/units.h"

namespace gptrain::inline data {
namespace {

using nlohmann::json;

constexpr std::array<std::string_view, 4> covered_names = {"blocks", "index and ends", "index", "ends"};
constexpr std::array<std::string_view, 4> covered_texts = {"of its blocks",
                                                           "of its index and its first, middle and last MiB",
                                                           "of its index", "of its first, middle and last MiB alone"};

}  // namespace

nlohmann::ordered_json source_record_json(const SourceRecord& record) {
  return {{"path", record.path},
          {"tokens", record.tokens},
          {"samples", record.samples},
          {"covered", covered_names[static_cast<size_t>(record.covered)]},
          {"crc32c", fmt::format("{:08x}", record.checksum)}};
}

SourceRecord parse_source_record(const json& object) {
  const std::string covered = object.at("covered"), digits = object.at("crc32c");
  SourceRecord record{.path = object.at("path"), .tokens = object.at("tokens"), .samples = object.at("samples")};
  const auto* const name = std::find(covered_names.begin(), covered_names.end(), covered);
  std::from_chars(digits.data(), digits.data() + digits.size(), record.checksum, 16);
  if (name == covered_names.end() || record.tokens < 1 || record.samples < 1 ||
      fmt::format("{:08x}", record.checksum) != digits)
    throw json::other_error::create(508, "a source of its data is not described as one", nullptr);
  record.covered = static_cast<SourceRecord::Covered>(name - covered_names.begin());
  return record;
}

bool is_same_source(const SourceRecord& before, const SourceRecord& now) {
  if (before.tokens != now.tokens || before.samples != now.samples) return false;
  return before.covered != now.covered || before.checksum == now.checksum;
}

std::string describe_source(const SourceRecord& record) {
  return fmt::format("{}: {} in {}, checksum {:08x} {}", printable(record.path), format_counted(record.tokens, "token"),
                     format_counted(record.samples, "sample"), record.checksum,
                     covered_texts[static_cast<size_t>(record.covered)]);
}

ChangedEpoch changed_epoch(int64_t given, int64_t samples_before, int64_t samples_now) {
  const auto shared = static_cast<double>(std::min(samples_before, samples_now));
  const double seen = static_cast<double>(given % samples_before) / static_cast<double>(samples_before);
  const double passed = static_cast<double>(given % samples_now) / static_cast<double>(samples_now);
  return {std::llround(shared * seen * (1 - passed)), std::llround(shared * (1 - seen) * passed)};
}

}  // namespace gptrain::data
