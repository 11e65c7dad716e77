#include "parallel/gradient_reducer.h"

namespace gptrain::inline parallel {
namespace {

class Reducer : public GradientReducer {
 public:
  explicit Reducer(const ReductionContext& context) : context_(context) {}

 protected:
  const UnitRange& range(int64_t unit) const { return context_.parameters.layout().units[static_cast<size_t>(unit)]; }
  // Sums in place: all elements with ZeRO 0, else this rank's piece.
  Lane::Ticket sum(int64_t unit, std::byte* gradients, DType dtype) const {
    Lane& lane = context_.groups.lane(LaneKind::gradients);
    Communicator* const copies = context_.groups.group(LaneKind::gradients, kind_of(range(unit).copies));
    if (!context_.parameters.sharding().cuts_state())
      return lane.all_reduce(copies, gradients, range(unit).elements, dtype);
    const UnitPiece own = context_.parameters.piece(unit);
    return lane.reduce_scatter(copies, gradients, gradients + own.first * dtype_bytes(dtype), own.elements, dtype);
  }

  const ReductionContext context_;
};

class PlainReducer final : public Reducer {
 public:
  using Reducer::Reducer;
  Lane::Ticket begin(int64_t unit, int, const UnitGradients& of) override { return sum(unit, of.whole, DType::f32); }
};

// Rounds the gradients to Sharding::reduce, sums them there and widens the sum.
class NarrowReducer final : public Reducer {
 public:
  using Reducer::Reducer;

  bool begins_with_ops() const override { return true; }
  Lane::Ticket begin(int64_t unit, int, const UnitGradients& of) override {
    const DType reduce = context_.parameters.sharding().reduce;
    const int64_t elements = context_.parameters.piece_elements(unit);
    context_.backend.run(Cast{.from = Matrix(of.whole, DType::f32, range(unit).pieces, elements),
                              .to = Matrix(of.narrow, reduce, range(unit).pieces, elements)});
    return sum(unit, of.narrow, reduce);
  }

  void finish(int64_t unit, const UnitGradients& of) override {
    const Sharding& sharding = context_.parameters.sharding();
    const UnitPiece own = context_.parameters.piece(unit);
    const int64_t pieces = sharding.cuts_state() ? 1 : range(unit).pieces;
    const int64_t first = sharding.cuts_state() ? own.first : 0;
    std::byte* const sum = of.narrow + first * dtype_bytes(sharding.reduce);
    std::byte* const gradients = of.whole + first * dtype_bytes(DType::f32);
    context_.backend.run(Cast{.from = Matrix(sum, sharding.reduce, pieces, own.elements),
                              .to = Matrix(gradients, DType::f32, pieces, own.elements)});
  }
};

}  // namespace

std::unique_ptr<GradientReducer> make_reducer(const ReductionContext& context, CopyGroup group) {
  if (context.parameters.sharding().narrows_gradients(group)) return std::make_unique<NarrowReducer>(context);
  return std::make_unique<PlainReducer>(context);
}

}  // namespace gptrain::parallel
