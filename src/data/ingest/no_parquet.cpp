#include "base/error.h"
#include "data/ingest/parquet_texts.h"

namespace gptrain::inline data {

struct ParquetTexts::Impl {};

ParquetTexts::ParquetTexts(std::filesystem::path path, const std::string&, int64_t) {
  throw Error(ExitCode::usage,
              "{} is a Parquet file, which this build cannot read: tools/setup.sh --parquet, then build again",
              path.native());
}

ParquetTexts::~ParquetTexts() = default;

int64_t ParquetTexts::read(std::string&, size_t) { return 0; }

int64_t ParquetTexts::num_rows() const { return 0; }

}  // namespace gptrain::data
