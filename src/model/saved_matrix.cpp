#include "model/saved_matrix.h"

#include <stdexcept>

namespace gptrain::inline model {
namespace {

class PlainMatrix final : public SavedMatrix {
 public:
  PlainMatrix(const LayerLayout& layout, LayerLayout::Field field) : layout_(layout), field_(field) {}

  Matrix buffer(const LayerCall& call, WorkspaceFrame&) const override { return layout_.at(call, field_); }
  void keep(const LayerCall&, const Matrix&) override {}
  Matrix read(const LayerCall& call, WorkspaceFrame&) const override { return layout_.at(call, field_); }

 private:
  const LayerLayout& layout_;
  const LayerLayout::Field field_;
};

// Stores 8-bit codes; readers get a decoded copy.
class CodedMatrix final : public SavedMatrix {
 public:
  CodedMatrix(const LayerContext& context, const LayerLayout& layout, LayerLayout::Field field)
      : context_(context), layout_(layout), field_(field) {}

  Matrix buffer(const LayerCall&, WorkspaceFrame& frame) const override {
    const SavedTensor& tensor = layout_.tensor(field_);
    return frame.take(tensor.dtype, tensor.rows, tensor.cols);
  }
  void keep(const LayerCall& call, const Matrix& computed) override {
    context_.backend.run(
        EncodeBlocks{.x = computed, .codes = layout_.at(call, field_), .scales = layout_.scale_at(call, field_)});
  }
  Matrix read(const LayerCall& call, WorkspaceFrame& frame) const override {
    const Matrix copy = buffer(call, frame);
    context_.backend.run(
        DecodeBlocks{.codes = layout_.at(call, field_), .scales = layout_.scale_at(call, field_), .x = copy});
    return copy;
  }

 private:
  const LayerContext& context_;
  const LayerLayout& layout_;
  const LayerLayout::Field field_;
};

// Stores a narrower dtype, which readers get as it is.
class RoundedMatrix final : public SavedMatrix {
 public:
  RoundedMatrix(const LayerContext& context, const LayerLayout& layout, LayerLayout::Field field)
      : context_(context), layout_(layout), field_(field) {}

  Matrix buffer(const LayerCall&, WorkspaceFrame& frame) const override {
    const SavedTensor& tensor = layout_.tensor(field_);
    return frame.take(context_.compute(), tensor.rows, tensor.cols);
  }
  void keep(const LayerCall& call, const Matrix& computed) override {
    context_.backend.run(Cast{.from = computed, .to = layout_.at(call, field_)});
  }
  Matrix read(const LayerCall& call, WorkspaceFrame&) const override { return layout_.at(call, field_); }

 private:
  const LayerContext& context_;
  const LayerLayout& layout_;
  const LayerLayout::Field field_;
};

}  // namespace

std::unique_ptr<SavedMatrix> make_saved_matrix(const LayerContext& context, const LayerLayout& layout,
                                               LayerLayout::Field field) {
  switch (layout.tensor(field).codec) {
    case Codec::plain:
      return std::make_unique<PlainMatrix>(layout, field);
    case Codec::blocks:
      return std::make_unique<CodedMatrix>(context, layout, field);
    case Codec::rounded:
      return std::make_unique<RoundedMatrix>(context, layout, field);
    case Codec::fp8:
      break;
  }
  throw std::logic_error("'" + layout.tensor(field).name + "' is in a form that only linears write");
}

}  // namespace gptrain::model
