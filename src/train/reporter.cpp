#include "train/reporter.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <numeric>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/output.h"
#include "base/output_file.h"
#include "base/printable.h"
#include "base/units.h"
#include "comm/texts.h"
#include "config/load.h"
#include "config/node_groups.h"
#include "model/statistics.h"
#include "report/dry_run.h"
#include "report/formulas.h"
#include "report/run_page.h"
#include "train/routing.h"
#include "train/run_files.h"
#include "train/signals.h"

namespace gptrain::inline train {

namespace fs = std::filesystem;

Reporter::Reporter(const RunContext& context, FolderWatch& folder, const TrainingStep& step,
                   const MachineLimits& limits, int64_t last_step)
    : context_(context),
      folder_(folder),
      step_(step),
      limits_(limits),
      last_step_(last_step),
      model_flops_per_step_(
          static_cast<double>(model_flops_formula(context.config.model, context.config.batch.global))),
      total_matrix_flops_(limits.matrix_flops) {
  if (Communicator* const all = context_.all(); all != nullptr) {
    std::vector<double> rates(all->size());
    all->all_gather(&limits.matrix_flops, rates.data(), 1, DType::f64);
    total_matrix_flops_ = std::accumulate(rates.begin(), rates.end(), 0.0);
  }
}

void Reporter::collect_memory() {
  taken_ = step_.taken();
  // Sample texts allocate their memory only while one is written.
  const MemoryPlace host = host_place(context_.backend.target());
  constexpr auto samples = static_cast<size_t>(MemoryClass::samples);
  taken_.on(host)[samples] = step_.design().memory.outside.on(host)[samples];
  Communicator* const all = context_.all();
  if (all == nullptr) return;
  static_assert(std::is_trivially_copyable_v<MemoryPlan>);
  std::vector<MemoryPlan> taken(all->size());
  all->all_gather(&taken_, taken.data(), sizeof(MemoryPlan), DType::u8);
  taken_ = {};
  for (size_t rank = 0; rank < taken.size(); ++rank) {
    const bool is_planned = context_.groups.mesh().is_first_data_context_rank(static_cast<int64_t>(rank));
    if (is_planned && taken[rank].total() > taken_.total()) taken_ = taken[rank];
  }
}

void Reporter::open(int64_t resumed_step) {
  if (!context_.leads()) return;
  const fs::path& out = folder_.out();
  metrics_.emplace(out, resumed_step);
  if (!metrics_->warning().empty()) print_err("warning: {}\n", metrics_->warning());
  describe_run();
}

void Reporter::describe_run() const {
  const fs::path& out = folder_.out();
  const std::string config = show_config(context_.config, ConfigText::for_any_ranks);
  for (const std::string& warning :
       {write_run_file(out / config_name, config),
        write_run_file(out / memory_name, memory_json(context_.config, step_.spec(), taken_))})
    if (!warning.empty()) print_err("warning: {}\n", warning);
}

void Reporter::look_for_files() {
  if (!metrics_) return;
  std::string lost;
  for (const char* const name : {config_name, memory_name}) {
    std::error_code unknown;
    if (fs::status(folder_.out() / name, unknown).type() == fs::file_type::not_found) lost = name;
  }
  if (lost.empty() && !metrics_->is_gone()) return;
  // Looks again, as a folder that has replaced the run's since the last look must get none of its files.
  folder_.look();
  if (!folder_.fault().empty()) return;
  for (const fs::path& path : metrics_->restore_files()) {
    print_err(
        "warning: {} was removed, replaced or cut short while the run wrote to it: the next record begins a new file, "
        "or "
        "is appended to the rest\n",
        path.string());
  }
  if (lost.empty()) return;
  describe_run();
  print_err("warning: {} was removed while the run lasted, and is written again\n", (folder_.out() / lost).string());
}

// Returns " x 4 pipeline (1f1b)", or an empty text without pipeline parallelism.
std::string Reporter::pipeline_text() const {
  const ParallelConfig& parallel = context_.config.parallel;
  if (parallel.pipeline == 1) return "";
  const std::string chunks =
      parallel.virtual_stages > 1 ? fmt::format(", {} chunks each", parallel.virtual_stages) : "";
  return fmt::format(" x {} pipeline ({}{})", parallel.pipeline, pipeline_order_names[parallel.pipeline_schedule],
                     chunks);
}

void Reporter::announce() const {
  if (!context_.leads()) return;
  const RankGroups& groups = context_.groups;
  const int64_t ranks = groups.mesh().world_size();
  const Target& target = context_.backend.target();
  const std::string device = target.kind == Target::Kind::cpu ? format_counted(target.num_threads, "thread")
                                                              : fmt::format("one {}", target.name);
  if (ranks > 1) {
    const int64_t context = groups.on_context_axis().size;
    const ExpertRank experts = groups.on_expert_axis();
    const std::string cut = experts.tensor.size > 1 ? fmt::format(" x {} tensor", experts.tensor.size) : "";
    const std::string_view method = context_method_names[context_.config.parallel.context_method];
    print_out("{} ranks: {} tensor x {}{} data{}{}, ZeRO {}{}; {} each, {:.0f} GFLOP/s in {} matrix products in all\n",
              ranks, groups.mesh().size(MeshAxis::tensor),
              context > 1 ? fmt::format("{} context by {} x ", context, method) : "", groups.num_sample_ranks(),
              pipeline_text(), experts.size > 1 ? fmt::format(", experts over {}{}", experts.size, cut) : "",
              context_.config.parallel.zero, context_.config.parallel.sequence ? ", sequence parallel" : "", device,
              total_matrix_flops_ / 1e9, dtype_name(limits_.compute));
    const bool splits_layers = groups.works(LaneKind::tensor), splits_sequences = groups.works(LaneKind::context);
    if (target.kind == Target::Kind::gpu && (splits_layers || splits_sequences || experts.size > 1))
      print_out("forward and backward run op by op, as CUDA graphs cannot contain the exchanges of {} groups\n",
                splits_layers      ? "tensor"
                : splits_sequences ? "context"
                                   : "expert");
  } else {
    print_out("this machine: {}, {:.0f} GFLOP/s in {} matrix products\n", device, limits_.matrix_flops / 1e9,
              dtype_name(limits_.compute));
  }
  if (const std::string text = hierarchy_text(context_.config, ranks); ranks > 1 && !text.empty())
    print_out("{}\n", text);
  flush_lines();
  warn_of_spread_tensor_groups();
}

// Warns if a tensor group spans nodes: it exchanges activations in every layer, which needs the fast links within a
// node.
void Reporter::warn_of_spread_tensor_groups() const {
  const RankGroups& groups = context_.groups;
  const World& world = context_.world;
  const std::vector<int64_t> ranks = group_ranks(context_.config, groups.mesh(), groups.rank(), GroupKind::tensor);
  const std::string& first = world.host(static_cast<int>(ranks[0]));
  for (const int64_t rank : ranks) {
    const std::string& host = world.host(static_cast<int>(rank));
    if (host == first) continue;
    print_err(
        "warning: the tensor group of rank {} spans nodes ({} and {}): parallel.tensor = {} is more than a node "
        "holds\n",
        groups.rank(), first, host, context_.config.parallel.tensor);
    return;
  }
}

void Reporter::warn() const {
  std::istringstream warnings(context_.backend.take_warnings());
  for (std::string line; context_.leads() && std::getline(warnings, line);) print_err("warning: {}\n", line);
}

void Reporter::report_step(const RunProgress& progress, const StepResult& result, const BegunStep& begun) {
  const auto& config = context_.config;
  const double seconds = result.seconds;
  const auto positions = static_cast<double>(config.batch.global * config.model.sequence_length);
  // A moving average over about twenty steps. The first step, which sets up primitives, counts only until the second.
  average_step_seconds_ =
      average_step_seconds_ == 0 || progress.step <= 2 ? seconds : 0.95 * average_step_seconds_ + 0.05 * seconds;
  if (!context_.leads()) return;
  if (progress.step % config.log.every_steps != 0 && progress.step != last_step_ && !result.skipped) return;
  StepMetrics metrics{.step = progress.step,
                      .loss = result.loss,
                      .grad_norm = result.grad_norm,
                      .lr = begun.lr,
                      .tokens = progress.samples * config.model.sequence_length,
                      .samples = progress.samples,
                      .step_seconds = seconds,
                      .data_seconds = begun.data_seconds,
                      .tokens_per_second = positions / seconds,
                      .mfu = model_flops_per_step_ / seconds / total_matrix_flops_,
                      .peak_bytes = taken_.total(),
                      .skipped = result.skipped,
                      .loss_scale = config.precision.scales_loss() ? result.loss_scale : 0,
                      .padding = 1 - static_cast<double>(result.counted_targets) / positions,
                      .checkpoint_cost_seconds = std::exchange(checkpoint_cost_seconds_, {}),
                      .checkpoint_durable_seconds = std::exchange(durable_seconds_, {})};
  if (config.optimizer.qk_clip > 0) {
    metrics.largest_score = result.largest_score;
    metrics.clipped_heads = result.clipped_heads;
  }
  if (!result.skipped) {
    metrics.routing =
        layer_routing(config.model, config.batch, step_.design().statistics.part_of(routing_statistic, result.sums));
    if (const std::string warning = starving_.add(metrics.routing); !warning.empty())
      print_err("warning: {}\n", warning);
    for (LayerRouting& layer : metrics.routing)
      if (!records_loads(progress.step, config.run.steps, config.log.every_steps)) layer.loads.clear();
  }
  folder_.record([&] { metrics_->write_step(metrics); });
  const double eta = average_step_seconds_ * static_cast<double>(last_step_ - progress.step);
  print_out("{}\n", format_step_line(metrics, config.run.steps, context_.backend.target().memory_bytes, eta));
}

void Reporter::report_validation(int64_t step, const ValidationMetrics& metrics, int64_t sequences) {
  if (!context_.leads()) return;
  folder_.record([&] { metrics_->write_validation(step, metrics); });
  const auto unsigned_nan = [](double value) { return std::isnan(value) ? std::abs(value) : value; };
  const std::string per_byte =
      metrics.bits_per_byte ? fmt::format(", {:.4f} bits per byte,", unsigned_nan(*metrics.bits_per_byte)) : "";
  print_out("validation after step {}: loss {:.4f}{} over {}{}\n", step, unsigned_nan(metrics.loss), per_byte,
            format_counted(sequences, "sequence"), metrics.ema ? ", with the average of the weights" : "");
}

void Reporter::report_sample(int64_t step, const std::string& prompt, const std::string& text) {
  if (!context_.leads()) return;
  folder_.record([&] { metrics_->write_sample(step, prompt, text); });
  constexpr size_t shown_bytes = 300;
  print_out("sample after step {}: {}\n", step, printable(prompt + text, shown_bytes));
}

void Reporter::report_rollback(const RollbackReport& report) {
  if (!context_.leads()) return;
  folder_.record([&] {
    open(report.to_step);
    metrics_->write_rollback(report.to_step, {.number = report.number,
                                              .from_step = report.from_step,
                                              .loss = report.loss,
                                              .first_left_out = report.left_out.first,
                                              .left_out = report.left_out.count});
  });
  print_out("{}: back to step {}, samples {} to {} of the data are left out (rollback {} of at most {})\n",
            report.reason, report.to_step, report.left_out.first, report.left_out.first + report.left_out.count - 1,
            report.number, context_.config.run.rollback.limit);
}

void Reporter::report_profile(const StepProfile& profile) const {
  std::string events;
  write_trace_events(profile, [&](std::string_view text) { events += text; });
  const fs::path trace = folder_.out() / fmt::format("trace-step{}.json", profile.step);
  std::optional<AtomicFile> file;
  // A failed write is recorded, not thrown: the ranks still pass on their events.
  const auto write = [&](std::string_view text) {
    folder_.record([&] {
      if (!file) file.emplace(trace);
      file->write(text);
    });
  };
  if (context_.leads()) write(trace_head);
  bool is_first = true;
  pass_texts_to_first(context_.all(), events, [&](const std::string& of_rank) {
    if (!std::exchange(is_first, false)) write(trace_between);
    write(of_rank);
  });
  if (!context_.leads()) return;
  write(trace_tail);
  write_out(step_profile_table(profile));
  folder_.record([&] {
    if (file) file->commit();
    print_out("trace: {}\n", trace.string());
  });
}

void Reporter::note_checkpoint_cost(double seconds) {
  checkpoint_cost_seconds_ = checkpoint_cost_seconds_.value_or(0) + seconds;
}

std::string Reporter::sync_metrics() const {
  try {
    if (metrics_) metrics_->sync();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

bool Reporter::has_validation(int64_t step) const {
  bool recorded = false;
  if (context_.leads()) {
    const RunHistory history = read_run_history(folder_.out() / "metrics.jsonl");
    recorded = std::any_of(history.validations.begin(), history.validations.end(),
                           [&](const RunHistory::Validation& validation) { return validation.step == step; });
  }
  return !broadcast_text(context_.all(), recorded ? "yes" : "", 0).empty();
}

void Reporter::write_page() const {
  if (!context_.leads()) return;
  const fs::path& out = folder_.out();
  write_run_page(out, fmt::format("gptrain: {}", out.string()), show_config(context_.config));
}

}  // namespace gptrain::train
