// A matrix that forward saves for B or W, in the format of its codec.
#pragma once

#include <memory>

#include "model/layer.h"

namespace gptrain::inline model {

// Forward computes the matrix in the memory from buffer() and passes it to keep(); recompute, B and W call read(). If
// the record stores another format, buffer() and read() return memory of `frame`. The dtype of read() may be narrower.
class SavedMatrix {
 public:
  virtual ~SavedMatrix() = default;
  SavedMatrix(const SavedMatrix&) = delete;
  SavedMatrix& operator=(const SavedMatrix&) = delete;

  virtual Matrix buffer(const LayerCall& call, WorkspaceFrame& frame) const = 0;
  virtual void keep(const LayerCall& call, const Matrix& computed) = 0;
  virtual Matrix read(const LayerCall& call, WorkspaceFrame& frame) const = 0;

 protected:
  SavedMatrix() = default;
};

// RETURNS the kind for the field's codec. THROWS std::logic_error for Codec::fp8, which only linears write. REQUIRES:
// context and layout outlive it.
std::unique_ptr<SavedMatrix> make_saved_matrix(const LayerContext& context, const LayerLayout& layout,
                                               LayerLayout::Field field);

// RETURNS the codec of saved inputs of linears and norms.
inline Codec input_codec(const LayerContext& context) { return context.shape.choices.input_codec; }

}  // namespace gptrain::model
