// A matrix that a product gives and forward leaves for B, in the form that its codec gives it.
#pragma once

#include <memory>

#include "model/layer.h"

namespace gptrain {

// Forward computes it in room() and hands it to keep(); recompute and B read what read() returns. If the record holds
// the matrix in another form, room() and read() return memory of the frame.
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

// Declares the tensor; its codec decides the kind. Codec::fp8 has none: linears write that form themselves.
std::unique_ptr<SavedMatrix> make_saved_matrix(LayerLayout& layout, const SavedTensor& tensor);

}  // namespace gptrain
