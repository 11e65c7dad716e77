#include "train/metrics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <fmt/format.h>
#include <fstream>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/append.h"
#include "base/error.h"
#include "base/json.h"
#include "base/output_file.h"
#include "base/text_parts.h"
#include "base/units.h"
#include "report/tensorboard.h"
#include "train/run_files.h"

namespace gptrain::inline train {
namespace {

namespace fs = std::filesystem;

constexpr const char* tensor_board_folder = "tb";
constexpr const char* samples_file_name = "samples.jsonl";
constexpr std::array run_files = {metrics_file_name, samples_file_name, tensor_board_folder, "report.html"};

// Formats `3.0e-4`: the exponent without padding.
std::string format_exponent(double value) {
  if (value == 0) return "0";
  const std::string text = fmt::format("{:.1e}", value);
  const size_t e = text.find('e');
  if (e == std::string::npos) return text;  // nan, inf
  return fmt::format("{}e{}", std::string_view(text).substr(0, e), std::stoi(text.substr(e + 1)));
}

// Formats with two decimals, unless they would show only zeros or would not fit the column.
std::string format_grad_norm(double value) {
  if (std::isnan(value)) return "nan";  // NaN of either sign
  const bool two_decimals_fit = value == 0 || (value >= 0.095 && value < 9999.995) || std::isinf(value);
  return two_decimals_fit ? fmt::format("{:.2f}", value) : format_exponent(value);
}

// Formats `1.9/24 GiB`; prints the unit once if both values have the same.
std::string format_memory(int64_t peak_bytes, int64_t memory_bytes) {
  const std::string peak = format_bytes(static_cast<double>(peak_bytes));
  if (memory_bytes <= 0) return peak;
  std::string memory = format_bytes(static_cast<double>(memory_bytes));
  const size_t unit = memory.find(' ');
  if (memory.compare(unit - 2, 2, ".0") == 0) memory.erase(unit - 2, 2);
  const size_t peak_unit = peak.find(' ');
  const bool same_unit = std::string_view(peak).substr(peak_unit) == std::string_view(memory).substr(memory.find(' '));
  return fmt::format("{}/{}", same_unit ? peak.substr(0, peak_unit) : peak, memory);
}

std::string duration_column(std::string_view what, std::optional<double> seconds) {
  return seconds ? fmt::format(" | {} {}", what, format_duration(*seconds)) : "";
}

// Returns the value of a key; null if the record lacks it or is no object.
const nlohmann::json& value_of(const nlohmann::json& record, const char* key) {
  static const nlohmann::json none;
  const auto found = record.is_object() ? record.find(key) : record.end();
  return found == record.end() ? none : *found;
}

// Renames an earlier run's files. All files of one run get the same number. Returns a warning if that run had made
// steps: its checkpoints may have been lost.
std::string move_earlier_run_aside(const fs::path& out) {
  const auto is_used = [&](int number) {
    for (const char* name : run_files) {
      if (fs::exists(moved_aside(out / name, number))) return true;
    }
    return false;
  };
  int number = 1;
  while (is_used(number)) ++number;
  for (const char* name : run_files) {
    // Moves a dangling link too: writing would create the file that it names.
    if (fs::exists(fs::symlink_status(out / name))) fs::rename(out / name, moved_aside(out / name, number));
  }
  const fs::path records = moved_aside(out / metrics_file_name, number);
  const int64_t steps = read_records(records).last_step;
  if (steps <= 0) return "";
  return fmt::format("an earlier run in {} made {} (see {}) and has no checkpoint there: this one starts at step 0",
                     out.string(), format_counted(steps, "step"), records.filename().string());
}

// Drops the records of steps after last_step. Lines that are no records are damaged: they go to a file of their own,
// and the returned warning says so. A last line without its end was left by a killed run.
std::string drop_later_records(const fs::path& path, int64_t last_step) {
  if (!fs::exists(path)) return "";
  if (!fs::is_regular_file(path)) throw Error(ExitCode::usage, "cannot read {}: not a regular file", path.string());
  std::ifstream in(path, std::ios::binary);
  if (!in) throw Error(ExitCode::usage, "cannot read {}", path.string());
  AtomicFile rewritten(path);
  std::string unreadable;
  int64_t num_unreadable = 0;
  for (std::string line; std::getline(in, line);) {
    const nlohmann::json record = parse_json_or_discard(line);
    if (const nlohmann::json& step = value_of(record, "step"); step.is_number_integer()) {
      if (step.get<int64_t>() <= last_step) rewritten.write(line += '\n');
    } else if (!in.eof()) {
      unreadable += line += '\n';
      ++num_unreadable;
    }
  }
  if (in.bad()) throw Error(ExitCode::usage, "cannot read {}", path.string());
  std::string warning;
  if (num_unreadable > 0) {
    const fs::path aside = fs::path(path).concat(".unreadable");
    OutputFile file(aside, OutputFile::Mode::append);
    file.write(unreadable);
    file.sync();
    warning = fmt::format("{}: {} cannot be read; kept in {}", path.string(), format_counted(num_unreadable, "line"),
                          aside.string());
  }
  rewritten.commit();
  return warning;
}

constexpr std::array<std::pair<std::string_view, double LayerRouting::*>, 6> routing_columns = {{
    {"most", &LayerRouting::most},
    {"least", &LayerRouting::least},
    {"aux", &LayerRouting::aux},
    {"z", &LayerRouting::z},
    {"entropy", &LayerRouting::entropy},
    {"dropped", &LayerRouting::dropped},
}};

// Leaves `out` ready for appending and returns it.
const fs::path& prepare(const fs::path& out, int64_t resume_step, std::string& warning) {
  try {
    fs::create_directories(out);
    if (resume_step < 0) {
      warning = move_earlier_run_aside(out);
    } else {
      for (const char* name : run_files) remove_lost_link(out / name);
      warning = drop_later_records(out / metrics_file_name, resume_step);
      const std::string of_samples = drop_later_records(out / samples_file_name, resume_step);
      if (warning.empty()) warning = of_samples;
    }
    fs::create_directories(out / tensor_board_folder);
  } catch (const fs::filesystem_error& error) {
    throw Error(ExitCode::usage, "cannot prepare the run's folder {} (run.out): {}", out.string(),
                error.code().message());
  }
  return out;
}

}  // namespace

RecordedSteps read_records(const fs::path& metrics) {
  RecordedSteps recorded;
  std::error_code unreadable;
  if (!fs::is_regular_file(metrics, unreadable)) return recorded;
  std::ifstream in(metrics, std::ios::binary);
  std::vector<double> rates;
  for (std::string line; std::getline(in, line);) {
    const nlohmann::json record = parse_json_or_discard(line);
    const nlohmann::json &step = value_of(record, "step"), &rate = value_of(record, "tokens_per_second");
    if (step.is_number_integer()) recorded.last_step = step.get<int64_t>();
    if (rate.is_number()) rates.push_back(rate.get<double>());
  }
  if (rates.empty()) return recorded;
  const auto middle = rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 2);
  std::nth_element(rates.begin(), middle, rates.end());
  recorded.tokens_per_second = *middle;
  return recorded;
}

