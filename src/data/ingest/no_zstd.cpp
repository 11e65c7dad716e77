#include "base/error.h"
#include "data/ingest/decoders.h"

namespace gptrain::inline data {

std::unique_ptr<Decoder> make_zstd_decoder() {
  throw Error(ExitCode::usage, "this build cannot read zstd data: apt-get install libzstd-dev, then build again");
}

}  // namespace gptrain::data
