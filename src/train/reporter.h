// Output of a run: lines on standard output, warnings on standard error, metrics, the profile and the report page.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "step/machine_limits.h"
#include "step/step_profile.h"
#include "step/step_profiler.h"
#include "step/training_step.h"
#include "train/begun_step.h"
#include "train/folder.h"
#include "train/metrics.h"
#include "train/routing.h"
#include "train/run_context.h"
#include "train/run_state.h"

namespace gptrain::inline train {

// A run that has gone back.
struct RollbackReport {
  int64_t number;  // 1 is the run's first rollback
  int64_t from_step, to_step;
  double loss;  // loss of from_step
  SampleRange left_out;
  std::string reason;
};

// Every rank has one object and makes the same calls; only rank 0 writes. Files go to FolderWatch::out. If metrics
// cannot be written, FolderWatch keeps the fault and the run goes on to its next chance to stop; for other files
// Error(usage) is thrown.
class Reporter {
 public:
  // Borrows all but `limits`, which are this rank's. `last_step` is the last step of this call of gptrain. Collective
  // over the world.
  Reporter(const RunContext& context, FolderWatch& folder, const TrainingStep& step, const MachineLimits& limits,
           int64_t last_step);

  // Finds the memory that the ranks have allocated. REQUIRES: every rank has allocated all its memory, and `open` was
  // not called. Collective over the world. As in a dry run, the first ranks of the data axis stand for the others,
  // which differ only in the tables of their pieces.
  void collect_memory();
  // Opens the metrics and writes config.json and run.json. `resumed_step` is the step that the run resumes from; -1: it
  // starts from scratch. Not collective. REQUIRES: called before the functions below except `announce` and `warn`.
  void open(int64_t resumed_step);
  // Starts files anew that somebody has removed, with a warning, on rank 0. THROWS Error(usage) if it cannot.
  void look_for_files();

  // Prints the hardware and layout of the run, and warns of an unwise layout.
  void announce() const;
  // Prints the backend's warnings since the last call.
  void warn() const;

  // Reports a step that `progress` includes: a line and a record if log.every_steps or the result asks for them.
  void report_step(const RunProgress& progress, const StepResult& result, const BegunStep& begun);
  // Reports a validation on `sequences` sequences after a step.
  void report_validation(int64_t step, const ValidationMetrics& metrics, int64_t sequences);
  // Reports a text that the model generated after a step; `text` leaves out the prompt.
  void report_sample(int64_t step, const std::string& prompt, const std::string& text);
  // Reports a rollback by a line and a record, and drops the records of steps later than the one that the run goes back
  // to.
  void report_rollback(const RollbackReport& report);
  // Prints the profile as a table and writes trace-stepN.json. THROWS Error(usage).
  void report_profile(const StepProfile& profile) const;

  // Note the seconds that the loop has waited for a checkpoint, and those until one was durable. The next reported step
  // shows them.
  void note_checkpoint_cost(double seconds);
  void note_durable(double seconds) { durable_seconds_ = seconds; }

  // Makes the metrics so far survive a crash of the machine. Any thread. Returns the error if that fails, else empty.
  std::string sync_metrics() const;
  // Returns true if the metrics hold a validation after this step. Collective over the world; the same on all ranks.
  bool has_validation(int64_t step) const;
  // Writes report.html from all metrics so far. THROWS Error(usage).
  void write_page() const;

 private:
  void describe_run() const;
  std::string pipeline_text() const;
  void warn_of_spread_tensor_groups() const;

  const RunContext& context_;
  FolderWatch& folder_;
  const TrainingStep& step_;
  const MachineLimits limits_;
  const int64_t last_step_;
  const double model_flops_per_step_;
  double total_matrix_flops_;        // sum over all ranks, FLOP/s
  MemoryPlan taken_;                 // memory of the rank that uses the most, set by collect_memory
  double average_step_seconds_ = 0;  // 0: no step yet
  StarvingExperts starving_;
  std::optional<double> checkpoint_cost_seconds_, durable_seconds_;  // none: nothing to report
  std::optional<MetricsWriter> metrics_;                             // set by `open` on rank 0
};

}  // namespace gptrain::train