std::string format_step_line(const StepMetrics& metrics, int64_t total_steps, int64_t memory_bytes,
                             double eta_seconds) {
  const double percent =
      total_steps > 0 ? 100.0 * static_cast<double>(metrics.step) / static_cast<double>(total_steps) : 100;
  const double data_percent = metrics.step_seconds > 0 ? 100 * metrics.data_seconds / metrics.step_seconds : 0;
  return fmt::format(
      "step {}/{} {:.1f}% | loss {:.4f} | gnorm {} | lr {}{} | {} (data {:.0f}%) | {} tok/s | mfu {:.1f}% | mem {} | "
      "eta {}{}{}{}",
      metrics.step, total_steps, percent, std::isnan(metrics.loss) ? std::abs(metrics.loss) : metrics.loss,
      format_grad_norm(metrics.grad_norm), format_exponent(metrics.lr),
      metrics.loss_scale > 0 ? fmt::format(" | scale {:.0f}", metrics.loss_scale) : "",
      step_seconds_text(metrics.step_seconds), data_percent, format_count(metrics.tokens_per_second), 100 * metrics.mfu,
      format_memory(metrics.peak_bytes, memory_bytes), eta_seconds < 0 ? "-" : format_duration(eta_seconds),
      duration_column("checkpoint cost", metrics.checkpoint_cost_seconds),
      duration_column("checkpoint durable after", metrics.checkpoint_durable_seconds),
      metrics.skipped ? " | SKIPPED (not finite)" : "");
}

