// The codec of tensors that are saved as they are.
#include "model/codec.h"
#include "model/saved_matrix.h"

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

StoredFields add_plain(RecordLayout& layout, const SavedTensor& tensor) {
  return {.data = layout.add(tensor.dtype, tensor.rows, tensor.cols)};
}

std::unique_ptr<SavedMatrix> make_plain(const LayerContext&, const LayerLayout& layout, int field) {
  return std::make_unique<PlainMatrix>(layout, field);
}

}  // namespace

const CodecType plain_codec = {Codec::plain, add_plain, make_plain};

}  // namespace gptrain::model
