#include "step/step_programs.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "config/zero_one_steps.h"

namespace gptrain::inline step {
namespace {

std::string_view name_of(ZeroOneStep step) {
  constexpr std::array<std::string_view, 4> names = {"variance", "moment", "local", "exchange"};
  return names[static_cast<size_t>(step)];
}

// Returns the programs of zero-one-adam for those kinds of steps that the run has. The last one is that of its end.
std::vector<StepProgram> zero_one_programs(const OptimizerConfig& optimizer, int64_t steps) {
  const ZeroOneCounts counts = count_zero_one_steps(optimizer, steps);
  const int64_t first = optimizer.freeze_step;
  std::vector<StepProgram> programs;
  if (counts.variance > 0) programs.push_back({.name = name_of(ZeroOneStep::variance)});
  if (counts.moment > 0) programs.push_back({.name = name_of(ZeroOneStep::moment), .compresses = true});
  if (counts.exchange > 0)
    programs.push_back(
        {.name = name_of(ZeroOneStep::exchange), .first_step = first, .is_alone = true, .averages = true});
  if (counts.local > 0)
    programs.push_back({.name = name_of(ZeroOneStep::local), .first_step = first, .is_alone = true});
  return programs;
}

// Whether the step after `done` steps sums right factors, as every second one of the steps with compressed sums does.
bool sums_right(const StepConfig& config, int64_t done) {
  return std::abs(done - config.compression().start_step) % 2 == 1;
}

template <typename Is>
size_t find_program(const std::vector<StepProgram>& programs, const Is& is) {
  return static_cast<size_t>(std::find_if(programs.begin(), programs.end(), is) - programs.begin());
}

}  // namespace

std::vector<StepProgram> programs_of(const StepConfig& config, int64_t steps, bool compresses) {
  std::vector<StepProgram> programs;
  if (const LocalStepsConfig& local = config.parallel.local_steps; local.is_on()) {
    if (local.start_step > 0) programs.push_back({.name = "warm-up", .over_islands = true});
    programs.push_back({.name = "averaging", .first_step = local.start_step, .averages = true});
    if (local.every > 1) programs.push_back({.name = "local", .first_step = local.start_step});
    return programs;
  }
  if (config.optimizer.type == OptimizerKind::zero_one_adam) return zero_one_programs(config.optimizer, steps);
  const int64_t start = config.compression().start_step;
  if (compresses && start > 0) programs.push_back({.name = "warm-up"});
  if (compresses && config.compression().alternate) {
    for (const int64_t before_end : {1, 0}) {
      const bool is_right = sums_right(config, steps - 1 - before_end);
      programs.push_back(
          {.name = is_right ? "right" : "left", .first_step = start, .compresses = true, .sums_right = is_right});
    }
    return programs;
  }
  programs.push_back({.name = "main",
                      .first_step = compresses ? start : 0,
                      .compresses = compresses,
                      .over_islands = config.parallel.zero_node_copy});
  return programs;
}

size_t program_after(const StepConfig& config, int64_t steps, const std::vector<StepProgram>& programs, int64_t done) {
  if (const LocalStepsConfig& local = config.parallel.local_steps; local.is_on()) {
    const bool is_warm_up = done < local.start_step, averages = local.are_equal_after(done + 1, steps);
    return find_program(programs, [&](const StepProgram& program) {
      return program.over_islands == is_warm_up && program.averages == (!is_warm_up && averages);
    });
  }
  if (config.optimizer.type == OptimizerKind::zero_one_adam)
    return find_program(programs, [name = name_of(zero_one_step(config.optimizer, done, steps))](
                                      const StepProgram& program) { return program.name == name; });
  if (config.compression().alternate && programs.back().compresses && done >= config.compression().start_step)
    return find_program(programs, [is_right = sums_right(config, done)](const StepProgram& program) {
      return program.compresses && program.sums_right == is_right;
    });
  size_t number = programs.size() - 1;
  while (number > 0 && programs[number].first_step > done) --number;
  return number;
}

}  // namespace gptrain::step
