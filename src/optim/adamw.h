// AdamW over a rank's flat parameter buffers, unit by unit, behind the global gradient norm.
#pragma once

#include <cstddef>
#include <cstdint>

#include "config/run_config.h"
#include "model/spec/layout.h"
#include "model/spec/spec.h"
#include "ops/backend.h"
#include "parallel/executor.h"

namespace gptrain {

// The flat buffers that the optimizer works on, each of layout.elements elements.
struct OptimizerMemory {
  std::byte* master = nullptr;      // f32
  std::byte* exp_avg = nullptr;     // f32
  std::byte* exp_avg_sq = nullptr;  // f32
  std::byte* gradients = nullptr;   // f32
  std::byte* weights = nullptr;     // compute dtype; null where the master is the weight (f32 training)
  std::byte* tables = nullptr;      // AdamWRule::table_bytes of them
};

class AdamWRule : public UpdateRule {
 public:
  // Uploads the segment tables. Decay applies to the tensors that the spec says decay.
  AdamWRule(const OptimizerConfig& config, DType weight_dtype, const ModelSpec& spec, const ParameterLayout& layout,
            OptimizerMemory memory, StepState* state, Backend& backend);

  // Norm partials and segment tables.
  static int64_t table_bytes(const ModelSpec& spec);

  void norm() override;
  void update(int64_t unit) override;

 private:
  struct Tables {
    double* partials;
    SquaredNorm::Segment* norm_segments;
    AdamW::Segment* update_segments;
  };
  static Tables tables_at(std::byte* memory, int64_t num_tensors);

  OptimizerConfig config_;
  DType weight_dtype_;
  const ParameterLayout& layout_;
  OptimizerMemory memory_;
  Tables tables_;
  StepState* state_;
  Backend& backend_;
};

}  // namespace gptrain
