#include "data/pack_state.h"

#include <fstream>
#include <sstream>
#include <system_error>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/json.h"
#include "base/output_file.h"
#include "data/token_paths.h"

namespace gptrain::inline data {
namespace {

constexpr const char* checksum_key = "crc32c";

std::string text_of(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  if (!stream.is_open() || stream.bad()) throw Error(ExitCode::data, "{} cannot be read", path.native());
  return std::move(text).str();
}

uint32_t checksum_of(const nlohmann::json& state) {
  const std::string text = json_text(state);
  return crc32c(text.data(), text.size());
}

// Returns the state without its checksum; nullopt if it is damaged.
std::optional<nlohmann::json> whole_state(const std::filesystem::path& path) {
  nlohmann::json state = parse_json_or_discard(text_of(path));
  if (!state.is_object() || !state.contains(checksum_key)) return std::nullopt;
  const nlohmann::json checksum = state[checksum_key];
  state.erase(checksum_key);
  if (checksum != checksum_of(state)) return std::nullopt;
  return state;
}

}  // namespace

void write_pack_state(const std::filesystem::path& path, nlohmann::json state) {
  state[checksum_key] = checksum_of(state);
  AtomicFile file(path, ExitCode::data);
  file.write(json_text(state, 1) + "\n");
  file.commit();
}

std::optional<PackedShards> packed_shards(const std::filesystem::path& prefix) {
  const std::filesystem::path path = token_file_path(prefix, ".pack.json");
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return std::nullopt;
  const std::optional<nlohmann::json> state = whole_state(path);
  const auto shards = state ? state->find("shards") : nlohmann::json::const_iterator();
  if (!state || shards == state->end() || !shards->is_number_integer() || !state->contains("finished")) {
    throw Error(ExitCode::data,
                "{} is damaged, so the number of shards is not known: pack the texts again, or remove this file if no "
                "shard is missing",
                path.native());
  }
  if (*shards == 0) return std::nullopt;
  PackedShards packed{.shards = shards->get<int64_t>(), .finished = (*state)["finished"] == true, .checksum = {}};
  if (const auto checksum = state->find("shards_crc32c"); checksum != state->end() && checksum->is_number_unsigned())
    packed.checksum = checksum->get<uint32_t>();
  return packed;
}

nlohmann::json read_pack_state(const std::filesystem::path& path) {
  const std::optional<nlohmann::json> state = whole_state(path);
  if (!state) throw Error(ExitCode::data, "{} is damaged; start anew without --resume", path.native());
  return *state;
}

uint32_t add_shard_checksum(const std::filesystem::path& shard, uint32_t before) {
  for (const char* suffix : {".meta.json", ".idx"}) {
    const std::string text = text_of(token_file_path(shard, suffix));
    before = crc32c(text.data(), text.size(), before);
  }
  return before;
}

}  // namespace gptrain::data
