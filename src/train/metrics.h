// What a run writes for people and tools: the step line, OUT/metrics.jsonl and OUT/tb/.
// OUT/report.html is made from them by report/run_page.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

namespace gptrain {

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
  double padding = 0;     // share of the step's tokens whose targets do not count
  // Since the last step that was reported: seconds that the loop has waited for checkpoints, and those that the last
  // one took to be durable.
  std::optional<double> checkpoint_cost_seconds = {}, checkpoint_durable_seconds = {};
};

struct ValidationMetrics {
  double loss = 0;  // mean cross-entropy of a token, nats
  // The same for a byte of the text, in bits: where the tokenizer is known. Tokens that stand for no text count in the
  // sum, but have no bytes.
  std::optional<double> bits_per_byte = {};
  bool ema = false;  // of the weights' average
};

struct RollbackMetrics {
  int64_t number = 0;  // of the run's rollbacks, from 1
  int64_t from_step = 0;
  double loss = 0;                           // of from_step
  int64_t first_left_out = 0, left_out = 0;  // samples
};

// `step 120/5000 2.4% | loss 3.2145 | gnorm 0.84 | lr 3.0e-4 | 412 ms (data 1%) | 57.1k tok/s | mfu 46.2% | mem 1.9/24
// GiB | eta 33m` eta_seconds < 0: not known yet ("eta -"). With a loss scale, ` | scale 65536` follows lr. Then,
// where a checkpoint has cost time or become durable, ` | checkpoint cost 12 ms` and ` | checkpoint durable after 1.3
// s`. A skipped step ends with " | SKIPPED (not finite)".
std::string format_step_line(const StepMetrics& metrics, int64_t total_steps, int64_t memory_bytes, double eta_seconds);

// Appends to OUT's files. Opening with resume_step >= 0 drops every record of a later step from metrics.jsonl and
// samples.jsonl (through
// a temporary file and rename) and starts a new TensorBoard event file whose first event purges later steps; -1 starts
// afresh: existing files (report.html among them) are moved aside to *.old-N, never overwritten. Throws Error(usage)
// when a file cannot be written. Each record is flushed whole, so a killed run leaves at most one cut line, at the end,
// which the next resume drops; other lines that are no records are kept aside.
class MetricsWriter {
 public:
  MetricsWriter(const std::filesystem::path& out, int64_t resume_step);
  // Of lines that resuming could not read, which are kept in metrics.jsonl.unreadable; empty if there are none.
  const std::string& warning() const;
  ~MetricsWriter();

  void write_step(const StepMetrics& metrics);  // full precision; NaN and infinities as null
  void write_validation(int64_t step, const ValidationMetrics& metrics);
  // The run has gone back to `step`.
  void write_rollback(int64_t step, const RollbackMetrics& metrics);
  // A text that the model wrote after `step`, to samples.jsonl.
  void write_sample(int64_t step, const std::string& prompt, const std::string& text);
  // What was written survives a crash of the machine after this. Called before a checkpoint is saved, so that no
  // checkpoint is ever ahead of its metrics.
  // Any thread, beside the others.
  // Begins metrics.jsonl anew where its path leads to it no more. Returns a warning then. Error(usage): it cannot.
  std::string begin_again_if_gone();
  void sync() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gptrain
