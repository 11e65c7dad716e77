#include "planner/run_speed.h"

namespace gptrain::inline planner {

RunSpeed run_speed(const StepConfig& config, int64_t steps, const Target& target, const OpTable& ops,
                   int64_t world_size, double step_seconds) {
  OpTotals step;
  for (const OpTotals& op : ops) step += op;
  const auto ranks = static_cast<double>(world_size);
  const double rate = config.precision.compute == DType::f32 ? target.f32_flops : target.bf16_flops;
  RunSpeed speed{};
  speed.tokens_per_second = static_cast<double>(config.batch.global * config.model.sequence_length) / step_seconds;
  speed.tokens_per_gpu = speed.tokens_per_second / ranks;
  speed.model_flops_per_gpu = static_cast<double>(step.model_flops) / step_seconds / ranks;
  speed.hardware_flops_per_gpu = static_cast<double>(step.executed_flops) / step_seconds / ranks;
  speed.mfu = speed.model_flops_per_gpu / rate;
  speed.hfu = speed.hardware_flops_per_gpu / rate;
  speed.gpu_hours = step_seconds * static_cast<double>(steps) * ranks / 3600;
  return speed;
}

}  // namespace gptrain::planner
