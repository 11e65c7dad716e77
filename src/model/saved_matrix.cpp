#include "model/saved_matrix.h"

#include <stdexcept>

#include "model/codec.h"

namespace gptrain::inline model {

std::unique_ptr<SavedMatrix> make_saved_matrix(const LayerContext& context, const LayerLayout& layout,
                                               LayerLayout::Field field) {
  const CodecType& type = codec_type(layout.tensor(field).codec);
  if (type.make == nullptr)
    throw std::logic_error("'" + layout.tensor(field).name + "' is in a form that only linears write");
  return type.make(context, layout, field);
}

}  // namespace gptrain::model
