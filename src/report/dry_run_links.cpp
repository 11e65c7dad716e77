#include "report/dry_run_links.h"

#include <array>
#include <cstdint>
#include <fmt/format.h>
#include <string_view>
#include <utility>

#include "base/text_parts.h"
#include "base/units.h"

namespace gptrain::inline report {
namespace {

using Json = nlohmann::ordered_json;

struct LinkRow {
  std::string_view label, key;
  int64_t bytes;
};

std::array<LinkRow, 5> link_rows(const LinkBytes& links) {
  return {{{"read from disk", "disk_read", links.read},
           {"written to disk", "disk_written", links.written},
           {"to the host", "to_host", links.to_host},
           {"to the device", "to_device", links.to_device},
           {"by updates in memory", "updates", links.moved_by_updates}}};
}

// Returns "1.6 GB/s".
std::string rate_text(double bytes_per_second) { return fmt::format("{:.3g} GB/s", bytes_per_second / 1e9); }

}  // namespace

std::string links_section(const DryRun& input) {
  if (input.link_needs.empty()) return "";
  std::string text = "\nbytes that a rank moves in a step\n";
  for (const LinkRow& row : link_rows(input.links))
    if (row.bytes > 0) text += text_row(row.label, format_grouped(row.bytes), bytes_text(row.bytes));
  text += fmt::format("  Bandwidth for {:.0f}% efficiency, by the formula of ZeRO-Infinity, at {:.3g} TFLOP/s:\n",
                      100 * LinkNeed::aim, input.sustained_flops / 1e12);
  for (const LinkNeed& need : input.link_needs)
    text += text_row(need.values, rate_text(need.needed),
                     fmt::format("{:.4g} FLOPs a byte; {} has {}: {:.1f}%", need.flops_per_byte, need.place,
                                 rate_text(need.there), 100 * need.efficiency));
  return text;
}

Json links_json(const DryRun& input) {
  Json json = Json::object();
  for (const LinkRow& row : link_rows(input.links)) json[fmt::format("{}_bytes_per_step", row.key)] = row.bytes;
  for (const LinkNeed& need : input.link_needs)
    json["bandwidths"].push_back({{"values", need.values},
                                  {"place", need.place},
                                  {"flops_per_byte", need.flops_per_byte},
                                  {"needed_bytes_per_second", need.needed},
                                  {"bytes_per_second", need.there},
                                  {"efficiency", need.efficiency}});
  json["sustained_flops"] = input.sustained_flops;
  return json;
}

}  // namespace gptrain::report
