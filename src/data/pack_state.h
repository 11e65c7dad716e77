// State from which a killed pack resumes (PREFIX.pack.json), and the check that its shards are complete.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

namespace gptrain::inline data {

// Writes the state and its checksum, by rename.
void write_pack_state(const std::filesystem::path& path, nlohmann::json state);
// Throws Error(data), with the file's name, if it cannot be read or its checksum does not match.
nlohmann::json read_pack_state(const std::filesystem::path& path);

// Shards of a pack, by its state.
struct PackedShards {
  int64_t shards;                    // number of complete shards
  bool finished;                     // no more are to come
  std::optional<uint32_t> checksum;  // add_shard_checksum() of the last of them; states of older packs have none
};
// Returns nullopt if there is no PREFIX.pack.json, or if its pack writes no shards. Throws Error(data) if it is
// damaged.
std::optional<PackedShards> packed_shards(const std::filesystem::path& prefix);

// Returns the checksum of all shards up to this one. Covers each .idx, and each .meta.json, which has the checksums of
// the tokens. `before`: the checksum of the earlier shards; 0: this is the first.
uint32_t add_shard_checksum(const std::filesystem::path& shard, uint32_t before);

}  // namespace gptrain::data
