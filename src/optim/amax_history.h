// Amaxes of FP8 tensors over the last steps, from which linears take their scales (delayed scaling: RollAmaxes in
// ops/fp8_ops.h, fp8_amax_statistic). All ranks have the amaxes of the whole model, so any layout goes on with them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "config/run_config.h"
#include "optim/optimizer.h"

namespace gptrain::inline optim {

class AmaxHistory {
 public:
  struct Design {
    Design(const PrecisionConfig& precision, const ModelConfig& model, int64_t global_batch);

    int64_t length;      // steps; 0: there is no history
    int64_t num_layers;  // layers of the model
    int64_t tokens;      // tokens of a step
  };
  // `amaxes`: the statistic, in device memory. `tables`: device memory of table_bytes. Borrows the context's
  // references. Begins with restart().
  AmaxHistory(const UpdateContext& context, const Design& design, const Matrix& amaxes, std::byte* tables);

  static int64_t table_bytes(const Design& design);

  // RETURNS the amaxes by which the next step scales, in device memory.
  float* forecast() const { return forecast_.as<float>(); }
  // Forgets all steps. Scales are then 1 for inputs, and the number of tokens, rounded down to a power of two, for
  // gradients, which are those of a mean over the tokens.
  void restart() const;
  // Takes up the step's amaxes unless the step is skipped. Call after PrepareUpdate. REQUIRES: the ranks have agreed on
  // the statistic.
  void roll() const;

  // RETURNS the kept amaxes of the last of `updates` steps that were not skipped, the oldest first, and sets them.
  // `set` takes as many of the last as it keeps. THROWS Error(checkpoint) if these are not whole steps. REQUIRES: no
  // step runs.
  std::vector<float> get(int64_t updates) const;
  void set(const std::vector<float>& amaxes, int64_t updates) const;
  // RETURNS the number of amaxes of a step.
  int64_t count() const { return forecast_.cols; }

 private:
  UpdateContext context_;
  std::vector<float> first_;  // initial_
  Matrix amaxes_, history_, initial_, forecast_;
};

}  // namespace gptrain::optim
