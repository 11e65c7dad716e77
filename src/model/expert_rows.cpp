// Rows of experts that are all on this rank: copies of the tokens' rows, in the order of the router's slots.
#include "model/expert_rows.h"

namespace gptrain::inline model {
namespace {

class OwnExpertRows final : public ExpertRows {
 public:
  OwnExpertRows(const LayerContext& context, const LayerLayout& layout, const RoutedFields& routed)
      : context_(context), layout_(layout), routed_(routed) {}

  int64_t experts() const override { return context_.shape.model.moe.experts; }
  int64_t first_expert() const override { return 0; }
  int64_t rows() const override { return context_.shape.rows() * context_.shape.model.moe.top_k; }
  int64_t expected_rows() const override { return -1; }

  void route(const LayerCall&) override {}
  Matrix offsets(const LayerCall& call) const override { return layout_.at(call, routed_.offsets); }
  Matrix weights(const LayerCall& call) const override { return layout_.at(call, routed_.weights); }

  Matrix send_inputs(const LayerCall& call, const Matrix& x, WorkspaceFrame& frame) override {
    return gather(call, x, frame);
  }
  Matrix send_gradients(const LayerCall& call, const Matrix& x, WorkspaceFrame& frame) override {
    return gather(call, x, frame);
  }
  Matrix inputs(const LayerCall& call, const Matrix& x, WorkspaceFrame& frame) override {
    return gather(call, x, frame);
  }
  Matrix gradients(const LayerCall& call, const Matrix& x, WorkspaceFrame& frame) override {
    return gather(call, x, frame);
  }
  bool regathers_rows() const override { return true; }
  Matrix take_back(const LayerCall&, const Matrix& of_experts, WorkspaceFrame&) override { return of_experts; }
  Matrix take_back_numbers(const LayerCall&, const Matrix& of_experts, WorkspaceFrame&) override { return of_experts; }

 private:
  Matrix gather(const LayerCall& call, const Matrix& x, WorkspaceFrame& frame) const {
    const Matrix gathered = frame.take(x.dtype, rows(), x.cols);
    context_.backend.run(
        GatherRows{.x = x, .rows = layout_.at(call, routed_.rows), .offsets = offsets(call), .y = gathered});
    return gathered;
  }

  const LayerContext& context_;
  const LayerLayout& layout_;
  const RoutedFields routed_;
};

}  // namespace

std::unique_ptr<ExpertRows> make_expert_rows(const LayerContext& context, LayerLayout& layout, int64_t layer,
                                             const RoutedFields& routed) {
  if (context.experts.is_split()) return make_spread_expert_rows(context, layout, layer, routed);
  return std::make_unique<OwnExpertRows>(context, layout, routed);
}

}  // namespace gptrain::model
