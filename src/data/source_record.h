// The identity of a source of training data, kept in checkpoints: how much it holds, and a checksum.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"

namespace gptrain::inline data {

struct SourceRecord {
  // Bytes that the checksum covers: the block checksums of PREFIX.meta.json; without them all of PREFIX.idx and the
  // ends of PREFIX.bin, its size and its first, middle and last MiB; the index alone in older checkpoints; or, of a
  // file without an index, its ends.
  enum class Covered : uint8_t { blocks, index_and_ends, index, ends };

  std::string path = {};
  int64_t tokens = 0;
  int64_t samples = 0;  // per epoch
  Covered covered = Covered::blocks;
  uint32_t checksum = 0;
  // Checksum of PREFIX.idx, which says where documents begin; none of a file without an index, in older checkpoints,
  // and if `checksum` covers PREFIX.idx already.
  std::optional<uint32_t> documents = {};
  // Checksum of the order of a set's files; none of a single file, and in older checkpoints, whose `checksum` is the
  // same if the first two files change places.
  std::optional<uint32_t> order = {};
};

// {"path", "tokens", "samples", "covered", "crc32c", "documents_crc32c" and "order_crc32c" where known}. The reader
// throws nlohmann::json::exception for anything else.
nlohmann::ordered_json source_record_json(const SourceRecord& record);
SourceRecord parse_source_record(const nlohmann::json& object);

// Returns true if both describe the same tokens, whatever the paths. Does not compare checksums of different kinds.
bool has_same_tokens(const SourceRecord& before, const SourceRecord& now);
// Returns true if the documents are the same, too, as far as both records tell.
bool is_same_source(const SourceRecord& before, const SourceRecord& now);
// "d/train: 96,659 tokens in 755 samples, checksum 01234567 of its blocks"
std::string describe_source(const SourceRecord& record);

// Expected numbers of samples of the current epoch that are repeated and that are missed if a source changes its number
// of samples per epoch after `given` samples. Expected, because the order is a random permutation.
struct ChangedEpoch {
  int64_t repeated, missed;
};
ChangedEpoch changed_epoch(int64_t given, int64_t samples_before, int64_t samples_now);

}  // namespace gptrain::data
