#include "parallel/low_rank_reducer.h"

#include <algorithm>
#include <vector>

#include "model/spec/tensor_key.h"
#include "parallel/low_rank_factors.h"

namespace gptrain::inline parallel {
namespace {

// Takes matrices whose factors have less than half of their elements.
bool has_small_factors(const CompressionConfig& compression, const TensorSpec& tensor) {
  const int64_t cols = tensor.shape.back(), rows = tensor.count() / cols;
  return 2 * (rows + cols) * compression.rank < tensor.count();
}

// Lays out the factors in the buffer of errors, behind the unit's errors, and in a sum's buffer.
std::shared_ptr<const UnitLayout> lay_out_factors(const CodedUnit& unit, GradientMessages& messages) {
  auto factors = std::make_shared<UnitFactors>();
  factors->alternates = unit.compression.alternate;
  const int64_t rank = unit.compression.rank;
  for (const CodedTensor& tensor : unit.tensors) {
    const int64_t cols = unit.spec.tensors[tensor.tensor].shape.back(), rows = tensor.count / cols;
    factors->matrices.push_back({.tensor = tensor.tensor,
                                 .first = tensor.first,
                                 .rows = rows,
                                 .cols = cols,
                                 .residual = tensor.residual,
                                 .factor = messages.num_residuals,
                                 .left = factors->first_phase,
                                 .right = factors->second_phase});
    const int64_t kept = factors->alternates ? cols + rows : cols;
    messages.boxes.push_back({.tensor = tensor.tensor,
                              .offset = {0, 0},
                              .shape = {rank, kept},
                              .first = messages.num_residuals,
                              .is_factor = true});
    messages.num_residuals += whole_units(kept * rank);
    factors->first_phase += whole_units(rows * rank);
    factors->second_phase += whole_units(cols * rank);
  }
  factors->first_plain = factors->first_phase;
  factors->plain = plain_runs(unit.tensors, unit.range.elements, factors->first_phase);
  for (LowRankMatrix& matrix : factors->matrices) matrix.right += factors->first_phase;
  return factors;
}

Matrix matrix_at(std::byte* elements, int64_t first, int64_t rows, int64_t cols) {
  return {elements + first * dtype_bytes(DType::f32), DType::f32, rows, cols};
}

class LowRankReducer final : public GradientReducer {
 public:
  LowRankReducer(const ReductionContext& context, const GradientCompression& compression)
      : context_(context), compression_(compression) {
    int64_t longest = 0;
    for (const UnitMessages& unit : compression.messages.units)
      for (const LowRankMatrix& matrix : unit.as<UnitFactors>().matrices)
        longest = std::max({longest, matrix.rows, matrix.cols});
    scratch_.resize(longest * compression.rank);
  }

  int phases(int64_t unit) const override { return messages(unit).is_coded() ? factors(unit).phases(true) : 1; }
  bool begins_with_ops() const override { return true; }

  Lane::Ticket begin(int64_t unit, int phase, const UnitGradients& of) override {
    const UnitFactors& sums = factors(unit);
    if (!messages(unit).is_coded()) return plain_sum(context_, unit, of.whole, DType::f32);
    const bool right_only = compression_.factors == FactorSums::right;
    for (const LowRankMatrix& matrix : sums.matrices) {
      if (phase == 0) add_errors(matrix, of);
      if (right_only) {
        take_factor(left_factor(compression_.residuals, matrix), left(matrix, of));
        find_right(matrix, of);
      } else if (phase == 0) {
        take_factor(factor(compression_.residuals, matrix), right(matrix, of));
        find_left(matrix, of);
      } else {
        find_right(matrix, of);
      }
    }
    if (phase == 1) return sum(unit, of, sums.first_phase, sums.second_phase);
    copy_plain_runs(context_.backend, sums.plain, of, true);
    if (right_only) return sum(unit, of, sums.first_plain, sums.first_phase - sums.first_plain + sums.second_phase);
    return sum(unit, of, 0, sums.first_phase);
  }

  void finish(int64_t unit, const UnitGradients& of) override {
    const double share = 1 / static_cast<double>(context_.parameters.replica_rank(unit).size);
    for (const LowRankMatrix& matrix : factors(unit).matrices) {
      const Matrix x = values(matrix, of), left_behind = errors(compression_.errors, matrix);
      multiply(matrix, of, left_behind);
      context_.backend.run(WeightedSum{.a = x, .a_factor = 1, .b = left_behind, .b_factor = -share, .to = left_behind});
      multiply(matrix, of, x);
      keep_factors(matrix, of);
    }
    copy_plain_runs(context_.backend, factors(unit).plain, of, false);
  }

  void end_step(int64_t unit) override {
    if (messages(unit).is_coded()) keep_errors(context_.backend, compression_, unit);
  }

 private:
  const UnitMessages& messages(int64_t unit) const { return compression_.messages.units[unit]; }
  const UnitFactors& factors(int64_t unit) const { return messages(unit).as<UnitFactors>(); }
  int64_t rank() const { return compression_.rank; }

