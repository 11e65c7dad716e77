// A matrix that forward leaves for B or W, in the form that its codec gives it.
#pragma once

#include <memory>

#include "model/layer.h"

namespace gptrain {

// Forward computes it in room() and hands it to keep(); recompute, B and W read what read() returns. If the record
// holds the matrix in another form, room() and read() return memory of the frame; what is read may be of a narrower type.
class SavedMatrix {
 public:
  virtual ~SavedMatrix() = default;
  SavedMatrix(const SavedMatrix&) = delete;
  SavedMatrix& operator=(const SavedMatrix&) = delete;

  virtual Matrix room(const LayerCall& call, WorkspaceFrame& frame) const = 0;
  virtual void keep(const LayerCall& call, const Matrix& computed) = 0;
  virtual Matrix read(const LayerCall& call, WorkspaceFrame& frame) const = 0;

 protected:
  SavedMatrix() = default;
};

// The codec of the field decides the kind. Codec::fp8 has none: linears write that form themselves. Context and layout
// outlive it.
std::unique_ptr<SavedMatrix> make_saved_matrix(const LayerContext& context, const LayerLayout& layout,
                                               LayerLayout::Field field);

// The form in which inputs of linears and norms are saved.
inline Codec input_codec(const LayerContext& context) {
  return context.shape.codes_inputs ? Codec::blocks : Codec::plain;
}

}  // namespace gptrain
