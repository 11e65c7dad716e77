// Counts the pieces of a corpus, to train a tokenizer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "data/ingest/inputs.h"
#include "data/tokenizer/bpe_trainer.h"

namespace gptrain::inline data {

struct CountOptions {
  std::vector<std::string> inputs;  // arguments of expand_inputs()
  std::filesystem::path out;        // file to be written, which may be none of the inputs
  ReadOptions reading;
  Stage stage = PatternKind::gpt2;
  bool nfc = false;
  int64_t sample_bytes = 0;           // stops after the block that reaches this; 0: reads everything
  bool replace_invalid_utf8 = false;  // with U+FFFD; else invalid UTF-8 is an error
  int threads = 1;
};

struct CountedPieces {
  PieceCounts counts;
  std::vector<std::string> formats;  // InputFormats::lines()
  int64_t empty_inputs = 0;          // inputs without a text
};

struct CountProgress {
  int64_t done_bytes;   // bytes read of the input files, compressed or not
  int64_t total_bytes;  // 0: unknown
  int64_t text_bytes;   // the same decompressed
};

// Counts how often each piece occurs. `progress` is called from one thread at a time. Throws Error(data), with file and
// line, for a document that cannot be read, and for invalid UTF-8 unless it is replaced.
CountedPieces count_pieces(const CountOptions& options, const std::function<void(const CountProgress&)>& progress);

}  // namespace gptrain::data
