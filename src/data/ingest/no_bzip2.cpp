#include "base/error.h"
#include "data/ingest/decoders.h"

namespace gptrain::inline data {

std::unique_ptr<Decoder> make_bzip2_decoder() {
  throw Error(ExitCode::usage, "this build cannot read bzip2 data: apt-get install libbz2-dev, then build again");
}

}  // namespace gptrain::data
