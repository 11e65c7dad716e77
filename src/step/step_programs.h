// The programs that a run's steps play.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "config/run_config.h"
#include "parallel/program.h"

namespace gptrain::inline step {

// A program that some steps of a run play.
struct StepProgram {
  std::string_view name;
  int64_t first_step = 0;     // steps of the run before its first one
  bool compresses = false;    // sums gradients in messages
  bool sums_right = false;    // if factors alternate: sums right factors
  bool over_islands = false;  // with parallel.local_steps or zero_node_copy: sums gradients over all islands
  bool is_alone = false;      // does not sum the gradients of units that compressed sums would code
  bool averages = false;      // averages the weights at its end
  std::shared_ptr<const Program> program = nullptr;
};

// Returns the programs of a run of `steps` steps, not yet made. `compresses`: the rank sends compressed gradients.
std::vector<StepProgram> programs_of(const StepConfig& config, int64_t steps, bool compresses);

// Returns the index in `programs` of the step that comes after `done` of a run's `steps`.
size_t program_after(const StepConfig& config, int64_t steps, const std::vector<StepProgram>& programs, int64_t done);

}  // namespace gptrain::step
