// From text to token files, and a look inside them: `gptrain data pack` and `gptrain data inspect`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace gptrain {

// The "bytes" vocabulary.
constexpr int32_t end_of_document = 256;
constexpr int64_t bytes_vocabulary = 257;

struct PackOptions {
  std::vector<std::filesystem::path>
      inputs;                        // text (one document a file) or .jsonl (one document a line, member "text")
  std::filesystem::path out_prefix;  // writes PREFIX.bin and PREFIX.idx, each through a temporary file and rename
};

struct PackResult {
  int64_t documents = 0;
  int64_t empty_documents = 0;  // left out, not counted in `documents`
  int64_t tokens = 0;           // with one end-of-document token a document
  int64_t input_bytes = 0;
};

// Tokenizer "bytes": ids 0-255 are bytes, 256 ends a document; vocabulary 257. Empty documents are left out.
// `progress(done_bytes, total_bytes)` is called now and then, and at the end with done = total. Throws Error(data)
// naming file and line for bad JSON, a missing "text", invalid input files; Error(data) if the output cannot be
// written. Never leaves a half-written PREFIX.
PackResult pack_bytes(const PackOptions& options, const std::function<void(int64_t, int64_t)>& progress);

// What `data inspect` prints: counts, document length histogram, the most frequent tokens, unigram entropy in nats.
// With sample >= 0, that document instead: as text if it was packed with tokenizer "bytes" (its last id is 256, the
// others are below), bytes that are not printable UTF-8 as \xNN; else as ids, one a line. Throws Error(data) for a
// damaged file and, naming the valid range, for a document that does not exist.
std::string inspect(const std::filesystem::path& prefix, int64_t sample);

// What `data verify` prints: the index is sound, and every block of the .bin has its checksum, or there are none to
// compare with. Throws Error(data) naming file and byte for what is damaged. `progress` as in pack_bytes.
std::string verify_tokens(const std::filesystem::path& prefix, const std::function<void(int64_t, int64_t)>& progress);

// Entropy of the token distribution of a file, in nats: the loss of the best context-free guess.
double unigram_entropy(const std::filesystem::path& prefix);

}  // namespace gptrain
