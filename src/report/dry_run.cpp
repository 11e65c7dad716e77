#include "report/dry_run.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <sstream>
#include <utility>

#include "base/enum_array.h"
#include "base/json.h"
#include "base/text_parts.h"
#include "base/units.h"
#include "config/faults.h"
#include "optim/types.h"
#include "planner/run_speed.h"
#include "report/dry_run_links.h"
#include "report/dry_run_ranks.h"
#include "report/formulas.h"
#include "report/model_text.h"
#include "report/recompute_page.h"
#include "step/flops_json.h"

namespace gptrain::inline report {
namespace {

using Json = nlohmann::ordered_json;

double to_double(Flops flops) { return static_cast<double>(flops); }

EnumArray<ModelPart, int64_t, num_model_parts> parameters_by_part(const ModelSpec& spec) {
  EnumArray<ModelPart, int64_t, num_model_parts> parts{};
  for (const TensorSpec& tensor : spec.tensors) parts[tensor.part] += tensor.count();
  return parts;
}

struct Totals {
  OpTotals step;
  Flops reference;
  int64_t tokens_per_step;
  Flops tokens;     // tokens of the run
  Flops run_flops;  // model FLOPs of the run

  explicit Totals(const DryRun& input)
      : reference(reference_flops_formula(input.config.model, input.config.batch.global)),
        tokens_per_step(input.config.batch.global * input.config.model.sequence_length),
        tokens(static_cast<Flops>(tokens_per_step) * static_cast<Flops>(input.config.run.steps)) {
    for (const OpTotals& op : input.ops) step += op;
    run_flops = step.model_flops * static_cast<Flops>(input.config.run.steps);
  }
};

// Returns how many days a machine of 1e15 FLOP/s takes.
double petaflop_days(Flops flops) { return to_double(flops) / 1e15 / 86400; }

// Returns "3,640 PF-days" or "0.132 PF-days".
std::string petaflop_days_text(double days) {
  return (days < 100 ? fmt::format("{:.3g}", days) : format_grouped(std::llround(days))) + " PF-days";
}

// Returns the FLOP/s of a step whose products all run at the full rate of their dtype; 0 if it is not known.
double matrix_rate(const DryRun& input) {
  const double rate = input.config.precision.compute == DType::f32 ? input.target.f32_flops : input.target.bf16_flops;
  Flops all = 0;
  for (const OpTotals& op : input.ops) all += op.model_flops;
  const Flops in_fp8 = input.ops[op_index<ScaledProduct>].model_flops;
  if (in_fp8 == 0 || rate == 0 || input.target.fp8_flops == 0) return in_fp8 == 0 ? rate : 0;
  return to_double(all) / (to_double(in_fp8) / input.target.fp8_flops + to_double(all - in_fp8) / rate);
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::string_view granularity_text(StateGranularity granularity) {
  switch (granularity) {
    case StateGranularity::element:
      break;
    case StateGranularity::element_outside_matrices:
      return " outside blocks' matrices";
    case StateGranularity::element_of_vectors:
      return " of vectors";
    case StateGranularity::row:
      return " for each row of a matrix";
    case StateGranularity::column:
      return " for each column";
    case StateGranularity::element_outside_blocks:
      return " of small tensors";
    case StateGranularity::element_in_blocks:
      return " of the others";
    case StateGranularity::block:
      return " for each 256 of them";
  }
  return "";
}

// Returns the columns of the optimizer's state: "; NAME f32, NAME f32".
std::string column_names(const StepConfig& config) {
  std::string names;
  for (const StateColumn& column : state_columns(config)) {
    names += fmt::format("{} {} {}{}", names.empty() ? ";" : ",", column.name, dtype_name(column.dtype),
                         granularity_text(column.granularity));
  }
  return names;
}

// Returns "9 of 48 blocks are offloaded".
std::string offload_text(const DryRun& input) {
  std::vector<std::string> counts;
  for (const StageForecast& stage : input.stages)
    counts.push_back(fmt::format("{} of {}", stage.offloaded, stage.layers));
  const bool alike =
      std::all_of(counts.begin(), counts.end(), [&](const std::string& text) { return text == counts.front(); });
  if (alike) counts.resize(1);
  const std::string_view of_which = input.stages.size() == 1 ? "" : alike ? " of each stage" : " of the stages";
  return fmt::format("{} blocks{} are offloaded", join(counts, ", "), of_which);
}

// Returns "  The 8 ranks of a node take 44.1 GiB of its host's memory.\n"; empty if they take none.
std::string on_host_text(const DryRun& input) {
  const int64_t total = input.on_host.total();
  if (total == 0) return "";
  const bool one = input.on_host.ranks == 1;
  const int64_t there = input.target.host_bytes;
  return fmt::format("  The {} of a node take{} {} of its host's memory{}.\n",
                     format_counted(input.on_host.ranks, "rank"), one ? "s" : "", bytes_text(total),
                     there > 0 ? fmt::format(", which is {}", bytes_text(there)) : "");
}

// Calls `show` with the words of each place beside the device, a class of memory, and its bytes there if there are any.
// Places of equal words, as memory of the host, are one.
template <typename Show>
void for_each_beside(const MemoryPlan& memory, Show show) {
  const auto begin = place_words.begin();
  for (size_t place = 1; place < num_memory_places; ++place) {
    const PlaceWords& words = place_words[place];
    if (std::find(begin, begin + place, words) != begin + place) continue;
    for (size_t c = 0; c < num_memory_classes; ++c) {
      int64_t bytes = 0;
      for (size_t other = place; other < num_memory_places; ++other)
        if (place_words[other] == words) bytes += memory.on(static_cast<MemoryPlace>(other))[c];
      if (bytes > 0) show(words, memory_class_names[c], bytes);
    }
  }
}

std::string memory_section(const DryRun& input) {
  std::string text = "\nmemory\n";
  if (input.world.mesh.world_size() > 1)
    text += text_row("rank", format_grouped(input.world.largest_rank), "has the largest peak");
  for (size_t c = 0; c < num_memory_classes; ++c) {
    const int64_t bytes = input.memory[static_cast<MemoryClass>(c)];
    if (bytes == 0) continue;
    std::string remark = format_bytes(static_cast<double>(bytes));
    if (c == static_cast<size_t>(MemoryClass::optimizer)) remark += column_names(input.config);
    text += text_row(memory_class_names[c], format_grouped(bytes), remark);
  }
  const int64_t total = input.memory.total();
  const auto all = static_cast<double>(total) * static_cast<double>(input.target.sharing);
  const auto there = static_cast<double>(input.target.memory_bytes);
  const std::string ranks = input.target.sharing > 1 ? fmt::format("; {} ranks take ", input.target.sharing) : ", ";
  text += text_row("peak", format_grouped(total),
                   fmt::format("{}{}{:.1f}% of {}'s {}", format_bytes(static_cast<double>(total)), ranks,
                               100 * all / there, input.target.name, format_bytes(there)));
  for_each_beside(input.memory, [&](const PlaceWords& words, std::string_view memory_class, int64_t bytes) {
    text += text_row(fmt::format("{} {}", memory_class, words.text), format_grouped(bytes),
                     format_bytes(static_cast<double>(bytes)));
  });
  if (input.config.memory.offload != offload::none) text += "  " + offload_text(input) + ".\n";
  text += on_host_text(input);
  if (!input.shortage.empty()) text += "  " + join(split_lines(input.shortage), "\n  ") + "\n";
  return text;
}

std::string flops_row(std::string_view label, Flops flops, std::string_view remark) {
  return text_row(label, fmt::format("{:.3e}", to_double(flops)), fmt::format("{}; {}", to_string(flops), remark));
}

std::string flops_section(const StepConfig& config, const Totals& totals) {
  std::string text = "\nFLOPs of one step\n";
  text += flops_row("model", totals.step.model_flops,
                    fmt::format("matrix products without padding, {}, no recomputation", pairs_text(config.model)));
  text += flops_row("hardware", totals.step.executed_flops, "executed, with padding, whole tiles, recomputation");
  text += flops_row("reference", totals.reference, "96 B s l h^2 (1 + s/6h + V/16lh)");
  if (config.data.mask_documents)
    text += "  These are upper bounds: they count attention between documents, which data.mask_documents skips.\n";
  return text;
}

RunSpeed speed_of(const DryRun& input) {
  return run_speed(input.config, input.config.run.steps, input.target, input.ops, input.world.mesh.world_size(),
                   input.forecast->step_seconds);
}

std::string wait_text(const LongestWait& wait) {
  const std::string unit = wait.unit >= 0 ? fmt::format(" of unit {}", wait.unit) : "";
  return fmt::format("longest: {}{}, {}", wait.operation, unit, seconds_text(wait.seconds));
}

// Returns the faster layout that a quick search found, with its settings; empty without one.
std::string faster_text(const DryRun& input) {
  if (!input.faster) return "";
  return fmt::format(
      "  A quick search found a layout whose step takes {}, {:.0f}% less (gptrain plan searches all layouts):\n"
      "    --set {}\n",
      seconds_text(input.faster->step_seconds), 100 * (1 - input.faster->step_seconds / input.forecast->step_seconds),
      join(input.faster->settings, " --set "));
}

std::string forecast_section(const DryRun& input) {
  if (!input.forecast) return "";
  const StepForecast& forecast = *input.forecast;
  const RunSpeed speed = speed_of(input);
  std::string text = "\npredicted step\n";
  if (!forecast.origin.empty()) text += fmt::format("  {}\n", forecast.origin);
  text += text_row("machine", forecast.machine);
  text += text_row("step", seconds_text(forecast.step_seconds),
                   fmt::format("{} tokens/s, {} on each device", format_count(speed.tokens_per_second),
                               format_count(speed.tokens_per_gpu)));
  text += other_steps_text(forecast);
  if (!forecast.published.software.empty())
    text += text_row("published software", seconds_text(forecast.published.seconds),
                     fmt::format("the step of {} in this layout", forecast.published.software));
  text += text_row("expected error", fmt::format("{:.0f}%", 100 * forecast.error.share), forecast.error.source);
  text += text_row("model FLOPs", fmt::format("{:.1f}%", 100 * speed.mfu),
                   flops_rate_text(speed.model_flops_per_gpu, 1) + " on each device (MFU)");
  text += text_row("hardware FLOPs", fmt::format("{:.1f}%", 100 * speed.hfu),
                   flops_rate_text(speed.hardware_flops_per_gpu, 1) + " on each device (HFU)");
  if (forecast.bubble_seconds > 0)
    text += text_row("bubble", seconds_text(forecast.bubble_seconds), "mean time that a stage waits for other stages");
  for (size_t lane = 0; lane < num_waited_lanes; ++lane) {
    const double seconds = forecast.exposed_seconds[lane];
    if (seconds < 1e-4 * forecast.step_seconds) continue;
    const LongestWait& wait = forecast.longest_waits[lane];
    text += text_row(fmt::format("exposed {}", waited_lane_name(lane)), seconds_text(seconds),
                     wait.seconds > 0 ? wait_text(wait) : "");
  }
  std::vector<std::string> parts;
  for (const auto& [name, seconds] : forecast.critical_path)
    if (seconds > 5e-3 * forecast.step_seconds)
      parts.push_back(fmt::format("{} {:.0f}%", name, 100 * seconds / forecast.step_seconds));
  return text + fmt::format("  Critical path: {}.\n", join(parts, ", ")) + faster_text(input);
}

Json forecast_json(const DryRun& input) {
  const StepForecast& forecast = *input.forecast;
  const RunSpeed speed = speed_of(input);
  Json json{{"predicted_for", forecast.machine},
            {"software", forecast.software},
            {"origin", forecast.origin},
            {"step_seconds", forecast.step_seconds},
            {"expected_error", forecast.error.share},
            {"expected_error_source", forecast.error.source},
            {"tokens_per_second", speed.tokens_per_second},
            {"tokens_per_second_origin", "predicted"},
            {"tokens_per_second_per_gpu", speed.tokens_per_gpu},
            {"model_tflops_per_gpu", speed.model_flops_per_gpu / 1e12},
            {"hardware_tflops_per_gpu", speed.hardware_flops_per_gpu / 1e12},
            {"mfu", speed.mfu},
            {"hfu", speed.hfu},
            {"bubble_seconds", forecast.bubble_seconds}};
  add_other_steps(json, forecast);
  if (!forecast.published.software.empty()) {
    json["published_software"] = forecast.published.software;
    json["published_step_seconds"] = forecast.published.seconds;
  }
  if (input.faster)
    json["faster_layout"] = {{"step_seconds", input.faster->step_seconds}, {"settings", input.faster->settings}};
  Json exposed = Json::object(), longest_waits = Json::array();
  for (size_t lane = 0; lane < num_waited_lanes; ++lane) {
    const LongestWait& wait = forecast.longest_waits[lane];
    if (lane != update_lane || input.config.memory.keeps_state_away())
      exposed[std::string(waited_lane_name(lane))] = forecast.exposed_seconds[lane];
    if (wait.seconds == 0) continue;
    longest_waits.push_back({{"lane", waited_lane_name(lane)},
                             {"collective", wait.operation},
                             {"unit", wait.unit},
                             {"seconds", wait.seconds}});
  }
  json["exposed_seconds"] = std::move(exposed);
  if (!longest_waits.empty()) json["longest_waits"] = std::move(longest_waits);
  for (const auto& [name, seconds] : forecast.critical_path) json["critical_path_seconds"][std::string(name)] = seconds;
  json["gpu_hours"] = speed.gpu_hours;
  if (input.price > 0) json["cost"] = input.price * speed.gpu_hours / forecast.goodput;
  json["checkpoint_cost_seconds"] = forecast.checkpoint_cost_seconds;
  json["best_checkpoint_every_seconds"] = forecast.best_checkpoint_interval;
  json["goodput"] = forecast.goodput;
  return json;
}

// Returns the learning rate and warm-up after optimizer.lr_scaling; empty without scaling.
std::string scaled_rate_row(const DryRun& input) {
  const auto& config = input.config;
  const OptimizerConfig& optimizer = config.optimizer;
  if (optimizer.lr_scaling == LrScaling::none) return "";
  const bool linear = optimizer.lr_scaling == LrScaling::linear;
  return text_row("learning rate", fmt::format("{:.3g}", optimizer.lr * config.lr_factor()),
                  fmt::format("at its peak: {:g} x {}{} / {}{}; warm-up of {}", optimizer.lr, linear ? "" : "sqrt(",
                              config.batch.global, optimizer.base_batch, linear ? "" : ")",
                              format_counted(config.warmup_steps(), "step")));
}

std::string run_section(const DryRun& input, const Totals& totals) {
  const auto& config = input.config;
  std::string text = "\nrun\n";
  text += text_row("steps", format_grouped(config.run.steps),
                   fmt::format("{} each: {} of {}{}", format_counted(config.batch.global, "sequence"),
                               format_counted(config.batch.accumulation, "micro-batch"), config.batch.micro,
                               input.world.mesh.size(MeshAxis::data) > 1 ? " on each data rank" : ""));
  text += text_row("tokens", format_count(to_double(totals.tokens)),
                   fmt::format("{} a step", format_grouped(totals.tokens_per_step)));
  text += scaled_rate_row(input);
  text += text_row("model FLOPs", fmt::format("{:.3e}", to_double(totals.run_flops)),
                   petaflop_days_text(petaflop_days(totals.run_flops)));
  const double rate = matrix_rate(input);
  if (rate > 0) {
    const int64_t ranks = input.world.mesh.world_size();
    const double seconds = to_double(totals.run_flops) / rate / static_cast<double>(ranks);
    const std::string devices = ranks > 1 ? fmt::format("{} x ", ranks) : "";
    const char* const traffic = ranks > 1 ? ", without communication" : "";
    text += text_row("shortest time", format_duration(seconds),
                     fmt::format("{} at {}'s full matrix rate, {}{}{}", days_text(seconds), input.target.name, devices,
                                 flops_rate_text(rate, rate < 1e13 ? 3 : 0), traffic));
  }
  const bool is_predicted = input.forecast && input.rate && input.rate->origin == "predicted";
  if (is_predicted) {
    const double hours = speed_of(input).gpu_hours, goodput = input.forecast->goodput;
    text += text_row("device-hours", format_count(hours),
                     fmt::format("{}: goodput {} with a checkpoint every {}", with_failures_text(hours, goodput),
                                 goodput_text(goodput), format_duration(input.forecast->best_checkpoint_interval)));
    if (input.price > 0)
      text += text_row("cost", goodput > 0 ? format_count(input.price * hours / goodput) : "?",
                       goodput > 0 ? fmt::format("{:g} for each device-hour, with failures", input.price)
                                   : "the run never ends: nodes fail too often");
  }
  if (input.rate) {
    const double seconds = to_double(totals.tokens) / input.rate->tokens_per_second;
    text +=
        text_row("time", format_duration(seconds),
                 fmt::format("{} at {} tokens/s, {}{}", days_text(seconds), format_count(input.rate->tokens_per_second),
                             input.rate->origin,
                             is_predicted ? "; " + with_failures_text(seconds / 86400, input.forecast->goodput) : ""));
  } else {
    text +=
        text_row("time", "?",
                 "unknown: give --tokens-per-second or --target FILE (of gptrain bench device), or train some steps");
  }
  text += text_row("checkpoint", format_bytes(static_cast<double>(input.checkpoint.bytes)),
                   checkpoint_remark(input.checkpoint));
  return text;
}

std::string data_section(const DryRun& input) {
  if (input.sources.empty()) return "";
  std::string text = "\ndata\n";
  for (const SourceForecast& source : input.sources) {
    const std::string epochs =
        source.epochs ? fmt::format("{:.2f} epochs", *source.epochs) : "epochs unknown: files not found";
    text += text_row(source.path, std::isnan(source.share) ? "?" : fmt::format("{:.2f}%", 100 * source.share), epochs);
  }
  return text;
}

std::vector<std::string> warning_lines(const DryRun& input) {
  std::vector<std::string> lines = split_lines(input.warnings);
  if (!input.target.bf16_products) {
    lines.insert(lines.begin(),
                 input.target.name + ": for planning only: gptrain trains on GPUs of compute capability 8.0 or later");
  }
  return lines;
}

Json recompute_json(const RecomputeForecast& forecast) {
  Json json = Json::object();
  json["activation_budget_bytes"] = forecast.budget_bytes > 0 ? Json(forecast.budget_bytes) : Json("fit");
  json["activation_room_bytes"] = forecast.headroom_bytes;
  for (const RecomputeForecast::OfStage& stage : forecast.stages)
    json["stages"].push_back({{"blocks_kept", stage.saving_all},
                              {"blocks_kept_in_part", stage.in_part},
                              {"blocks_run_again", stage.alone},
                              {"blocks_run_again_with_others", stage.from_before},
                              {"blocks_offloaded", stage.offloaded},
                              {"activations_bytes", stage.bytes},
                              {"least_activations_bytes", stage.least_bytes},
                              {"again_share", stage.recompute_share}});
  const auto points = [](const std::vector<RecomputeForecast::Point>& all) {
    Json array = Json::array();
    for (const RecomputeForecast::Point& point : all) {
      Json entry{{"recompute", point.name}, {"activations_bytes", point.bytes}, {"again_share", point.recompute_share}};
      if (point.step_seconds > 0) entry["step_seconds"] = point.step_seconds;
      array.push_back(entry);
    }
    return array;
  };
  json["curve"] = points(forecast.curve);
  if (!forecast.without_offload.empty()) json["curve_without_offload"] = points(forecast.without_offload);
  json["others"] = points(forecast.others);
  return json;
}

Json memory_object(const StepConfig& config, const ModelSpec& spec, const MemoryPlan& memory) {
  Json json;
  json["total_parameters"] = spec.parameters();
  if (config.model.moe.is_on()) json["active_parameters"] = active_parameters(config.model, spec.parameters());
  for (size_t c = 0; c < num_memory_classes; ++c) {
    const auto memory_class = static_cast<MemoryClass>(c);
    if (memory_class == MemoryClass::residuals && memory[memory_class] == 0) continue;
    json[fmt::format("{}_bytes", memory_class_names[c])] = memory[memory_class];
  }
  json["peak_bytes"] = memory.total();
  for_each_beside(memory, [&](const PlaceWords& words, std::string_view memory_class, int64_t bytes) {
    json[fmt::format("{}_{}_bytes", words.key, memory_class)] = bytes;
  });
  json["tokens_per_step"] = config.batch.global * config.model.sequence_length;
  return json;
}

}  // namespace

std::string dry_run_text(const DryRun& input) {
  const Totals totals(input);
  std::string text =
      "model\n  " + model_line(input.config.model, input.world.mesh.size(MeshAxis::tensor)) + "\n\nparameters\n";
  const auto parts = parameters_by_part(input.spec);
  for (size_t part = 0; part < num_model_parts; ++part) {
    if (parts[part] > 0) text += text_row(model_part_names[part], format_grouped(parts[part]));
  }
  if (input.config.model.tied_head) text += text_row("head", "0", "tied to the embedding");
  text += text_row("total", format_grouped(input.spec.parameters()),
                   format_count(static_cast<double>(input.spec.parameters())));
  if (const int64_t active = active_parameters(input.config.model, input.spec.parameters());
      active < input.spec.parameters())
    text += text_row("active", format_grouped(active), "those that a token passes through");
  text += ranks_section(input) + pipeline_section(input) + memory_section(input) +
          (input.recomputation ? recompute_text(*input.recomputation) : "") + flops_section(input.config, totals) +
          forecast_section(input) + links_section(input) + run_section(input, totals) + data_section(input);
  const std::vector<std::string> warnings = warning_lines(input);
  return warnings.empty() ? text : text + "\nwarnings\n  " + join(warnings, "\n  ") + "\n";
}

std::string dry_run_json(const DryRun& input) {
  const Totals totals(input);
  Json json = memory_object(input.config, input.spec, input.memory);
  json["target"] = input.target.name;
  json["target_memory_bytes"] = input.target.memory_bytes;
  json["ranks_sharing_memory"] = input.target.sharing;
  if (const int64_t on_host = input.on_host.total(); on_host > 0) json["host_bytes_of_node"] = on_host;
  if (input.target.host_bytes > 0) json["host_memory_bytes"] = input.target.host_bytes;
  json["fits"] = input.shortage.empty();
  const auto parts = parameters_by_part(input.spec);
  for (size_t part = 0; part < num_model_parts; ++part)
    json["parameters_by_part"][std::string(model_part_names[part])] = parts[part];
  json["model_flops_per_step"] = flops_json(totals.step.model_flops);
  json["hardware_flops_per_step"] = flops_json(totals.step.executed_flops);
  json["reference_flops_per_step"] = flops_json(totals.reference);
  json["bytes_moved_per_step"] = flops_json(totals.step.bytes_moved);
  json["steps"] = input.config.run.steps;
  json["peak_learning_rate"] = input.config.optimizer.lr * input.config.lr_factor();
  json["warmup_steps"] = input.config.warmup_steps();
  json["total_tokens"] = flops_json(totals.tokens);
  json["total_model_flops"] = flops_json(totals.run_flops);
  json["total_petaflop_days"] = petaflop_days(totals.run_flops);
  json.update(world_json(input));
  if (input.stages.size() > 1) json["pipeline"] = pipeline_json(input);
  if (input.config.memory.offload != offload::none) {
    for (const StageForecast& stage : input.stages) json["offloaded_blocks"].push_back(stage.offloaded);
  }
  if (input.recomputation) json["recomputation"] = recompute_json(*input.recomputation);
  if (input.forecast) json.update(forecast_json(input));
  if (!input.link_needs.empty()) json.update(links_json(input));
  json.update(checkpoint_json(input.checkpoint));
  if (matrix_rate(input) > 0)
    json["seconds_at_full_matrix_rate"] =
        to_double(totals.run_flops) / matrix_rate(input) / static_cast<double>(input.world.mesh.world_size());
  if (input.rate) {
    json["tokens_per_second"] = input.rate->tokens_per_second;
    json["tokens_per_second_origin"] = input.rate->origin;
    json["total_seconds"] = to_double(totals.tokens) / input.rate->tokens_per_second;
    json["total_days"] = to_double(totals.tokens) / input.rate->tokens_per_second / 86400;
    if (input.forecast && input.rate->origin == "predicted")
      json["total_days_with_failures"] = json["total_days"].get<double>() / input.forecast->goodput;
  }
  for (const SourceForecast& source : input.sources) {
    Json entry{{"path", source.path}, {"share", source.share}};
    entry["epochs"] = source.epochs ? Json(*source.epochs) : Json(nullptr);
    json["sources"].push_back(entry);
  }
  json["warnings"] = warning_lines(input);
  return json_text(json, 2) + "\n";
}

std::string memory_json(const StepConfig& config, const ModelSpec& spec, const MemoryPlan& memory) {
  return json_text(memory_object(config, spec, memory), 2) + "\n";
}

}  // namespace gptrain::report
