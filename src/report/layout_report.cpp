#include "report/layout_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>

#include "base/json.h"
#include "base/text_parts.h"
#include "base/units.h"
#include "config/faults.h"

namespace gptrain::inline report {
namespace {

using Json = nlohmann::ordered_json;

constexpr double worth_naming = 2e-3;  // least share of the step for which a reason is named

std::string short_key(const std::string& key) { return key.substr(key.find('.') + 1); }

// Returns the step's seconds of waiting by name. Transfers between stages count as bubble, since estimates do not
// separate the two.
std::vector<std::pair<std::string, double>> waits_of(const LayoutResult& result) {
  std::vector<std::pair<std::string, double>> waits{{"bubble", result.bubble_seconds}};
  for (size_t lane = 0; lane < num_waited_lanes; ++lane) {
    if (lane < num_lanes && is_between_stages(static_cast<LaneKind>(lane))) {
      waits.front().second += result.exposed_seconds[lane];
      continue;
    }
    if (lane == update_lane && result.exposed_seconds[lane] == 0) continue;
    waits.emplace_back(fmt::format("exposed {}", waited_lane_name(lane)), result.exposed_seconds[lane]);
  }
  return waits;
}

double exposed_of(const LayoutResult& result) {
  double sum = 0;
  for (const double seconds : result.exposed_seconds) sum += seconds;
  return sum;
}

bool has_price(const LayoutSearch& search) { return !search.best.empty() && search.best.front().cost > 0; }

// Whether rows may have different numbers of devices.
bool shows_devices(const LayoutSearch& search) { return search.objective == "cost"; }

std::string row_text(const LayoutSearch& search, size_t index) {
  const LayoutResult& result = search.best[index];
  const double step = result.step_seconds;
  std::string text =
      fmt::format("  {:>3} {:>11} {:>9} {:>7} {:>7} {:>8} {:>10}", index + 1,
                  fmt::format("{}{:.4g} s", result.is_exact ? "" : "~", step), format_count(result.tokens_per_second),
                  result.is_exact ? fmt::format("{:.1f}%", 100 * result.mfu) : "",
                  fmt::format("{:.1f}%", 100 * result.bubble_seconds / step),
                  fmt::format("{:.1f}%", 100 * exposed_of(result) / step), peak_text(result));
  if (shows_devices(search)) {
    text += fmt::format(" {:>7} {:>12}", result.layout.world_size(), result.is_exact ? device_hours_text(result) : "");
  }
  if (has_price(search)) text += fmt::format(" {:>9}", result.is_exact ? format_count(result.cost) : "");
  text += "   ";
  text += index == 0 ? layout_text(result.layout) : layout_difference(search.best.front().layout, result.layout);
  return text + "\n";
}

std::string nothing_fits_text(const LayoutSearch& search) {
  std::string text = fmt::format("Nothing fits: each of {} layouts needs more than the {} of a device.\n",
                                 format_grouped(search.num_layouts), bytes_text(search.device_bytes));
  text += fmt::format("The layout that comes closest lacks {}{}: {}.\nUse more devices or a smaller model.\n",
                      bytes_text(search.least_missing_bytes), search.least_missing_is_exact ? "" : " or more",
                      layout_text(search.least_missing));
  if (search.untried_host)
    text +=
        "With --set memory.offload_optimizer=host the optimizer state lies on the host, and the result is the same.\n";
  if (!search.untried.empty())
    text += fmt::format(
        "These settings save memory but change training, so the search does not try them. Pass one with --set:\n{}\n",
        join(search.untried, ", "));
  return text +
         "To compare all methods that save memory in the config's own layout, use --methods, without --objective.\n";
}

Json layout_json(const RunLayout& layout) {
  Json json{{"tensor", layout.tensor},
            {"context", layout.context},
            {"sequence", layout.sequence},
            {"pipeline", layout.pipeline},
            {"virtual_stages", layout.virtual_stages},
            {"pipeline_schedule", pipeline_order_names[layout.schedule]},
            {"balanced_layers", layout.is_balanced},
            {"rank_order", rank_order_names[layout.rank_order]},
            {"data", layout.data},
            {"zero", layout.zero},
            {"micro", layout.micro},
            {"accumulation", layout.accumulation},
            {"recompute", value_text(layout, recompute_key)},
            {"offload_activations", value_text(layout, offload_key)}};
  if (layout.expert > 1) {
    json["expert"] = layout.expert;
    json["expert_tensor"] = layout.expert_tensor;
  }
  if (layout.context > 1) json["context_method"] = context_method_names[layout.context_method];
  return json;
}

Json result_json(const LayoutResult& result) {
  Json json{{"exact", result.is_exact},
            {"gpus", result.layout.world_size()},
            {"layout", layout_json(result.layout)},
            {"step_seconds", result.step_seconds},
            {"tokens_per_second", result.tokens_per_second},
            {"bubble_seconds", result.bubble_seconds},
            {result.is_peak_exact ? "peak_bytes" : "least_peak_bytes", result.peak_bytes}};
  Json& exposed = json["exposed_seconds"] = Json::object();
  for (size_t lane = 0; lane < num_waited_lanes; ++lane) {
    if (lane != update_lane || result.exposed_seconds[lane] > 0)
      exposed[std::string(waited_lane_name(lane))] = result.exposed_seconds[lane];
  }
  if (!result.is_exact) return json;
  if (result.host_bytes > 0) json["host_bytes_of_node"] = result.host_bytes;
  json["mfu"] = result.mfu;
  json["gpu_hours"] = result.gpu_hours;
  json["goodput"] = result.goodput;
  if (result.cost > 0) json["cost"] = result.cost;
  return json;
}

}  // namespace

std::string peak_text(const LayoutResult& result) {
  return fmt::format("{}{}", result.is_peak_exact ? "" : ">", bytes_text(result.peak_bytes));
}

std::string device_hours_text(const LayoutResult& result) {
  return result.goodput > 0 ? format_count(result.gpu_hours / result.goodput) : "without end";
}

std::string layout_text(const RunLayout& layout) {
  std::vector<std::string> parts{fmt::format("tensor {}", layout.tensor)};
  if (layout.context > 1)
    parts.push_back(fmt::format("context {} {}", layout.context, context_method_names[layout.context_method]));
  if (layout.expert > 1) parts.push_back(fmt::format("expert {}", value_text(layout, "parallel.expert")));
  if (layout.sequence) parts.push_back("sequence");
  if (layout.pipeline > 1)
    parts.push_back(fmt::format("pipeline {} {}", layout.pipeline, value_text(layout, schedule_key)));
  if (layout.is_balanced) parts.push_back("layers balanced");
  if (layout.rank_order != RankOrder::tensor_data_pipeline) parts.push_back(value_text(layout, rank_order_key));
  parts.push_back(fmt::format("data {}", layout.data));
  parts.push_back(fmt::format("zero {}", layout.zero));
  parts.push_back(fmt::format("micro {}", layout.micro));
  parts.push_back(fmt::format("recompute {}", value_text(layout, recompute_key)));
  if (layout.offload.any()) parts.push_back(fmt::format("offload {}", value_text(layout, offload_key)));
  return join(parts, ", ");
}

std::string layout_difference(const RunLayout& layout, const RunLayout& other) {
  const auto keys = layout_keys(layout);
  const auto others = layout_keys(other);
  std::vector<std::string> parts;
  for (size_t i = 0; i < keys.size(); ++i)
    if (keys[i].second != others[i].second)
      parts.push_back(fmt::format("{} {}", short_key(others[i].first), others[i].second));
  if (other.world_size() != layout.world_size()) parts.push_back(fmt::format("{} devices", other.world_size()));
  return join(parts, ", ");
}

// Returns "+1.4%".
std::string change_text(double before, double after) {
  const double percent = 100 * (after - before) / before;
  return fmt::format("{}{:.1f}%", percent < 0 ? "" : "+", percent);
}

double device_seconds(const LayoutResult& result) {
  return result.step_seconds * static_cast<double>(result.layout.world_size());
}

// Returns a change of time. Below 10 ms it has a digit more, since it may be much of a short step; others look like
// steps.
std::string change_of(double seconds) {
  if (seconds < 9.5e-3) return fmt::format("{:.2g} ms", 1e3 * seconds);
  return step_seconds_text(seconds);
}

std::string loss_text(const LayoutSearch& search, const LostClass& lost) {
  const LayoutResult& best = search.best.front();
  if (!lost.fits)
    return fmt::format("{}: at least {} missing", lost.all_tried ? "does not fit" : "none of the layouts tried fits",
                       bytes_text(lost.missing_bytes));
  const double more = lost.best.step_seconds - best.step_seconds;
  const std::string step = fmt::format("{}{}", lost.best.is_exact ? "" : "~", seconds_text(lost.best.step_seconds));
  if (search.objective == "memory") {
    return fmt::format("{} ({}), {}", peak_text(lost.best),
                       change_text(static_cast<double>(best.peak_bytes), static_cast<double>(lost.best.peak_bytes)),
                       step);
  }
  if (lost.best.layout.world_size() != best.layout.world_size()) {
    return fmt::format("{} on {} devices ({} device-hours)", step, lost.best.layout.world_size(),
                       change_text(device_seconds(best), device_seconds(lost.best)));
  }
  std::string text = fmt::format("{} ({})", step, change_text(best.step_seconds, lost.best.step_seconds));
  std::vector<std::string> reasons;
  double waits = 0;
  const auto before = waits_of(best), after = waits_of(lost.best);
  const auto add = [&](const std::string& name, double seconds) {
    if (std::abs(seconds) > worth_naming * best.step_seconds)
      reasons.push_back(fmt::format("{} {}{}", name, seconds < 0 ? "-" : "+", change_of(std::abs(seconds))));
  };
  for (size_t i = 0; i < before.size(); ++i) {
    const double longer = after[i].second - before[i].second;
    waits += longer;
    add(after[i].first, longer);
  }
  add("ops", more - waits);
  if (!reasons.empty()) text += fmt::format(": {}", join(reasons, ", "));
  if (more < 0 && lost.best.layout.offload.any())
    text += fmt::format("; takes {} of a node's memory", bytes_text(lost.best.host_bytes));
  return text;
}

std::string layout_search_text(const LayoutSearch& search) {
  std::string text = fmt::format("layouts on {} x {}, the best by {}\n", search.gpus, search.machine, search.objective);
  if (!search.origin.empty()) text += fmt::format("  {}\n", search.origin);
  if (!search.held.empty()) text += Lines("  all with {}\n", join(search.held, ", ")).text();
  if (search.activation_budget > 0)
    text += fmt::format("  {} for activations with memory.recompute optimal\n", bytes_text(search.activation_budget));
  if (search.best.empty()) return text + nothing_fits_text(search);
  const bool by_memory = search.objective == "memory";
  text += fmt::format("  {} layouts: {} need more than a device's {} by a lower bound, {} {}, {} planned in full\n",
                      format_grouped(search.num_layouts), format_grouped(search.num_too_large),
                      bytes_text(search.device_bytes),
                      format_grouped(by_memory ? search.num_peaks_planned : search.num_played),
                      by_memory ? "had the memory of their ranks planned" : "simulated pass by pass", search.num_exact);
  text += fmt::format("  {}\n", search.error.text());
  if (search.num_within_error > 0)
    text += fmt::format("  {} more have estimates so close to the best that one of them may be faster in a full plan\n",
                        format_grouped(search.num_within_error));
  text += fmt::format("\n  {:>3} {:>11} {:>9} {:>7} {:>7} {:>8} {:>10}", "", "step", "tokens/s", "MFU", "bubble",
                      "exposed", "peak");
  if (shows_devices(search)) text += " devices device-hours";
  if (has_price(search)) text += fmt::format(" {:>9}", "cost");
  text += "   layout, or its difference from the first\n";
  for (size_t i = 0; i < search.best.size(); ++i) text += row_text(search, i);
  const LayoutResult& best = search.best.front();
  text += fmt::format("\nrun with the best layout\n  {:<14} {} device-hours, {} (goodput {})\n", "time",
                      format_count(best.gpu_hours), with_failures_text(best.gpu_hours, best.goodput),
                      goodput_text(best.goodput));
  if (!search.published.software.empty())
    text += fmt::format("  {:<14} {} by {} in this layout\n", "published step", seconds_text(search.published.seconds),
                        search.published.software);
  if (search.overlapped_seconds > 0)
    text += fmt::format("  {:<14} {} for the first layout, with --set parallel.overlap_tensor=true\n",
                        "overlapped step", seconds_text(search.overlapped_seconds));
  if (best.cost > 0) text += fmt::format("  {:<14} {}\n", "cost", best.goodput > 0 ? format_count(best.cost) : "?");
  if (best.layout.offload != offload::none)
    text += fmt::format("  {:<14} {} for the ranks of a node{}\n", "host memory", bytes_text(best.host_bytes),
                        search.node_host_bytes > 0 ? fmt::format(", which has {}", bytes_text(search.node_host_bytes))
                                                   : ": check that a node has it, as the profile does not say");
  text += "\nwhy others lost: the best layout with another value of one key\n";
  for (const LostClass& lost : search.lost)
    text += fmt::format("  {:<26} {:<24} {}\n", lost.key, lost.value, loss_text(search, lost));
  return text;
}

std::string layout_search_json(const LayoutSearch& search, const std::string& config) {
  Json json{{"machine", search.machine},
            {"expected_error", search.error.share},
            {"expected_error_source", search.error.source},
            {"origin", search.origin},
            {"published_software", search.published.software},
            {"published_step_seconds", search.published.seconds},
            {"overlapped_step_seconds", search.overlapped_seconds},
            {"objective", search.objective},
            {"gpus", search.gpus},
            {"held", search.held},
            {"target_memory_bytes", search.device_bytes},
            {"host_memory_bytes", search.node_host_bytes},
            {"layouts", search.num_layouts},
            {"too_large", search.num_too_large},
            {"played", search.num_played},
            {"weighed", search.num_peaks_planned},
            {"exact", search.num_exact},
            {"within_error", search.num_within_error},
            {"fits", !search.best.empty()},
            {"best", Json::array()},
            {"lost", Json::array()}};
  for (const LayoutResult& result : search.best) json["best"].push_back(result_json(result));
  for (const LostClass& lost : search.lost) {
    Json entry{{"key", lost.key}, {"value", lost.value}, {"fits", lost.fits}};
    if (lost.fits) entry["best"] = result_json(lost.best);
    if (!lost.fits) {
      entry["all_tried"] = lost.all_tried;
      entry["missing_bytes"] = lost.missing_bytes;
    }
    json["lost"].push_back(std::move(entry));
  }
  if (search.best.empty()) {
    json["missing_bytes"] = search.least_missing_bytes;
    json["least_missing"] = layout_json(search.least_missing);
  } else {
    json["config"] = parse_json_or_discard(config);
  }
  return json_text(json, 2) + "\n";
}

}  // namespace gptrain::report
