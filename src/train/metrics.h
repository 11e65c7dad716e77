// Reports of a run for people and tools: the step line, OUT/metrics.jsonl and OUT/tb/. OUT/report.html is made from
// them by report/run_page.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "train/routing.h"

namespace gptrain::inline train {

struct StepMetrics {
  int64_t step = 0;  // 1-based: the step just finished
  double loss = 0;
  double grad_norm = 0;
  double lr = 0;
  int64_t tokens = 0;  // consumed since step 1
  int64_t samples = 0;
  double step_seconds = 0;
  double data_seconds = 0;
  double tokens_per_second = 0;
  double mfu = 0;  // 0..1, model FLOP/s over the measured matrix rate
  int64_t peak_bytes = 0;
  bool skipped = false;
  double loss_scale = 0;  // 0: there is none
  // Largest attention score of the step, and the heads that QK-clip scaled; none without optimizer.qk_clip.
  std::optional<double> largest_score = {};
  std::optional<int64_t> clipped_heads = {};
  std::vector<LayerRouting> routing = {};  // one for each layer with experts
  double padding = 0;                      // share of the step's tokens whose targets do not count
  // Checkpoints since the last reported step: seconds that the loop waited for them, and seconds from the start of the
  // last one until it was durable; none if there was no checkpoint.
  std::optional<double> checkpoint_cost_seconds = {}, checkpoint_durable_seconds = {};
};

struct ValidationMetrics {
  double loss = 0;  // mean cross-entropy of a token, nats
  // Cross-entropy of a byte of the text, bits; none if the tokenizer is not known. Tokens without text count in the
  // sum, but have no bytes.
  std::optional<double> bits_per_byte = {};
  bool ema = false;  // true: evaluated the average of the weights
};

struct RollbackMetrics {
  int64_t number = 0;  // 1 is the run's first rollback
  int64_t from_step = 0;
  double loss = 0;                           // loss of from_step
  int64_t first_left_out = 0, left_out = 0;  // samples
};

inline constexpr const char* metrics_file_name = "metrics.jsonl";

struct RecordedSteps {
  int64_t last_step = 0;                                   // step of the last record; 0: there is none
  std::optional<double> tokens_per_second = std::nullopt;  // median of the records
};

// Reads a file of metrics. Skips lines that are no records; returns no steps if the file cannot be read.
RecordedSteps read_records(const std::filesystem::path& metrics);

// Returns a line such as `step 120/5000 2.4% | loss 3.2145 | gnorm 0.84 | lr 3.0e-4 | 412 ms (data 1%) | 57.1k tok/s |
// mfu 46.2% | mem 1.9/24 GiB | eta 33m`. eta_seconds < 0: not known yet ("eta -"). With a loss scale, ` | scale 65536`
// follows lr. If a checkpoint has cost time or become durable, ` | checkpoint cost 12 ms` and ` | checkpoint durable
// after 1.3 s` follow. A skipped step ends with " | SKIPPED (not finite)".
std::string format_step_line(const StepMetrics& metrics, int64_t total_steps, int64_t memory_bytes, double eta_seconds);

// Appends to OUT's files. With resume_step >= 0 the constructor drops every record of a later step from metrics.jsonl
// and samples.jsonl (through a temporary file and rename) and starts a new TensorBoard event file whose first event
// purges later steps. With -1 it starts afresh: existing files (report.html among them) are renamed to *.old-N, never
// overwritten. THROWS Error(usage) if a file cannot be written. Each record is flushed whole, so a killed run leaves at
// most one cut line, at the end, which the next resume drops. Resuming moves other lines that are no records to a file
// of their own.
class MetricsWriter {
 public:
  MetricsWriter(const std::filesystem::path& out, int64_t resume_step);
  // Returns a warning about lines that resuming could not read, which are kept in metrics.jsonl.unreadable; empty if
  // there are none.
  const std::string& warning() const;
  ~MetricsWriter();

  void write_step(const StepMetrics& metrics);  // full precision; NaN and infinities as null
  void write_validation(int64_t step, const ValidationMetrics& metrics);
  // Records that the run has gone back to `step`.
  void write_rollback(int64_t step, const RollbackMetrics& metrics);
  // Writes a text that the model generated after `step` to samples.jsonl.
  void write_sample(int64_t step, const std::string& prompt, const std::string& text);
  // Returns true if the path of metrics.jsonl, samples.jsonl or TensorBoard's file no longer leads to it, or if the
  // file lacks records.
  bool is_gone() const;
  // Creates the files that are gone, continues those that lack records, and returns their paths. THROWS Error(usage) if
  // it cannot.
  std::vector<std::filesystem::path> restore_files();
  // Makes all records so far survive a crash of the machine. Call before a checkpoint is saved, so that no checkpoint
  // is ahead of its metrics. Any thread, beside other calls.
  void sync() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gptrain::train
