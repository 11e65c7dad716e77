#include "base/error.h"
#include "data/ingest/decoders.h"

namespace gptrain::inline data {

std::unique_ptr<Decoder> make_gzip_decoder() {
  throw Error(ExitCode::usage, "this build cannot read gzip data: apt-get install zlib1g-dev, then build again");
}

}  // namespace gptrain::data
