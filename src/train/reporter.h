// What a run tells: lines on standard output, warnings on standard error, metrics, the profile and the report page.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "step/machine_limits.h"
#include "step/step_profile.h"
#include "step/step_profiler.h"
#include "step/training_step.h"
#include "train/folder.h"
#include "train/metrics.h"
#include "train/run_context.h"
#include "train/run_state.h"

namespace gptrain {

// A step that has begun: what its result is reported with.
struct BegunStep {
  double lr;
  double data_seconds;  // waiting for data
};

// A run that has gone back.
struct RollbackReport {
  int64_t number;  // of the run's rollbacks, from 1
  int64_t from_step, to_step;
  double loss;  // of from_step
  SampleRange left_out;
  std::string reason;
};

// Every rank has one and calls it alike; only rank 0 writes. Files go to where the folder is (FolderWatch::out). What
// cannot be added to the metrics becomes the folder's fault, and the run goes on to its next chance to stop; other
// files that cannot be written are an Error(usage).
class Reporter {
 public:
  // Borrows all but `limits`, which are this rank's. `last_step`: of this call of gptrain. Collective over the world.
  Reporter(const RunContext& context, FolderWatch& folder, const TrainingStep& step, const MachineLimits& limits,
           int64_t last_step);

  // Finds what the ranks have taken, once each has taken all. Collective over the world. Before `open`. As in a dry
  // run, the first ranks of the data axis stand for the others, which differ in the tables of their pieces only.
  void find_memory();
  // Opens the metrics and writes config.json and run.json. `resumed_step`: the step that the run goes on from; -1: it
  // starts from scratch. Not collective. Before any of what follows, `announce` and `warn` apart.
  void open(int64_t resumed_step);
  // Rank 0 begins files anew that somebody has removed, with a warning. Error(usage): it cannot.
  void look_for_files();

  // What the run computes on, and what of that is unwise.
  void announce() const;
  // What the backend has to say since the last call.
  void warn() const;

  // After a step; `progress` counts it. A line and a record where log.every_steps or the result asks for them.
  void report_step(const RunProgress& progress, const StepResult& result, const BegunStep& begun);
  // Of so many sequences, after a step.
  void report_validation(int64_t step, const ValidationMetrics& metrics, int64_t sequences);
  // A text that the model wrote after a step, the prompt apart.
  void report_sample(int64_t step, const std::string& prompt, const std::string& text);
  // A line and a record; the records of later steps than the one that it goes back to are dropped.
  void report_rollback(const RollbackReport& report);
  // A table on standard output, and trace-stepN.json. Error(usage).
  void report_profile(const StepProfile& profile) const;

  // Of checkpoints: the seconds that the loop has waited for one, and those until one was durable. The next step that
  // is reported shows them.
  void note_checkpoint_cost(double seconds);
  void note_durable(double seconds) { durable_seconds_ = seconds; }

  // What has been recorded survives a crash of the machine from here on. Any thread. Returns why it does not, else
  // nothing.
  std::string sync_metrics() const;
  // Whether the metrics hold a validation after this step. Collective over the world; the same on all ranks.
  bool has_validation(int64_t step) const;
  // report.html, of all metrics so far. Error(usage).
  void write_page() const;

 private:
  std::string pipeline_text() const;
  void warn_of_spread_tensor_groups() const;

  const RunContext& context_;
  FolderWatch& folder_;
  const TrainingStep& step_;
  const MachineLimits limits_;
  const int64_t last_step_;
  const double model_flops_per_step_;
  double total_matrix_flops_;        // of all ranks, FLOP/s
  MemoryPlan taken_;                 // of the rank that takes the most, as find_memory finds it
  double average_step_seconds_ = 0;  // 0: no step yet
  std::optional<double> checkpoint_cost_seconds_, durable_seconds_;  // not reported yet
  std::optional<MetricsWriter> metrics_;                             // on rank 0, once open
};

}  // namespace gptrain
