#include "data/pack_state.h"

#include <fstream>
#include <sstream>

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

}  // namespace

void write_pack_state(const std::filesystem::path& path, nlohmann::json state) {
  state[checksum_key] = checksum_of(state);
  AtomicFile file(path, ExitCode::data);
  file.write(json_text(state, 1) + "\n");
  file.commit();
}

nlohmann::json read_pack_state(const std::filesystem::path& path) {
  nlohmann::json state = parse_json_or_discard(text_of(path));
  nlohmann::json checksum;
  if (state.is_object() && state.contains(checksum_key)) {
    checksum = state[checksum_key];
    state.erase(checksum_key);
  }
  if (checksum != checksum_of(state)) {
    throw Error(ExitCode::data, "{} is damaged; start anew without --resume", path.native());
  }
  return state;
}

uint32_t add_shard_checksum(const std::filesystem::path& shard, uint32_t before) {
  for (const char* suffix : {".meta.json", ".idx"}) {
    const std::string text = text_of(token_file_path(shard, suffix));
    before = crc32c(text.data(), text.size(), before);
  }
  return before;
}

}  // namespace gptrain::data
