#include "model/codec.h"

#include <array>
#include <stdexcept>

namespace gptrain::inline model {

const CodecType& codec_type(Codec codec) {
  static constexpr std::array all = {&plain_codec, &fp8_codec, &block_codec, &rounded_codec};
  for (const CodecType* const type : all)
    if (type->codec == codec) return *type;
  throw std::logic_error("no row describes a codec");
}

}  // namespace gptrain::model