  static Matrix values(const LowRankMatrix& matrix, const UnitGradients& of) {
    return matrix_at(of.whole, matrix.first, matrix.rows, matrix.cols);
  }
  static Matrix errors(std::byte* buffer, const LowRankMatrix& matrix) {
    return matrix_at(buffer, matrix.residual, matrix.rows, matrix.cols);
  }
  // If factors alternate, each row has a vector of the right factor, and behind it one of the left.
  Matrix factor(std::byte* buffer, const LowRankMatrix& matrix) const {
    if (compression_.factors == FactorSums::both) return matrix_at(buffer, matrix.factor, rank(), matrix.cols);
    return matrix_at(buffer, matrix.factor, rank(), matrix.cols + matrix.rows).column_range(0, matrix.cols);
  }
  Matrix left_factor(std::byte* buffer, const LowRankMatrix& matrix) const {
    return matrix_at(buffer, matrix.factor, rank(), matrix.cols + matrix.rows).column_range(matrix.cols, matrix.rows);
  }
  Matrix left(const LowRankMatrix& matrix, const UnitGradients& of) const {
    return matrix_at(of.narrow, matrix.left, rank(), matrix.rows);
  }
  Matrix right(const LowRankMatrix& matrix, const UnitGradients& of) const {
    return matrix_at(of.narrow, matrix.right, rank(), matrix.cols);
  }

  // A run with compressed sums keeps its gradients in f32, and so has no other use of these random numbers.
  void make_orthonormal(const LowRankMatrix& matrix, const Matrix& factor) {
    const TensorSpec& tensor = context_.parameters.spec().tensors[matrix.tensor];
    orthonormalise(factor, tensor_key(tensor, compression_.seed, RandomUse::gradient_rounding), scratch_,
                   context_.backend);
  }

  void add_errors(const LowRankMatrix& matrix, const UnitGradients& of) const {
    context_.backend.run(Add{.from = errors(compression_.residuals, matrix), .to = values(matrix, of)});
  }
  void take_factor(const Matrix& kept, const Matrix& to) const { context_.backend.run(Cast{.from = kept, .to = to}); }
  // Keeps the factors from which later steps begin. The one that this step has not summed stays as it was.
  void keep_factors(const LowRankMatrix& matrix, const UnitGradients& of) const {
    const FactorSums summed = compression_.factors;
    const Matrix new_right = factor(compression_.errors, matrix);
    if (summed == FactorSums::both) return take_factor(right(matrix, of), new_right);
    const Matrix new_left = left_factor(compression_.errors, matrix);
    const bool is_left = summed == FactorSums::left;
    take_factor(is_left ? factor(compression_.residuals, matrix) : right(matrix, of), new_right);
    take_factor(is_left ? left(matrix, of) : left_factor(compression_.residuals, matrix), new_left);
  }

  // With X the gradients, the rows of the factors are those of S^T, (X S)^T, L^T and (X^T L)^T. true_out is 0, as these
  // products are not part of the model's FLOPs.
  void find_left(const LowRankMatrix& matrix, const UnitGradients& of) {
    make_orthonormal(matrix, right(matrix, of));
    context_.backend.run(LinearForward{
        .x = right(matrix, of), .w = values(matrix, of), .bias = {}, .y = left(matrix, of), .true_out = 0});
  }
  void find_right(const LowRankMatrix& matrix, const UnitGradients& of) {
    make_orthonormal(matrix, left(matrix, of));
    context_.backend.run(
        LinearBackwardInput{.dy = left(matrix, of), .w = values(matrix, of), .dx = right(matrix, of), .true_out = 0});
  }
  // product = L R^T.
  void multiply(const LowRankMatrix& matrix, const UnitGradients& of, const Matrix& product) const {
    context_.backend.run(LinearBackwardWeight{.x = right(matrix, of),
                                              .dy = left(matrix, of),
                                              .dw = product,
                                              .d_bias = {},
                                              .accumulate = false,
                                              .true_out = 0});
  }

  Lane::Ticket sum(int64_t unit, const UnitGradients& of, int64_t first, int64_t count) const {
    Communicator* const replicas =
        context_.groups.group(LaneKind::gradients, kind_of(context_.parameters.layout().units[unit].replicas));
    return context_.groups.lane(LaneKind::gradients)
        .all_reduce(replicas, of.narrow + first * dtype_bytes(DType::f32), count, DType::f32);
  }

  const ReductionContext context_;
  const GradientCompression compression_;
  std::vector<float> scratch_;  // on the host: room for any factor
};

}  // namespace

const GradientSum low_rank_sum{
    .takes = has_small_factors, .lay_out = lay_out_factors, .make_reducer = make_low_rank_reducer};

std::unique_ptr<GradientReducer> make_low_rank_reducer(const ReductionContext& context,
                                                       const GradientCompression& compression) {
  return std::make_unique<LowRankReducer>(context, compression);
}

}  // namespace gptrain::parallel
