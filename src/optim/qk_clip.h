// QK-clip: bounds attention scores by scaling the weights of queries and keys after their update (ops/clip_heads.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/clip_heads.h"
#include "optim/optimizer.h"

namespace gptrain::inline optim {

// The clip of a step's weights by the largest score of every query head of the model (head_scores_statistic).
class QkClip {
 public:
  // Uploads its segments to `tables`, device memory of table_bytes. `scores`: [1, layers x heads] f32 in device memory.
  // Borrows the context's references.
  QkClip(const UpdateContext& context, double threshold, const Matrix& scores, std::byte* tables);

  // Returns the bytes of `tables`: a segment for each part of a head's weights on this rank.
  static int64_t table_bytes(const ParameterStore& parameters);

  double threshold() const { return threshold_; }
  const Matrix& scores() const { return scores_; }
  // Scales this rank's part of the unit's weights (StepUpdate calls it after Optimizer::update). REQUIRES: the unit is
  // updated, and the ranks have agreed on the scores.
  void clip(int64_t unit) const;

 private:
  UpdateContext context_;
  double threshold_;
  Matrix scores_;
  const HeadSegment* segments_;         // device memory, unit after unit
  std::vector<int64_t> first_segment_;  // by unit, then the end
};

}  // namespace gptrain::optim
