// What a pack that was killed needs to go on: PREFIX.pack.json, and proof that the shards before it are whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

namespace gptrain {

// Writes the state with a checksum of its own, by rename.
void write_pack_state(const std::filesystem::path& path, nlohmann::json state);
// Throws Error(data), naming the file, where it cannot be read or does not have its checksum.
nlohmann::json read_pack_state(const std::filesystem::path& path);

// The checksum of all shards up to this one: of their index, and of their .meta.json, which has those of their tokens.
// `before`: that of the shards before, 0 for none.
uint32_t add_shard_checksum(const std::filesystem::path& shard, uint32_t before);

// Compares the checksum of shards that are sound. Throws Error(data) where it is not `expected`.
void check_shards(const std::vector<std::filesystem::path>& shards, uint32_t expected);

}  // namespace gptrain
