// What the updates of all optimizers that work element by element have in common.
//
// An update is an op that derives from ElementUpdate and has a class Formula, which says what becomes of one element.
// The backends' kernels are templates over the formula, so that a new optimizer is one header like ops/sgd.h and its
// name in ops/updates.h. A formula derives from UpdateFactors, or has itself
//   begin_step(const StepState& state)              called where the state lies, on a device by the device;
//   begin_segment(const UpdateSegment& segment)     on a copy of the formula: the segment's learning rate and decay;
// and it has
//   Formula(const Op& op)                           made on the host: everything that is the same in every step;
//   updated(gradient, weight, column&...) -> float  the new weight; the columns become those after the update.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/matrix.h"
#include "base/philox.h"
#include "ops/step_state.h"

// On functions of a formula. They are part of kernels that are compiled for several instruction sets, so that no copy
// of their own may be left in an object (see cpu/kernels/isa.h).
#ifdef __CUDACC__
#define GPTRAIN_FORMULA __host__ __device__
#else
#define GPTRAIN_FORMULA [[gnu::always_inline]] inline
#endif

namespace gptrain {

// From the elements of a range in memory, row after row of `cols`, to the tensor that they are a box of: element i of
// the range is element index(i) of the global tensor in row-major order, whose rows are `stride` elements apart.
struct IndexMap {
  int64_t origin = 0;  // index of the box's first element
  int64_t first = 0;   // of the range, in the box
  int64_t cols = 1;    // of the box; equal to stride where rows follow one another in the tensor, too
  int64_t stride = 1;

  constexpr int64_t index(int64_t i) const {
    return origin + (cols == stride ? first + i : (first + i) / cols * stride + (first + i) % cols);
  }
};

// A tensor's part of the range that is updated.
struct UpdateSegment {
  int64_t offset;  // elements from the range's start
  int64_t count;
  int32_t decay;          // 0 or 1: weight decay applies
  float rate_factor = 1;  // of the step's learning rate; weights decay by the rate without it
  // What rounding draws by; without effect where there are masters.
  PhiloxKey key = {};
  IndexMap map = {};
  int64_t tensor = 0;  // its index in the model, for updates that read sums of whole tensors (ops/tensor_norms.h)
};

// An update has at most so many columns of state.
constexpr size_t most_update_columns = 3;

// A flat range of elements. Nothing is written when state->skip. Gradients are multiplied with state->gradient_scale.
// `weights`, where given, receives the updated master weights rounded to C. Elements outside every segment (padding
// between tensors) are left alone.
//
// Without masters `weights` is what is updated: read, computed with in f32, and rounded stochastically (base/dtype.h).
// To nearest, an update below half the distance to the next bf16 number, 2^-9 to 2^-8 of the weight, would be lost
// every time (arXiv 2010.06192). Element e of a tensor draws word (e % 4) of philox(segment.key, {low(e / 4),
// high(e / 4), low(u), high(u)}), u = state->updates: the same on every layout and backend, and after a resume.
struct ElementUpdate {
  using Segment = UpdateSegment;
  static constexpr bool takes_bf16_gradients = false;
  const Segment* segments = nullptr;  // device memory
  int64_t num_segments = 0;
  const StepState* state = nullptr;
  Matrix gradients;  // [1, elements] f32; where the op takes_bf16_gradients, also bf16
  Matrix master;     // [1, elements] f32, or not given
  std::array<Matrix, most_update_columns>
      columns;  // [1, elements] f32 each, in and out; the first num_columns are given
  // [1, elements] C, or not given (f32 training: the master is the weight). Without masters bf16, in and out.
  Matrix weights;
};

// What formulas take from the step and from the segment.
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
  float scale_ = 0;  // of gradients
  float rate_ = 0;   // learning rate
  float decay_ = 0;  // the step's learning rate times weight decay

 private:
  double weight_decay_;
};

}  // namespace gptrain
