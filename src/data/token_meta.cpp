#include "data/token_meta.h"

#include <algorithm>
#include <charconv>
#include <fmt/format.h>
#include <system_error>

#include "base/append.h"
#include "base/crc32c.h"
#include "base/error.h"
#include "base/json.h"
#include "base/json_reason.h"
#include "base/json_scanner.h"
#include "data/mapped_file.h"
#include "data/token_paths.h"

namespace gptrain::inline data {
namespace {

using nlohmann::json;

constexpr const char* meta_format = "gptrain tokens";
constexpr int64_t format_version = 1;
constexpr int64_t max_file_bytes = 100'000'000;  // enough for a .bin of some 500 TiB

TokenMeta parse(const std::string& text) {
  const json root = parse_json(text);
  if (root.at("format") != meta_format || root.at("version") != format_version)
    throw json::other_error::create(502, fmt::format("it is no \"{}\" of version {}", meta_format, format_version),
                                    nullptr);
  TokenMeta meta{.bytes = root.at("bytes"), .tokens = root.at("tokens"), .blocks = {}};
  if (meta.bytes < 0 || meta.tokens < 0) throw json::other_error::create(506, "it gives a negative size", nullptr);
  const int64_t blocks = meta.bytes / checksum_block_bytes + (meta.bytes % checksum_block_bytes != 0 ? 1 : 0);
  if (root.at("block_bytes") != checksum_block_bytes || static_cast<int64_t>(root.at("crc32c").size()) != blocks)
    throw json::other_error::create(503, "its number of blocks does not fit its number of bytes", nullptr);
  for (const json& block : root.at("crc32c")) {
    const std::string digits = block;
    uint32_t crc = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), crc, 16);
    if (fmt::format("{:08x}", crc) != digits)
      throw json::other_error::create(504, "a checksum is not eight hexadecimal digits", nullptr);
    meta.blocks.push_back(crc);
  }
  if (root.contains("best_fit_length")) {
    meta.best_fit_length = root["best_fit_length"];
    if (meta.best_fit_length < 1)
      throw json::other_error::create(507, "its best_fit_length is no length of a sample", nullptr);
  }
  if (root.contains("largest_id")) {
    meta.largest_id = root["largest_id"].get<int64_t>();
    if (*meta.largest_id < 0) throw json::other_error::create(509, "its largest_id is no token", nullptr);
  }
  if (root.contains("tokenizer")) meta.tokenizer = parse_tokenizer_record(root["tokenizer"]);
  return meta;
}

}  // namespace

void BlockChecksums::add(const void* data, size_t bytes) {
  const auto* at = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const int64_t in_block = bytes_ % checksum_block_bytes;
    if (in_block == 0) blocks_.push_back(0);
    const size_t count = std::min(bytes, static_cast<size_t>(checksum_block_bytes - in_block));
    blocks_.back() = crc32c(at, count, blocks_.back());
    at += count;
    bytes -= count;
    bytes_ += static_cast<int64_t>(count);
  }
}

std::string format_token_meta(const TokenMeta& meta) {
  std::string text = fmt::format(
      "{{\"format\": \"{}\", \"version\": {}, \"bytes\": {}, \"tokens\": {}, \"block_bytes\": {}, \"crc32c\": [",
      meta_format, format_version, meta.bytes, meta.tokens, checksum_block_bytes);
  for (size_t i = 0; i < meta.blocks.size(); ++i) append(text, "{}\n  \"{:08x}\"", i > 0 ? "," : "", meta.blocks[i]);
  text += "\n]";
  if (meta.best_fit_length > 0) text += fmt::format(",\n \"best_fit_length\": {}", meta.best_fit_length);
  if (meta.largest_id) text += fmt::format(",\n \"largest_id\": {}", *meta.largest_id);
  if (meta.tokenizer) text += ",\n \"tokenizer\": " + json_text(tokenizer_record_json(*meta.tokenizer));
  return text + "}\n";
}

void require_vocabulary(const std::string& path, std::optional<int64_t> largest_id, int64_t vocab_size, ExitCode code) {
  if (!largest_id || *largest_id < vocab_size) return;
  throw Error(
      code,
      "{} holds token {}, which is outside the vocabulary of {}: set model.vocab_size above it, or pack the texts "
      "with the model's tokenizer",
      path, *largest_id, vocab_size);
}

std::optional<TokenMeta> read_token_meta(const std::filesystem::path& prefix) {
  const std::filesystem::path path = token_file_path(prefix, ".meta.json");
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    if (!error) return std::nullopt;
    throw Error(ExitCode::data, "cannot read {}: {}", path.native(), error.message());
  }
  const MappedFile file(path);
  std::string text;
  try {
    if (file.size_bytes() > max_file_bytes)
      throw json::other_error::create(505, "it is larger than such a file can be", nullptr);
    text.assign(reinterpret_cast<const char*>(file.data()), file.size_bytes());
    file.check();
    return parse(text);
  } catch (const json::parse_error&) {
    throw Error(ExitCode::data, "{} cannot be used: {}", path.native(), describe_json_fault(text));
  } catch (const json::exception& fault) {
    throw Error(ExitCode::data, "{} cannot be used: {}", path.native(), json_reason(fault));
  }
}

}  // namespace gptrain::data
