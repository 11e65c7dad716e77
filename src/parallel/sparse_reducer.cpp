#include "parallel/sparse_reducer.h"

#include <algorithm>
#include <cmath>

namespace gptrain::inline parallel {
namespace {

std::shared_ptr<const UnitLayout> lay_out_largest(const CodedUnit& unit, GradientMessages&) {
  auto sparse = std::make_shared<UnitSparse>();
  sparse->ranks = unit.range.pieces;
  for (const CodedTensor& tensor : unit.tensors) {
    const auto kept = static_cast<int64_t>(std::ceil(unit.compression.share * static_cast<double>(tensor.count)));
    const int64_t indices = sparse->message_bytes, values = indices + kept * dtype_bytes(DType::i32);
    sparse->matrices.push_back({.tensor = tensor.tensor,
                                .first = tensor.first,
                                .count = tensor.count,
                                .residual = tensor.residual,
                                .kept = kept,
                                .indices = indices,
                                .values = values});
    sparse->message_bytes = values + kept * dtype_bytes(DType::f32);
  }
  sparse->plain = plain_runs(unit.tensors, unit.range.elements, sparse->plain_elements);
  return sparse;
}

class SparseReducer final : public GradientReducer {
 public:
  SparseReducer(const ReductionContext& context, const GradientCompression& compression)
      : context_(context), compression_(compression) {}

  bool begins_with_ops() const override { return true; }

  Lane::Ticket begin(int64_t unit, int, const UnitGradients& of) override {
    if (!messages(unit).is_coded()) return plain_sum(context_, unit, of.whole, DType::f32);
    const UnitSparse& sparse = messages(unit).as<UnitSparse>();
    std::byte* const own = of.narrow + sparse.own_message();
    for (const SparseMatrix& matrix : sparse.matrices) select(matrix, of, own);
    copy_plain_runs(context_.backend, sparse.plain, of, true);
    Communicator* const replicas =
        context_.groups.group(LaneKind::gradients, kind_of(context_.parameters.layout().units[unit].replicas));
    Lane& lane = context_.groups.lane(LaneKind::gradients);
    const Lane::Ticket plain = lane.all_reduce(replicas, of.narrow, sparse.plain_elements, DType::f32);
    return std::max(plain,
                    lane.all_gather(replicas, own, of.narrow + sparse.message_of(0), sparse.message_bytes, DType::u8));
  }

  void finish(int64_t unit, const UnitGradients& of) override {
    const UnitSparse& sparse = messages(unit).as<UnitSparse>();
    for (const SparseMatrix& matrix : sparse.matrices) {
      const Matrix sum = floats(of.whole, matrix.first, matrix.count);
      context_.backend.run(WriteZeros{sum});
      for (int64_t rank = 0; rank < sparse.ranks; ++rank) add(matrix, of.narrow + sparse.message_of(rank), 1, sum);
    }
    copy_plain_runs(context_.backend, sparse.plain, of, false);
  }

  void end_step(int64_t unit) override {
    if (messages(unit).is_coded()) keep_errors(context_.backend, compression_, unit);
  }

 private:
  const UnitMessages& messages(int64_t unit) const { return compression_.messages.units[unit]; }

  static Matrix indices(const SparseMatrix& matrix, std::byte* message) {
    return {message + matrix.indices, DType::i32, 1, matrix.kept};
  }
  static Matrix values(const SparseMatrix& matrix, std::byte* message) {
    return {message + matrix.values, DType::f32, 1, matrix.kept};
  }

  void add(const SparseMatrix& matrix, std::byte* message, float factor, const Matrix& to) const {
    context_.backend.run(
        AddAt{.indices = indices(matrix, message), .values = values(matrix, message), .factor = factor, .to = to});
  }

  // Writes the matrix' largest elements to a message, and the others to the errors that this step leaves.
  void select(const SparseMatrix& matrix, const UnitGradients& of, std::byte* message) const {
    const Matrix x = floats(of.whole, matrix.first, matrix.count);
    const Matrix errors = floats(compression_.errors, matrix.residual, matrix.count);
    context_.backend.run(Add{.from = floats(compression_.residuals, matrix.residual, matrix.count), .to = x});
    context_.backend.run(SelectLargest{.x = x, .indices = indices(matrix, message), .values = values(matrix, message)});
    context_.backend.run(Cast{.from = x, .to = errors});
    add(matrix, message, -1, errors);
  }

  const ReductionContext context_;
  const GradientCompression compression_;
};

}  // namespace

const GradientSum sparse_sum{.takes = nullptr, .lay_out = lay_out_largest, .make_reducer = make_sparse_reducer};

std::unique_ptr<GradientReducer> make_sparse_reducer(const ReductionContext& context,
                                                     const GradientCompression& compression) {
  return std::make_unique<SparseReducer>(context, compression);
}

}  // namespace gptrain::parallel
