#include "model/saved_matrix.h"

#include <stdexcept>

namespace gptrain {
namespace {

class PlainMatrix final : public SavedMatrix {
 public:
  PlainMatrix(LayerLayout& layout, const SavedTensor& tensor) : layout_(layout), field_(layout.save_product(tensor)) {}

  Matrix room(const LayerCall& call, WorkspaceFrame&) const override { return layout_.at(call, field_); }
  void keep(const LayerCall&, const Matrix&) override {}
  Matrix read(const LayerCall& call, WorkspaceFrame&) const override { return layout_.at(call, field_); }

 private:
  const LayerLayout& layout_;
  const LayerLayout::Field field_;
};

}  // namespace

std::unique_ptr<SavedMatrix> make_saved_matrix(LayerLayout& layout, const SavedTensor& tensor) {
  switch (tensor.codec) {
    case Codec::plain:
      return std::make_unique<PlainMatrix>(layout, tensor);
    case Codec::fp8:
      break;
  }
  throw std::logic_error("'" + tensor.name + "' is in a form that only linears write");
}

}  // namespace gptrain
