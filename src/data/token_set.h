// A source of a run: one token file, or a set of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/source_record.h"
#include "data/token_file.h"

namespace gptrain {

// The token files of a path, in the order of their names: of a token file, itself; of PREFIX, the shards PREFIX-00000,
// PREFIX-00001, .. that `data pack --shards-of` writes; of a folder or of a pattern (* ? [...]), the token files in it.
// None where there are none. Throws Error(data) naming a shard that is missing between others.
std::vector<std::filesystem::path> token_files_of(const std::string& path);

// Those of several paths, one after the other, each once where a name of one of its parts stands beside others
// (PREFIX.bin, PREFIX.idx, PREFIX.meta.json of a pattern that a shell has spelled out). A path that leads to none
// stays.
std::vector<std::filesystem::path> token_files_of(const std::vector<std::string>& paths);

// The files of a source as one run of samples. No sample goes from one file into the next; what is left at the end of a
// file is not used.
class TokenSet {
 public:
  // Throws as TokenFile does; Error(data) where all files together have no sample; Error(usage) where they were packed
  // for samples of another length.
  TokenSet(const std::string& path, int64_t sequence_length, bool checksums);

  int64_t num_tokens() const;
  int64_t num_documents() const;
  int64_t num_samples() const { return ends_.back(); }
  bool is_best_fit() const { return files_.front().best_fit_length() > 0; }  // of all files, or of none
  const std::vector<TokenFile>& files() const { return files_; }
  // Returns the identity of the files in their order, without path and samples: that of a single file, else a checksum
  // of theirs, with the kind that covers least. Throws Error(data) if a file cannot be read.
  SourceRecord identity() const;

  struct Place {
    const TokenFile& file;
    TokenFile::Range tokens;  // of the sample, its last target included
  };
  // REQUIRES: 0 <= sample < num_samples(). Does not allocate.
  Place place_of(int64_t sample) const;

 private:
  int64_t sequence_length_;
  std::vector<TokenFile> files_;
  std::vector<int64_t> ends_;  // samples up to the end of each file
};

}  // namespace gptrain
