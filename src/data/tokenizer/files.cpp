#include "data/tokenizer/files.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <numeric>
#include <optional>
#include <system_error>
#include <unordered_map>

#include "base/base64.h"
#include "base/error.h"
#include "base/json.h"
#include "base/printable.h"
#include "base/text_file.h"
#include "data/tokenizer/folder.h"

namespace gptrain::inline data {
namespace {

namespace fs = std::filesystem;

// Pattern, normalization and special tokens of a published rank file, which does not contain them.
struct Published {
  size_t num_ranks;
  Stage pattern;
  bool nfc;
  std::vector<std::pair<int32_t, std::string>> special;
};

std::vector<std::pair<int32_t, std::string>> special_of_llama3() {
  constexpr int32_t first = 128000;
  constexpr int32_t count = 256;
  std::vector<std::pair<int32_t, std::string>> special;
  const std::array<std::string_view, 11> names = {"<|begin_of_text|>",
                                                  "<|end_of_text|>",
                                                  "<|reserved_special_token_0|>",
                                                  "<|reserved_special_token_1|>",
                                                  "<|finetune_right_pad_id|>",
                                                  "<|step_id|>",
                                                  "<|start_header_id|>",
                                                  "<|end_header_id|>",
                                                  "<|eom_id|>",
                                                  "<|eot_id|>",
                                                  "<|python_tag|>"};
  for (const std::string_view name : names) {
    special.emplace_back(first + static_cast<int32_t>(special.size()), std::string(name));
  }
  for (int32_t i = 2; static_cast<int32_t>(special.size()) < count; ++i) {
    special.emplace_back(first + static_cast<int32_t>(special.size()), fmt::format("<|reserved_special_token_{}|>", i));
  }
  return special;
}

// Returns the pattern of Kimi's models: a run of Han characters is a piece, other words are parted as by o200k.
Stage kimi_stage() {
  const std::string upper = R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]])";
  const std::string lower = R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]])";
  const std::string start = R"([^\r\n\p{L}\p{N}]?)", ending = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?";
  return RegexStage{fmt::format("[\\p{{Han}}]+|{0}{1}*{2}+{3}|{0}{1}+{2}*{3}", start, upper, lower, ending) +
                    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
}

std::optional<Published> published_with(size_t num_ranks) {
  const std::string end = "<|endoftext|>";
  switch (num_ranks) {
    case 50256:
    case 50280:
      return Published{num_ranks, PatternKind::gpt2, false, {{50256, end}}};
    case 100256:
      return Published{num_ranks,
                       PatternKind::cl100k,
                       false,
                       {{100257, end},
                        {100258, "<|fim_prefix|>"},
                        {100259, "<|fim_middle|>"},
                        {100260, "<|fim_suffix|>"},
                        {100276, "<|endofprompt|>"}}};
    case 199998:
      return Published{num_ranks, PatternKind::o200k, false, {{199999, end}, {200018, "<|endofprompt|>"}}};
    case 128000:
      return Published{num_ranks, PatternKind::llama3, false, special_of_llama3()};
    case 151643:
      return Published{
          num_ranks, PatternKind::qwen2, true, {{151643, end}, {151644, "<|im_start|>"}, {151645, "<|im_end|>"}}};
    case 163584:
      return Published{num_ranks, kimi_stage(), false, {{163584, "[BOS]"}, {163585, "[EOS]"}}};
    default:
      return std::nullopt;
  }
}

// Returns false if `text` is not base64. Padding may be missing.
bool decode_base64(std::string_view text, std::string& bytes) {
  bytes.clear();
  while (text.ends_with('=')) text.remove_suffix(1);
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const size_t value = digits.find(c);
    if (value == std::string_view::npos) return false;
    bits = bits << 6 | static_cast<uint32_t>(value);
    count += 6;
    if (count >= 8) {
      count -= 8;
      bytes += static_cast<char>(bits >> count & 0xFF);
    }
  }
  return !bytes.empty();
}

// Returns a merge for each way to split a token into two tokens: tiktoken merges any two neighbours that form a token,
// lowest rank first.
std::vector<Merge> merges_of_ranks(const std::vector<std::string>& tokens) {
  std::unordered_map<std::string_view, int32_t> ids;
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (!tokens[id].empty()) ids.emplace(tokens[id], static_cast<int32_t>(id));
  }
  std::vector<Merge> merges;
  for (size_t id = 0; id < tokens.size(); ++id) {
    const std::string_view token = tokens[id];
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = ids.find(token.substr(0, cut));
      const auto right = ids.find(token.substr(cut));
      if (left == ids.end() || right == ids.end()) continue;
      merges.push_back({left->second, right->second, static_cast<int32_t>(id)});
    }
  }
  return merges;
}

bool looks_like_ranks(std::string_view text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  const size_t space = line.find(' ');
  std::string bytes;
  return space != std::string_view::npos && space + 1 < line.size() && line[space + 1] >= '0' &&
         line[space + 1] <= '9' && decode_base64(line.substr(0, space), bytes);
}

