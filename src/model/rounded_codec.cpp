// The codec of tensors that are saved in a narrower dtype.
#include "model/codec.h"
#include "model/saved_matrix.h"

namespace gptrain::inline model {
namespace {

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

StoredFields add_rounded(RecordLayout& layout, const SavedTensor& tensor) {
  return {.data = layout.add(tensor.dtype, tensor.rows, tensor.cols)};
}

std::unique_ptr<SavedMatrix> make_rounded(const LayerContext& context, const LayerLayout& layout, int field) {
  return std::make_unique<RoundedMatrix>(context, layout, field);
}

}  // namespace

const CodecType rounded_codec = {Codec::rounded, add_rounded, make_rounded};

}  // namespace gptrain::model
