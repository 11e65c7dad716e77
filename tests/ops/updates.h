// What the cases of optimizers share: segments, weights that an update writes, operands to time it with.
#pragma once

#include <cstdint>
#include <vector>

#include "harness.h"
#include "ops/updates.h"

namespace gptrain::ops_test {

// Segments with gaps between them, one of a learning rate of its own, and one that does not decay.
std::vector<UpdateSegment> segments_of(int64_t size);
// The same of four tensors: the first in two segments, one of them of more than one of the chunks that threads share,
// the second without decay, the third with a learning rate of its own, and one more.
std::vector<UpdateSegment> segments_of_tensors(int64_t size, int64_t first_tensor);
constexpr int64_t elements_of(int64_t size) { return size + 256; }

// What an update writes: masters, or weights without masters.
enum class Writes : uint8_t { masters, masters_and_weights, weights };

// Weights of an update, and their average.
class UpdatedWeights {
 public:
  // `dtype` is that of weights beside masters.
  UpdatedWeights(Trial& trial, int64_t elements, Writes writes, DType dtype = DType::bf16);

  template <typename Op>
  void set_operands(Op& op) const {
    if (writes_ != Writes::weights) op.master = updated.matrix();
    if (writes_ == Writes::masters_and_weights) op.weights = beside_.matrix();
    if (writes_ == Writes::weights) op.weights = updated.matrix();
  }
  // Elements of the `changed` segments are as expected, all others as before. Where there are no masters, each weight
  // is one of the two bf16 numbers around the reference: the rounding itself does not depend on the formula, and the
  // cases of AdamW look at it.
  void expect(const std::vector<UpdateSegment>& changed, const std::vector<double>& expected,
              const std::vector<double>& plain) const;
  void expect_average(const std::vector<double>& expected, const std::vector<double>& plain) const;
  void expect_no_average() const { trial_.expect_equal("ema", ema, ema_before_); }

  Operand& updated;  // what the update reads: masters in f32, or weights in bf16
  Operand& ema;

 private:
  Trial& trial_;
  const Writes writes_;
  const DType dtype_;
  Operand& beside_;
  const std::vector<double> beside_before_, ema_before_;
};

constexpr int64_t bench_elements = 40'000'000;

// `op` with one segment, gradients, masters and columns.
template <typename Op>
Op bench_operands(Trial& trial, Op op) {
  StepState state;
  state.updates = 1;
  set_segments(trial, op, {{0, bench_elements, 1}}, state);
  op.gradients = trial.in_out(DType::f32, 1, bench_elements, 0).matrix();
  op.master = trial.in_out(DType::f32, 1, bench_elements, 0).matrix();
  for (size_t i = 0; i < Op::num_columns; ++i) op.columns[i] = trial.in_out(DType::f32, 1, bench_elements, 0).matrix();
  return op;
}

}  // namespace gptrain::ops_test