// The members are opened in this order, after the folder was prepared.
struct MetricsWriter::Impl {
  Impl(const fs::path& folder, int64_t resume_step)
      : out(folder),
        records(std::make_unique<OutputFile>(prepare(folder, resume_step, warning) / metrics_file_name,
                                             OutputFile::Mode::append)),
        samples(fs::exists(folder / samples_file_name)
                    ? std::make_unique<OutputFile>(folder / samples_file_name, OutputFile::Mode::append)
                    : nullptr),
        tensorboard(std::make_unique<TensorBoardWriter>(folder / tensor_board_folder, resume_step)),
        last_step(resume_step) {}

  // Starts a record. The buffer is kept from record to record, so that a step allocates nothing.
  void begin(int64_t step) {
    last_step = step;
    line.clear();
    append(line, "{{\"step\":{}", step);
  }

  void add(std::string_view key, int64_t value) { append(line, ",\"{}\":{}", key, value); }

  // Adds the shortest text that reads back as the same double, or null for NaN and infinities, which JSON lacks.
  void add(std::string_view key, double value) {
    if (std::isfinite(value)) {
      append(line, ",\"{}\":{}", key, value);
    } else {
      append(line, ",\"{}\":null", key);
    }
  }

  void add(std::string_view key, bool value) { append(line, ",\"{}\":{}", key, value); }

  // Adds an object of arrays, one element for each layer with experts.
  void add(const std::vector<LayerRouting>& routing) {
    append(line, ",\"moe\":{{\"layer\":[");
    add_elements(routing, &LayerRouting::layer);
    for (const auto& [key, member] : routing_columns) {
      append(line, "],\"{}\":[", key);
      add_elements(routing, member);
    }
    append(line, "]");
    if (!routing.front().loads.empty()) add_loads(routing);
    append(line, "}}");
  }

  // Adds an array for each layer, with a number for each expert.
  void add_loads(const std::vector<LayerRouting>& routing) {
    append(line, ",\"loads\":");
    std::string_view layer_start = "[[";
    for (const LayerRouting& layer : routing) {
      std::string_view start = std::exchange(layer_start, ",[");
      for (const double load : layer.loads) append(line, "{}{:.3g}", std::exchange(start, ","), load);
      append(line, "]");
    }
    append(line, "]");
  }

  template <typename Value>
  void add_elements(const std::vector<LayerRouting>& routing, Value LayerRouting::*member) {
    std::string_view before;
    for (const LayerRouting& layer : routing) {
      append(line, "{}{}", before, layer.*member);
      before = ",";
    }
  }

  void end() {
    append(line, "}}\n");
    records->write(line);
  }

  fs::path out;
  std::string warning;
  // Never null; replaced if somebody has removed the file.
  std::unique_ptr<OutputFile> records;
  std::unique_ptr<OutputFile> samples;  // as `records`; null while there is none
  std::unique_ptr<TensorBoardWriter> tensorboard;
  int64_t last_step;  // step of the last record
  std::string line;
};

MetricsWriter::MetricsWriter(const fs::path& out, int64_t resume_step)
    : impl_(std::make_unique<Impl>(out, resume_step)) {}

MetricsWriter::~MetricsWriter() = default;

const std::string& MetricsWriter::warning() const { return impl_->warning; }

