// Makes token files from text: `gptrain data pack`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "data/ingest/encode_block.h"
#include "data/ingest/inputs.h"
#include "data/tokenizer/tokenizer.h"

namespace gptrain::inline data {

struct PackOptions {
  std::vector<std::string> inputs;   // arguments of expand_inputs()
  std::filesystem::path out_prefix;  // PREFIX of the output, PREFIX.bin and PREFIX.idx
  std::shared_ptr<const Tokenizer> tokenizer;
  ReadOptions reading;
  bool append_end = false;  // appends an end token to each document; always done with tokenizer "bytes"
  std::string end_token;    // the end token's text or id; empty: Tokenizer::end_of_document_id()
  // > 0: writes shards PREFIX-00000, PREFIX-00001, ..., each up to the document with which it reaches this many tokens.
  int64_t shard_tokens = 0;
  int64_t best_fit_length = 0;  // > 0: packs whole documents into samples of this many inputs (best_fit.h)
  int threads = 1;              // encoding threads; the output does not depend on their number
  bool resume = false;          // continues a killed pack after its last complete shard
  bool skip_faults = false;     // leaves out and counts unreadable documents; else the first is an error
  bool replace_invalid_utf8 = false;
  SpecialInText special_in_text = SpecialInText::tokens;
  int part = 1;  // packs every num_parts-th input file, starting with number `part`, from 1
  int num_parts = 1;
};

// Progress of this call; work before a resume does not count.
struct PackProgress {
  int64_t done_bytes = 0;   // bytes read of the input files, compressed or not
  int64_t total_bytes = 0;  // 0: unknown
  int64_t tokens = 0;
  int64_t text_bytes = 0;  // bytes of documents' text
};

struct PackResult {
  int64_t documents = 0;
  int64_t empty_documents = 0;  // left out, not counted in `documents`
  int64_t empty_inputs = 0;     // inputs without any document, even one that is left out
  int64_t tokens = 0;           // end-of-document tokens included
  int64_t input_bytes = 0;      // bytes read of the input files, compressed or not, by this call
  int64_t shards = 0;           // 0 without shard_tokens
  int64_t removed_shards = 0;   // shards of an earlier pack
  int64_t samples = 0;          // samples written; 0 without best_fit_length
  int64_t cut_documents = 0;    // documents longer than a sample
  int64_t faults = 0;
  int64_t special_in_text = 0;                  // special tokens found in the documents' texts
  std::vector<std::string> first_empty_inputs;  // their paths, ten at most
  std::vector<std::string> first_faults;        // "FILE, line N: reason", ten at most
  std::vector<std::string> formats;             // InputFormats::lines() of the inputs read by this call
  bool was_finished = false;                    // with `resume`: the pack was complete already
};

// Packs texts into token files. Ids are u16 for a vocabulary below 65500, else i32, as in Megatron-LM. Leaves out empty
// documents. Calls `progress` now and then, and at the end. A PREFIX appears whole or not at all. With shard_tokens,
// the shards of an earlier pack are removed once the first new shard is complete, so that a pattern finds shards of one
// pack only. With best_fit_length a shard needs twice its disk space until it is complete (PREFIX.unfitted). Throws
// Error(data), with file and line, for unreadable documents, invalid inputs and output that cannot be written;
// Error(usage) for options that exclude each other.
PackResult pack(const PackOptions& options, const std::function<void(const PackProgress&)>& progress);

}  // namespace gptrain::data
