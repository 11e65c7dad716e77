// The codec of tensors that are saved as 8-bit codes.
#include "model/codec.h"
#include "model/saved_matrix.h"
#include "ops/block_codes.h"

namespace gptrain::inline model {
namespace {

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

StoredFields add_block(RecordLayout& layout, const SavedTensor& tensor) {
  return {.data = layout.add(DType::u8, tensor.rows, tensor.cols),
          .scale = layout.add(DType::f32, tensor.rows, code_blocks(tensor.cols))};
}

std::unique_ptr<SavedMatrix> make_block(const LayerContext& context, const LayerLayout& layout, int field) {
  return std::make_unique<CodedMatrix>(context, layout, field);
}

}  // namespace

const CodecType block_codec = {Codec::blocks, add_block, make_block};

}  // namespace gptrain::model