void MetricsWriter::write_step(const StepMetrics& metrics) {
  impl_->begin(metrics.step);
  impl_->add("loss", metrics.loss);
  impl_->add("grad_norm", metrics.grad_norm);
  impl_->add("lr", metrics.lr);
  impl_->add("tokens", metrics.tokens);
  impl_->add("samples", metrics.samples);
  impl_->add("step_seconds", metrics.step_seconds);
  impl_->add("data_seconds", metrics.data_seconds);
  impl_->add("tokens_per_second", metrics.tokens_per_second);
  impl_->add("mfu", metrics.mfu);
  impl_->add("peak_bytes", metrics.peak_bytes);
  impl_->add("skipped", metrics.skipped);
  if (metrics.loss_scale > 0) impl_->add("loss_scale", metrics.loss_scale);
  if (metrics.largest_score) impl_->add("largest_score", *metrics.largest_score);
  if (metrics.clipped_heads) impl_->add("clipped_heads", *metrics.clipped_heads);
  if (!metrics.routing.empty()) impl_->add(metrics.routing);
  if (metrics.padding > 0) impl_->add("padding", metrics.padding);
  if (metrics.checkpoint_cost_seconds) impl_->add("checkpoint_cost_seconds", *metrics.checkpoint_cost_seconds);
  if (metrics.checkpoint_durable_seconds) impl_->add("checkpoint_durable_seconds", *metrics.checkpoint_durable_seconds);
  impl_->end();
  impl_->tensorboard->write(metrics.step, {{"loss", metrics.loss},
                                           {"grad_norm", metrics.grad_norm},
                                           {"lr", metrics.lr},
                                           {"tokens_per_second", metrics.tokens_per_second},
                                           {"step_seconds", metrics.step_seconds},
                                           {"mfu", metrics.mfu},
                                           {"peak_bytes", static_cast<double>(metrics.peak_bytes)}});
  if (metrics.loss_scale > 0) impl_->tensorboard->write(metrics.step, {{"loss_scale", metrics.loss_scale}});
  if (metrics.largest_score) impl_->tensorboard->write(metrics.step, {{"largest_score", *metrics.largest_score}});
  for (const LayerRouting& layer : metrics.routing) {
    for (const auto& [key, member] : routing_columns)
      impl_->tensorboard->write(metrics.step, {{fmt::format("moe/{}/{}", key, layer.layer), layer.*member}});
  }
}

void MetricsWriter::sync() const { impl_->records->sync(); }

bool MetricsWriter::is_gone() const {
  return !impl_->records->is_in_place() || (impl_->samples && !impl_->samples->is_in_place()) ||
         !impl_->tensorboard->file().is_in_place();
}

std::vector<fs::path> MetricsWriter::restore_files() {
  std::vector<fs::path> lost;
  // An old file is kept if the new one cannot be opened.
  for (auto* const file : {&impl_->records, &impl_->samples}) {
    if (!*file || (*file)->is_in_place()) continue;
    lost.push_back((*file)->path());
    *file = std::make_unique<OutputFile>(lost.back(), OutputFile::Mode::append);
  }
  if (!impl_->tensorboard->file().is_in_place()) {
    lost.push_back(impl_->tensorboard->file().path());
    const fs::path folder = lost.back().parent_path();
    std::error_code error;
    if (!fs::create_directory(folder, error) && error)
      throw Error(ExitCode::usage, "cannot create the folder {}: {}", folder.string(), error.message());
    impl_->tensorboard = std::make_unique<TensorBoardWriter>(folder, impl_->last_step);
  }
  return lost;
}

void MetricsWriter::write_validation(int64_t step, const ValidationMetrics& metrics) {
  impl_->begin(step);
  impl_->add("validation_loss", metrics.loss);
  if (metrics.bits_per_byte) impl_->add("bits_per_byte", *metrics.bits_per_byte);
  if (metrics.ema) impl_->add("ema", true);
  impl_->end();
  impl_->tensorboard->write(step, {{"validation_loss", metrics.loss}});
  if (metrics.bits_per_byte) impl_->tensorboard->write(step, {{"bits_per_byte", *metrics.bits_per_byte}});
}

void MetricsWriter::write_rollback(int64_t step, const RollbackMetrics& metrics) {
  impl_->begin(step);
  impl_->add("rollback", metrics.number);
  impl_->add("from_step", metrics.from_step);
  impl_->add("spike_loss", metrics.loss);
  impl_->add("first_left_out", metrics.first_left_out);
  impl_->add("left_out", metrics.left_out);
  impl_->end();
}

void MetricsWriter::write_sample(int64_t step, const std::string& prompt, const std::string& text) {
  const nlohmann::ordered_json record = {{"step", step}, {"prompt", prompt}, {"text", text}};
  if (!impl_->samples)
    impl_->samples = std::make_unique<OutputFile>(impl_->out / samples_file_name, OutputFile::Mode::append);
  impl_->samples->write(json_text(record) + "\n");
}

}  // namespace gptrain::train
