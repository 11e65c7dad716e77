#include "parallel/sketch_reducer.h"

#include <cmath>

#include "model/spec/tensor_key.h"

namespace gptrain::inline parallel {
namespace {

std::shared_ptr<const UnitLayout> lay_out_sketches(const CodedUnit& unit, GradientMessages&) {
  auto layout = std::make_shared<UnitSketches>();
  for (const CodedTensor& tensor : unit.tensors) {
    const auto kept = static_cast<int64_t>(std::ceil(unit.compression.share * static_cast<double>(tensor.count)));
    SketchedMatrix& matrix = layout->matrices.emplace_back(SketchedMatrix{.tensor = tensor.tensor,
                                                                          .first = tensor.first,
                                                                          .count = tensor.count,
                                                                          .residual = tensor.residual,
                                                                          .rows = unit.compression.rank,
                                                                          .columns = 2 * kept,
                                                                          .kept = kept,
                                                                          .table = layout->first_phase,
                                                                          .values = layout->second_phase,
                                                                          .indices = 0});
    layout->first_phase += whole_units(matrix.rows * matrix.columns);
    layout->second_phase += kept;
  }
  layout->plain = plain_runs(unit.tensors, unit.range.elements, layout->first_phase);
  for (SketchedMatrix& matrix : layout->matrices) {
    matrix.values += layout->first_phase;
    matrix.indices = matrix.values + layout->second_phase;
  }
  return layout;
}

class SketchReducer final : public GradientReducer {
 public:
  SketchReducer(const ReductionContext& context, const GradientCompression& compression)
      : context_(context), compression_(compression) {}

  int phases(int64_t unit) const override { return messages(unit).is_coded() ? 2 : 1; }
  bool begins_with_ops() const override { return true; }

  Lane::Ticket begin(int64_t unit, int phase, const UnitGradients& of) override {
    if (!messages(unit).is_coded()) return plain_sum(context_, unit, of.whole, DType::f32);
    const auto& layout = messages(unit).as<UnitSketches>();
    for (const SketchedMatrix& matrix : layout.matrices) {
      if (phase == 0) {
        sketch(matrix, of);
      } else {
        select(matrix, of);
      }
    }
    if (phase == 1) return sum(unit, of, layout.first_phase, layout.second_phase);
    copy_plain_runs(context_.backend, layout.plain, of, true);
    return sum(unit, of, 0, layout.first_phase);
  }

  void finish(int64_t unit, const UnitGradients& of) override {
    const auto& layout = messages(unit).as<UnitSketches>();
    for (const SketchedMatrix& matrix : layout.matrices) {
      context_.backend.run(WriteZeros{gradients(matrix, of)});
      add(matrix, of, 1, gradients(matrix, of));
    }
    copy_plain_runs(context_.backend, layout.plain, of, false);
  }

  void end_step(int64_t unit) override {
    if (messages(unit).is_coded()) keep_errors(context_.backend, compression_, unit);
  }

 private:
  const UnitMessages& messages(int64_t unit) const { return compression_.messages.units[unit]; }

  static Matrix gradients(const SketchedMatrix& matrix, const UnitGradients& of) {
    return floats(of.whole, matrix.first, matrix.count);
  }
  static Matrix table(const SketchedMatrix& matrix, const UnitGradients& of) {
    return {of.narrow + matrix.table * dtype_bytes(DType::f32), DType::f32, matrix.rows, matrix.columns};
  }
  static Matrix values(const SketchedMatrix& matrix, const UnitGradients& of) {
    return floats(of.narrow, matrix.values, matrix.kept);
  }
  static Matrix indices(const SketchedMatrix& matrix, const UnitGradients& of) {
    return {of.narrow + matrix.indices * dtype_bytes(DType::i32), DType::i32, 1, matrix.kept};
  }
  Matrix errors(const SketchedMatrix& matrix) const {
    return floats(compression_.errors, matrix.residual, matrix.count);
  }

  // A run with compressed sums keeps its gradients in f32, and so has no other use of these random numbers.
  PhiloxKey key(const SketchedMatrix& matrix) const {
    return tensor_key(context_.parameters.spec().tensors[matrix.tensor], compression_.seed,
                      RandomUse::gradient_rounding);
  }

  void add(const SketchedMatrix& matrix, const UnitGradients& of, float factor, const Matrix& to) const {
    context_.backend.run(
        AddAt{.indices = indices(matrix, of), .values = values(matrix, of), .factor = factor, .to = to});
  }

  void sketch(const SketchedMatrix& matrix, const UnitGradients& of) const {
    const Matrix x = gradients(matrix, of);
    context_.backend.run(Add{.from = floats(compression_.residuals, matrix.residual, matrix.count), .to = x});
    context_.backend.run(
        CountSketch{.state = compression_.state, .key = key(matrix), .x = x, .table = table(matrix, of)});
  }

  // Writes the elements with the largest estimates to the buffer, and the others to the errors that this step leaves,
  // in whose memory the estimates lie before.
  void select(const SketchedMatrix& matrix, const UnitGradients& of) const {
    const Matrix x = gradients(matrix, of), left = errors(matrix);
    context_.backend.run(
        EstimateSketch{.state = compression_.state, .key = key(matrix), .table = table(matrix, of), .estimates = left});
    context_.backend.run(SelectLargest{.x = left, .indices = indices(matrix, of), .values = values(matrix, of)});
    context_.backend.run(TakeAt{.indices = indices(matrix, of), .from = x, .values = values(matrix, of)});
    context_.backend.run(Cast{.from = x, .to = left});
    add(matrix, of, -1, left);
  }

  Lane::Ticket sum(int64_t unit, const UnitGradients& of, int64_t first, int64_t count) const {
    Communicator* const replicas =
        context_.groups.group(LaneKind::gradients, kind_of(context_.parameters.layout().units[unit].replicas));
    return context_.groups.lane(LaneKind::gradients)
        .all_reduce(replicas, of.narrow + first * dtype_bytes(DType::f32), count, DType::f32);
  }

  const ReductionContext context_;
  const GradientCompression compression_;
};

}  // namespace

const GradientSum sketch_sum{.takes = nullptr, .lay_out = lay_out_sketches, .make_reducer = make_sketch_reducer};

std::unique_ptr<GradientReducer> make_sketch_reducer(const ReductionContext& context,
                                                     const GradientCompression& compression) {
  return std::make_unique<SketchReducer>(context, compression);
}

}  // namespace gptrain::parallel
