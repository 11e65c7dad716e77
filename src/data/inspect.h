// Looks into token files: `gptrain data inspect` and `verify`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/dtype.h"
#include "data/tokenizer/tokenizer.h"

namespace gptrain::inline data {

// Returns the output of `data inspect` for a token file or a set of them (token_set.h): counts, document length
// histogram, the most and the least frequent tokens, unigram entropy in nats; if the tokenizer is known, also the
// tokens' texts, bytes per token and the share of each class of bytes. With sample >= 0, returns that document instead:
// as text if the tokenizer is known, or if the ids could be "bytes" (the last id is 256, the others are below); else as
// ids, one per line. Bytes that are not printable UTF-8 are written as \xNN. `tokenizer`: null for the one in
// PREFIX.meta.json. Throws Error(data) for a damaged file and, with the valid range, for a missing document;
// Error(usage) if `tokenizer` differs from PREFIX.meta.json's, or if the files of a set have different ones. `dtype`:
// see TokenFile.
std::string inspect(const std::string& path, int64_t sample, std::shared_ptr<const Tokenizer> tokenizer = nullptr,
                    std::optional<DType> dtype = {});

// Checks the index, the checksum of each block of the .bin if there are checksums, and, with a vocab_size below
// any_vocabulary, each token. Returns the output of `data verify`. `progress(done, total)` counts blocks. Throws
// Error(data), with file and byte, for damage. `dtype`: see TokenFile.
std::string verify_tokens(const std::filesystem::path& prefix, int64_t vocab_size,
                          const std::function<void(int64_t, int64_t)>& progress, std::optional<DType> dtype = {});

// Returns the entropy of a file's token distribution in nats: the loss of the best prediction without context.
double unigram_entropy(const std::filesystem::path& prefix);

}  // namespace gptrain::data
