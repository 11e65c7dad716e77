// Storage formats of the tensors that layers save.
#pragma once

#include <memory>

#include "model/record.h"
#include "model/saved_tensor.h"

namespace gptrain::inline model {

class LayerLayout;
class SavedMatrix;
struct LayerContext;

// Fields of a stored tensor in its record; -1: none.
struct StoredFields {
  RecordLayout::Field data = -1, scale = -1;
};

// Description of a codec: a row of the table in codec.cpp.
struct CodecType {
  Codec codec;
  // Adds the fields of a tensor to a record.
  StoredFields (*add)(RecordLayout& layout, const SavedTensor& tensor);
  // Makes the matrix for a field of the layout (see make_saved_matrix); null: only linears write this format.
  std::unique_ptr<SavedMatrix> (*make)(const LayerContext& context, const LayerLayout& layout, int field);
};

extern const CodecType plain_codec, fp8_codec, block_codec, rounded_codec;

// THROWS std::logic_error if the table has no such codec.
const CodecType& codec_type(Codec codec);

}  // namespace gptrain::model
