// Shared parts of the optimizers' cases: segments, weights that an update writes, operands of a bench.
#pragma once

#include <cstdint>
#include <vector>

#include "harness.h"
#include "ops/updates.h"

namespace gptrain::ops_test {

// Returns segments with gaps, one with its own learning rate and one without decay.
std::vector<UpdateSegment> segments_of(int64_t size);
// Returns such segments of four tensors: the first tensor has two, one longer than the chunks that threads share; the
// second is without decay; the third has its own learning rate.
std::vector<UpdateSegment> segments_of_tensors(int64_t size, int64_t first_tensor);
constexpr int64_t elements_of(int64_t size) { return size + 256; }

// Output of an update: master weights, or weights without masters.
enum class Writes : uint8_t { masters, masters_and_weights, weights };

// The weights that an update changes, and their moving average.
class UpdatedWeights {
 public:
  // `dtype`: type of the weights if there are master weights as well.
  UpdatedWeights(Trial& trial, int64_t elements, Writes writes, DType dtype = DType::bf16);

  template <typename Op>
  void set_operands(Op& op) const {
    if (writes_ != Writes::weights) op.master = updated.matrix();
    if (writes_ == Writes::masters_and_weights) op.weights = beside_.matrix();
    if (writes_ == Writes::weights) op.weights = updated.matrix();
  }
  // Checks that elements of the `changed` segments are as expected and all others unchanged. Without master weights,
  // each weight must be one of the two bf16 numbers around the reference: the rounding does not depend on the formula,
  // and AdamW's cases check it.
  void expect(const std::vector<UpdateSegment>& changed, const std::vector<double>& expected,
              const std::vector<double>& plain) const;
  void expect_average(const std::vector<double>& expected, const std::vector<double>& plain) const;
  void expect_no_average() const { trial_.expect_equal("ema", ema, ema_before_); }

  Operand& updated;  // input of the update: master weights in f32, or weights in bf16
  Operand& ema;

 private:
  Trial& trial_;
  const Writes writes_;
  const DType dtype_;
  Operand& beside_;
  const std::vector<double> beside_before_, ema_before_;
};

constexpr int64_t bench_elements = 40'000'000;

// Returns `op` with one segment, gradients, master weights and columns.
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
