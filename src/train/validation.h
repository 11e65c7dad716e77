// Validation in the course of a run: when it is due, and the loss.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "data/dataset.h"
#include "data/tokenizer/tokenizer.h"
#include "step/training_step.h"
#include "train/reporter.h"
#include "train/run_context.h"
#include "train/stop_request.h"

namespace gptrain::inline train {

// Every rank has one object and makes the same calls. Without validation data nothing is ever run.
class Validation {
 public:
  // Borrows all. `ring`: host memory for the micro-batches read ahead, prefetch_ring_bytes. `tokenizer` is the data's;
  // null if it is not known.
  Validation(const RunContext& context, const std::optional<Dataset>& data, const Tokenizer* tokenizer,
             TrainingStep& step, std::byte* ring, Reporter& reporter, StopRequest& stop);

  // Returns true if run.validate_every_steps asks for a validation after this step.
  bool is_due(int64_t step) const;
  // Rank 0 warns where the data hold fewer samples than run.validation_samples.
  void warn_of_repeats() const;
  // Evaluates the weights after `step`, or with run.validate_ema their average, which the first update begins, and
  // reports the loss; returns true at once if the step has been evaluated. Returns false if a stop left it out; a run
  // that resumes from the step does it then. THROWS Error(data) if data cannot be read, and
  // Error(diverged) if experts had no room for their rows (refuse_overflow). Collective over the world, while no step
  // is running.
  bool run(int64_t step);
  // Returns true if the loss of the last evaluation was not finite.
  bool is_lost() const { return lost_; }
  // Forgets the evaluated step. Call when the run has gone back.
  void forget() { validated_step_ = -1; }

 private:
  std::optional<double> evaluate();
  ValidationMetrics metrics_of(double sum, bool of_average);

  const RunContext& context_;
  const std::optional<Dataset>& data_;
  const Tokenizer* const tokenizer_;
  TrainingStep& step_;
  std::byte* const ring_;
  Reporter& reporter_;
  StopRequest& stop_;
  std::string fault_;  // the reason why some data could not be read
  int64_t validated_step_ = -1;
  bool lost_ = false;
  std::optional<int64_t> text_bytes_;  // bytes of the evaluated text; none: not rank 0, or not counted yet
};

}  // namespace gptrain::train
