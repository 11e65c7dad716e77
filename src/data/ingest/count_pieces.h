// The pieces of a corpus, for training a tokenizer.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/ingest/inputs.h"
#include "data/tokenizer/bpe_trainer.h"

namespace gptrain {

struct CountOptions {
  std::vector<std::string> inputs;  // words of expand_inputs()
  ReadOptions reading;
  Stage stage = PatternKind::gpt2;
  bool nfc = false;
  int64_t sample_bytes = 0;           // above 0: reading stops at the block that reaches this
  bool replace_invalid_utf8 = false;  // by U+FFFD; else a document that is not UTF-8 is an error
  int threads = 1;
};

struct CountedPieces {
  PieceCounts counts;
  std::vector<std::string> formats;  // InputFormats::lines()
};

// How often each piece occurs. `progress(done_bytes, total_bytes)` is called from one thread at a time. Throws
// Error(data) naming file and line for a document that cannot be read, or is not UTF-8 and must be.
CountedPieces count_pieces(const CountOptions& options, const std::function<void(int64_t, int64_t)>& progress);

}  // namespace gptrain
