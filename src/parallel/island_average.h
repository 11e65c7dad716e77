// Averages of weights over islands of data ranks (parallel.local_steps).
#pragma once

#include <cstdint>
#include <string_view>

#include "config/run_config.h"
#include "ops/backend.h"
#include "parallel/groups.h"
#include "parallel/parameters.h"

namespace gptrain::inline parallel {

// Name of the column with the momentum of the outer step. It is the same on all islands.
inline constexpr std::string_view outer_momentum_column = "outer_momentum";

// Returns the column of a config with outer momentum; empty for others.
StateColumns outer_columns(const LocalStepsConfig& config);

// Makes weights that ranks have updated alone the same on all of them.
class WeightAverage {
 public:
  virtual ~WeightAverage() = default;
  // Averages a unit and waits. Collective over the ranks that have updated it alone. REQUIRES: its update is over.
  virtual void average(int64_t unit) = 0;
  // Takes the present weights as those of the last averaging.
  virtual void restart() = 0;
};

// Averages the f32 weights of a unit over the islands. With `average` the mean of the islands' weights W is the new
// weight. With `nesterov` (DiLoCo, arXiv 2311.08105), where A are the weights after the last averaging:
//   D = mean(A - W), V = outer_momentum V + D, W = A = A - outer_lr (D + outer_momentum V).
// Gradients that the update has read are overwritten. All islands have the same bits afterwards.
class IslandAverage final : public WeightAverage {
 public:
  // `anchors`: memory for anchor_elements() f32 values, with `nesterov`, else null. Borrows all.
  IslandAverage(const LocalStepsConfig& config, const ParameterStore& parameters, RankGroups& groups, Backend& backend,
                float* anchors);
  // Returns the number of elements that the rank updates.
  static int64_t anchor_elements(const ParameterStore& parameters);

  void average(int64_t unit) override;
  void restart() override;

 private:
  Matrix anchor(int64_t unit) const;
  void sum(const Matrix& values) const;

  const LocalStepsConfig config_;
  const ParameterStore& parameters_;
  RankGroups& groups_;
  Backend& backend_;
  float* const anchors_;
};

}  // namespace gptrain::parallel
