// From text to token files, and a look inside them: `gptrain data pack` and `gptrain data inspect`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/ingest/encode_block.h"
#include "data/ingest/inputs.h"
#include "data/tokenizer/tokenizer.h"

namespace gptrain {

struct PackOptions {
  std::vector<std::string> inputs;   // words of expand_inputs()
  std::filesystem::path out_prefix;  // writes PREFIX.bin and PREFIX.idx, each through a temporary file and rename
  std::shared_ptr<const Tokenizer> tokenizer;
  ReadOptions reading;
  bool append_end = false;   // an end-of-document token behind each document; always with tokenizer "bytes"
  std::string end_token;     // the text or the id of this token; empty: Tokenizer::end_of_document_id()
  int64_t shard_tokens = 0;  // above 0: PREFIX-00000, PREFIX-00001, ..., each closed by the document that reaches this
  int64_t best_fit_length = 0;  // above 0: whole documents are put into samples of so many inputs (best_fit.h)
  int threads = 1;              // that encode; the output does not depend on it
  bool resume = false;          // goes on behind the last shard of a pack that was killed
  bool skip_faults = false;  // documents that cannot be read are left out and counted; else the first one is an error
  bool replace_invalid_utf8 = false;
  SpecialInText special_in_text = SpecialInText::tokens;
  int part = 1;  // of the input files, every num_parts-th, from the part-th on
  int num_parts = 1;
};

// Of a pack that goes on, since then.
struct PackProgress {
  int64_t done_bytes = 0;   // of the inputs as they lie on the disk
  int64_t total_bytes = 0;  // 0: not known
  int64_t tokens = 0;
  int64_t text_bytes = 0;  // of documents
};

struct PackResult {
  int64_t documents = 0;
  int64_t empty_documents = 0;  // left out, not counted in `documents`
  int64_t tokens = 0;           // with end-of-document tokens
  int64_t input_bytes = 0;      // as they lie on the disk; of a resumed pack, since then
  int64_t shards = 0;           // 0 without shard_tokens
  int64_t removed_shards = 0;   // of an earlier pack
  int64_t samples = 0;          // with best_fit_length
  int64_t cut_documents = 0;    // longer than one
  int64_t faults = 0;
  int64_t special_in_text = 0;            // texts of special tokens within documents
  std::vector<std::string> first_faults;  // "FILE, line N: reason", ten at most
  std::vector<std::string> formats;       // InputFormats::lines(); of a resumed pack, since then
  bool was_finished = false;              // resume found nothing left to do
};

// Ids are stored as u16 where the vocabulary is below 65500, else as i32, as Megatron-LM does it. Empty documents are
// left out. `progress` is called now and then, and at the end, with all done. With shard_tokens, the shards of
// an earlier pack of this PREFIX are removed when the first new one is whole, so that a pattern finds those of one pack
// only. Throws Error(data) naming file and line for documents that cannot be read, invalid inputs, and output
// that cannot be written; Error(usage) for options that do not go together. Never leaves a half-written PREFIX. With
// best_fit_length the documents of a shard lie in PREFIX.unfitted until the shard is whole: twice its room on the disk.
PackResult pack(const PackOptions& options, const std::function<void(const PackProgress&)>& progress);

// What `data inspect` prints: counts, document length histogram, the most and the least frequent tokens, unigram
// entropy in nats; where the tokenizer is known, the tokens' texts, bytes per token and the share of each class of
// bytes, too. With sample >= 0, that document instead: as text where the tokenizer is known, or as if it were "bytes"
// where it could be (its last id is 256, the others are below), bytes that are not printable UTF-8 as \xNN; else as
// ids, one a line. `tokenizer`: null for the one that PREFIX.meta.json holds. Throws Error(data) for a damaged file
// and, naming the valid range, for a document that does not exist; Error(usage) where `tokenizer` is not that of
// PREFIX.meta.json.
std::string inspect(const std::filesystem::path& prefix, int64_t sample,
                    std::shared_ptr<const Tokenizer> tokenizer = nullptr);

// What `data verify` prints: the index is sound, and every block of the .bin has its checksum, or there are none to
// compare with; with a vocab_size below any_vocabulary every token is read, too. Throws Error(data) naming file and
// byte for what is damaged. `progress(done, total)` gets numbers of blocks.
std::string verify_tokens(const std::filesystem::path& prefix, int64_t vocab_size,
                          const std::function<void(int64_t, int64_t)>& progress);

// Entropy of the token distribution of a file, in nats: the loss of the best context-free guess.
double unigram_entropy(const std::filesystem::path& prefix);

}  // namespace gptrain
