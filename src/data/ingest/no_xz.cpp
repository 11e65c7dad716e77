#include "base/error.h"
#include "data/ingest/decoders.h"

namespace gptrain::inline data {

std::unique_ptr<Decoder> make_xz_decoder() {
  throw Error(ExitCode::usage, "this build cannot read xz data: apt-get install liblzma-dev, then build again");
}

}  // namespace gptrain::data
