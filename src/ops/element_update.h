// Base of the updates of optimizers that work element by element.
//
// An update is an op that derives from ElementUpdate and has a class Formula, which updates one element. The backends'
// kernels are templates over the formula, so a new optimizer needs one header like ops/sgd.h and its name in
// ops/updates.h. A formula derives from UpdateFactors, or defines
//   begin_step(const StepState& state)              called in the state's memory: on a GPU by the kernel;
//   begin_segment(const UpdateSegment& segment)     called on a copy of the formula; sets the segment's rate and decay;
// It always defines
//   Formula(const Op& op)                           called on the host; stores all that is the same in every step;
//   updated(gradient, weight, column&...) -> float  returns the new weight and updates the columns.
// An element's update has the same bits on every instruction set and GPU: a product in a sum is written with `fused`
// (ops/fused.h), and the kernels are compiled without contraction of floating-point expressions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/matrix.h"
#include "base/philox.h"
#include "ops/fused.h"
#include "ops/step_state.h"

namespace gptrain::inline ops {

// Maps elements of a range in memory to elements of the global tensor. The range is part of a box of the tensor, stored
// in rows of `cols` elements; rows of the tensor are `stride` elements apart. Element i of the range is element
// index(i) of the tensor in row-major order.
struct IndexMap {
  int64_t origin = 0;  // index of the box's first element
  int64_t first = 0;   // elements of the box before the range
  int64_t cols = 1;    // width of the box; equal to stride if its rows are contiguous in the tensor
  int64_t stride = 1;

  constexpr int64_t index(int64_t i) const {
    return origin + (cols == stride ? first + i : (first + i) / cols * stride + (first + i) % cols);
  }
};

// A tensor's part of the updated range.
struct UpdateSegment {
  int64_t offset;  // elements from the range's start
  int64_t count;
  int32_t decay;          // 0 or 1: weight decay applies
  float rate_factor = 1;  // factor of the step's learning rate; weight decay uses the rate without it
  // Philox key of the stochastic rounding of weights without masters; not used with masters.
  PhiloxKey key = {};
  IndexMap map = {};
  int64_t tensor = 0;  // tensor's index in the model, for updates that read sums of whole tensors (ops/tensor_norms.h)
};

// Largest number of state columns of an update.
constexpr size_t most_update_columns = 3;

// Operands of an update of a flat range of elements. Nothing is written if state->skip. Gradients are multiplied by
// state->gradient_scale. `weights`, if given, receives the updated master weights rounded to C. Elements outside every
// segment (padding between tensors) do not change.
//
// Without masters, `weights` itself is updated: computed in f32 and rounded stochastically (base/dtype.h). Rounding to
// nearest would lose every update below half the distance to the next bf16 number, 2^-9 to 2^-8 of the weight (arXiv
// 2010.06192). Element e of a tensor uses word (e % 4) of philox(segment.key, {low(e / 4), high(e / 4), low(u),
// high(u)}), u = state->updates: the same on every layout and backend, and after a resume.
struct ElementUpdate {
  using Segment = UpdateSegment;
  static constexpr bool takes_bf16_gradients = false;
  const Segment* segments = nullptr;  // device memory
  int64_t num_segments = 0;
  const StepState* state = nullptr;
  Matrix gradients;  // [1, elements] f32, or bf16 if the op takes_bf16_gradients
  Matrix master;     // [1, elements] f32, or not given
  std::array<Matrix, most_update_columns>
      columns;  // [1, elements] f32 each, in and out; the first num_columns are given
  // With masters: [1, elements] C, out, or not given (f32 training, where masters are the weights). Without masters:
  // bf16, in and out.
  Matrix weights;
};

// Factors that a formula takes from the step and from the segment.
class UpdateFactors {
 public:
  explicit UpdateFactors(double weight_decay) : weight_decay_(weight_decay) {}

  GPTRAIN_FORMULA void begin_step(const StepState& state) {
    scale_ = state.gradient_scale;
    rate_ = state.learning_rate;
  }

  GPTRAIN_FORMULA void begin_segment(const UpdateSegment& segment) {
    decay_ = segment.decay != 0 ? static_cast<float>(static_cast<double>(rate_) * weight_decay_) : 0.0F;
    rate_ *= segment.rate_factor;
  }

 protected:
  float scale_ = 0;  // factor of gradients
  float rate_ = 0;   // learning rate
  float decay_ = 0;  // the step's learning rate times weight decay

 private:
  double weight_decay_;
};

}  // namespace gptrain::ops