// Returns true for a protocol buffer that begins with the pieces found in every SentencePiece model.
bool looks_like_sentencepiece(std::string_view text) {
  constexpr size_t start_bytes = 64;
  return text.starts_with('\n') && text.substr(0, start_bytes).find("<unk>") != std::string_view::npos;
}

Stage stage_of(const std::string& pattern) {
  if (const auto kind = pattern_of_name(pattern)) return *kind;
  if (const auto kind = pattern_of_regex(pattern)) return *kind;
  return RegexStage{pattern, SplitBehavior::isolated};
}

// Returns the first construct of a pattern that tiktoken reads differently from Hugging Face tokenizers, as gptrain
// reads all constructs; empty: none.
std::string_view read_otherwise_by_tiktoken(std::string_view regex) {
  for (size_t at = 0; at < regex.size(); ++at) {
    if (regex[at] == '\\') {
      if (const std::string_view escape = regex.substr(at, 2); escape == "\\w" || escape == "\\W") return escape;
      ++at;
    } else if (regex[at] == '$' || (regex[at] == '^' && (at == 0 || regex[at - 1] != '['))) {
      return regex.substr(at, 1);
    }
  }
  return {};
}

TokenizerParts read_ranks(std::string_view text, const std::string& source, const std::string& pattern) {
  constexpr size_t max_ranks = size_t{1} << 24;
  TokenizerParts parts;
  parts.source = source;
  size_t num_ranks = 0;
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t newline = text.find('\n');
    std::string_view line = text.substr(0, newline);
    text.remove_prefix(newline == std::string_view::npos ? text.size() : newline + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const size_t space = line.find(' ');
    size_t rank = 0;
    std::string bytes;
    const char* end = line.data() + line.size();
    const bool is_valid = space != std::string_view::npos && decode_base64(line.substr(0, space), bytes) &&
                          std::from_chars(line.data() + space + 1, end, rank).ptr == end && rank < max_ranks;
    if (!is_valid) throw Error(ExitCode::usage, "{}, line {}: not \"BASE64 RANK\"", source, number);
    if (rank >= parts.tokens.size()) parts.tokens.resize(rank + 1);
    if (!parts.tokens[rank].empty())
      throw Error(ExitCode::usage, "{}, line {}: rank {} is given a second time", source, number, rank);
    parts.tokens[rank] = bytes;
    ++num_ranks;
  }
  parts.merges = merges_of_ranks(parts.tokens);
  parts.ignore_merges = true;
  const auto published = published_with(num_ranks);
  if (!pattern.empty()) {
    parts.stages.push_back(stage_of(pattern));
    const bool is_regex = std::holds_alternative<RegexStage>(parts.stages.back());
    if (const auto other = is_regex ? read_otherwise_by_tiktoken(pattern) : std::string_view(); !other.empty())
      throw Error(ExitCode::usage,
                  "{}: gptrain does not match {} in --pattern as tiktoken does; write the pattern without it", source,
                  other);
  } else if (published) {
    parts.stages.emplace_back(published->pattern);
    parts.nfc = published->nfc;
    for (const auto& [id, content] : published->special) parts.added.push_back({id, content, true, false});
  } else {
    throw Error(
        ExitCode::usage,
        "{}: a rank file with {} ranks is not one of the published ones, and does not give its pattern: give --pattern",
        source, num_ranks);
  }
  return parts;
}

}  // namespace

std::string tokenizer_text(const Tokenizer& tokenizer) {
  const SentencePiece* const model = tokenizer.sentencepiece();
  if (model == nullptr) return tokenizer_json(tokenizer.parts());
  return json_text(nlohmann::ordered_json{{"sentencepiece", to_base64(model->model())}}) + "\n";
}

std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& name, const std::string& pattern) {
  if (name == "bytes") return std::make_shared<Tokenizer>();
  fs::path path = name;
  std::error_code unreadable;  // ignored: opening the file reports the reason
  if (fs::is_directory(path, unreadable)) {
    return load_tokenizer_folder(path, [&](const fs::path& model) { return load_tokenizer(model, pattern); });
  }
  if (!fs::exists(path, unreadable) && !unreadable) {
    throw Error(ExitCode::usage,
                "cannot read {}: No such file; the tokenizer of a model is a file of its folder (src/data/README.md, "
                "\"Tokens of a published model\")",
                printable(name));
  }
  const std::string text = read_text_file(path, max_tokenizer_bytes);
  if (text.starts_with("#version: ")) {
    throw Error(ExitCode::usage, "{} is a list of merges: name the folder that holds it and vocab.json", path.native());
  }
  if (looks_like_ranks(text)) return std::make_shared<Tokenizer>(read_ranks(text, path.native(), pattern));
  if (looks_like_sentencepiece(text) || path.extension() == ".model") {
    return std::make_shared<Tokenizer>(std::make_unique<SentencePiece>(text, path.native()), path.native());
  }
  if (!pattern.empty()) throw Error(ExitCode::usage, "--pattern is for rank files; {} says its own", path.native());
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos || text[first] != '{') {
    throw Error(ExitCode::usage, "{}: neither a tokenizer.json nor a tiktoken rank file", path.native());
  }
  return parse_tokenizer_json(text, path.native(), AddedIds::of_tokenizers);
}

}  // namespace gptrain::data
