// A source of a run: one token file, or a set of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "data/source_record.h"
#include "data/token_file.h"

namespace gptrain::inline data {

// Returns the token files of a path, in the order of their names. A token file: itself. PREFIX: the shards
// PREFIX-00000, PREFIX-00001, ... of `data pack --shards-of`, or llm.c's PREFIX_000001.bin, ... A folder or pattern
// (* ? [...]): the token files in it. Empty if there are none. Throws Error(data), with the name, if a shard between
// others is missing, or one that PREFIX.pack.json counts. Warns once if that pack was not finished.
std::vector<std::filesystem::path> token_files_of(const std::string& path);

// Returns the same for a path that must lead to token files. Throws Error(data) for a folder or a pattern without any;
// returns the path itself where opening it tells more.
std::vector<std::filesystem::path> require_token_files(const std::string& path);

// Returns the token files of several paths in order. Accepts all names to which a shell expands a pattern: PREFIX.bin
// and PREFIX.idx count once, PREFIX.meta.json and PREFIX.pack.json are skipped. A path that names no token file is
// returned unchanged: opening it tells the user why. Throws as require_token_files does.
std::vector<std::filesystem::path> token_files_of(const std::vector<std::string>& paths);

// Throws Error(data) if one of these token files is the first shard of a finished pack, and the shards of that pack are
// not those that it wrote, or stand in another order. REQUIRES: token_files_of() has found the files.
void verify_packs(const std::vector<std::filesystem::path>& files);

// Returns a warning if two of these token files, which are one source, were packed with different tokenizers; else "".
std::string warning_of_two_tokenizers(const std::vector<std::filesystem::path>& files);

// Returns a warning if a token file belongs to two of these sources (of data.train), or twice to one; else "".
std::string warning_of_repeated_files(const std::vector<DataSource>& sources);

// The files of a source as one sequence of samples. A sample never spans two files; the rest at a file's end is unused.
class TokenSet {
 public:
  // Throws as TokenFile does; Error(data) if all files together have no sample; Error(usage) if they were packed for
  // samples of another length, or if the path is a list of weights and paths. A source with DataSource::tokens has no
  // files: it can be counted, and not read.
  TokenSet(const DataSource& source, int64_t sequence_length, bool checksums);

  int64_t num_tokens() const;
  int64_t num_documents() const;
  int64_t num_samples() const { return ends_.back(); }
  // Returns the same for all files.
  bool is_best_fit() const { return !files_.empty() && files_.front().best_fit_length() > 0; }
  const std::vector<TokenFile>& files() const { return files_; }
  // Returns the identity of the files in their order, without path and samples: that of a single file, else a checksum
  // of the files' checksums, with the least coverage of any. Throws Error(data) if a file cannot be read.
  SourceRecord identity() const;

  struct FilePosition {
    const TokenFile& file;
    TokenFile::Range tokens;  // tokens of the sample, its last target included
  };
  // REQUIRES: 0 <= sample < num_samples(). Does not allocate.
  FilePosition position_of(int64_t sample) const;
  // Returns the number, among the documents of all files, of the one that holds a token of one of files().
  int64_t document_of(const TokenFile& file, int64_t token) const;

 private:
  int64_t sequence_length_;
  int64_t stated_tokens_;  // DataSource::tokens
  std::vector<TokenFile> files_;
  std::vector<int64_t> ends_;  // samples up to the end of each file
};

}  // namespace gptrain::data
