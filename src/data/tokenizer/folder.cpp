#include "data/tokenizer/folder.h"

#include <charconv>
#include <optional>
#include <sstream>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/json_scanner.h"
#include "base/output.h"
#include "base/text_file.h"
#include "data/tokenizer/tokenizer_json.h"

namespace gptrain::inline data {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

bool has_file(const fs::path& path) {
  std::error_code unreadable;  // ignored: opening the file reports the reason
  return fs::exists(path, unreadable);
}

json json_in(const fs::path& path) {
  const std::string text = read_text_file(path, max_tokenizer_bytes);
  json content = parse_json_or_discard(text);
  if (content.is_discarded()) throw Error(ExitCode::usage, "{}: {}", path.native(), describe_json_fault(text));
  return content;
}

// Returns the JSON object in a file; an empty object if the file does not exist.
json object_of(const fs::path& path) {
  if (!has_file(path)) return json::object();
  json content = json_in(path);
  if (!content.is_object()) throw Error(ExitCode::usage, "{}: is no JSON object", path.native());
  return content;
}

// A token from a file other than the tokenizer's, in the form of an element of added_tokens.
struct ExtraToken {
  json token;     // has no "id" if the file gives none
  fs::path file;  // for messages
};

json plain_token(const std::string& content, bool special) {
  return {{"content", content}, {"single_word", false},   {"lstrip", false},
          {"rstrip", false},    {"normalized", !special}, {"special", special}};
}

void add_special(const json& value, const fs::path& file, std::vector<ExtraToken>& extra) {
  if (value.is_string() && value != "") extra.push_back({plain_token(value.get<std::string>(), true), file});
  if (value.is_array()) {
    for (const json& element : value) add_special(element, file, extra);
  }
  if (value.is_object() && value.contains("content")) {
    json token = value;
    token["special"] = true;
    token.erase("__type");
    extra.push_back({std::move(token), file});
  }
}

std::vector<ExtraToken> extra_tokens(const fs::path& folder) {
  std::vector<ExtraToken> extra;
  const fs::path config = folder / "tokenizer_config.json";
  const json given = object_of(config);
  const json decoder = given.value("added_tokens_decoder", json::object());
  if (!decoder.is_object()) throw Error(ExitCode::usage, "{}: added_tokens_decoder is no object", config.native());
  for (const auto& [number, value] : decoder.items()) {
    int64_t id = -1;
    std::from_chars(number.data(), number.data() + number.size(), id);
    json token = value;
    if (!token.is_object()) throw Error(ExitCode::usage, "{}: added_tokens_decoder holds no tokens", config.native());
    token["id"] = id;
    extra.push_back({std::move(token), config});
  }
  const fs::path added = folder / "added_tokens.json";
  const json added_content = object_of(added);
  for (const auto& [content, id] : added_content.items()) {
    json token = plain_token(content, false);
    token["id"] = id;
    extra.push_back({std::move(token), added});
  }
  const fs::path map = folder / "special_tokens_map.json";
  const json map_content = object_of(map);
  for (const auto& [name, value] : map_content.items()) add_special(value, map, extra);
  return extra;
}

// Returns the id of a token's text in a tokenizer.json; nullopt if it is no token.
std::optional<json> id_in(const json& root, const std::string& content) {
  for (const json& token : root.value("added_tokens", json::array())) {
    if (token.is_object() && token.value("content", json()) == content) return token.value("id", json());
  }
  const json vocabulary =
      root.contains("model") && root["model"].is_object() ? root["model"].value("vocab", json()) : json();
  for (const std::string& text : {content, to_byte_level(content)}) {
    if (vocabulary.is_object() && vocabulary.contains(text)) return vocabulary[text];
  }
  for (size_t id = 0; vocabulary.is_array() && id < vocabulary.size(); ++id) {
    if (vocabulary[id].is_array() && !vocabulary[id].empty() && vocabulary[id][0] == content) return json(id);
  }
  return std::nullopt;
}

bool is_added(const json& root, const json& content) {
  for (const json& token : root["added_tokens"]) {
    if (token.is_object() && token.value("content", json()) == content) return true;
  }
  return false;
}

// Adds the tokens that `root` lacks. Returns false if it lacks none.
bool add_tokens(const std::vector<ExtraToken>& extra, json& root) {
  bool changed = false;
  if (!root.contains("added_tokens") || !root["added_tokens"].is_array()) root["added_tokens"] = json::array();
  for (const ExtraToken& given : extra) {
    json token = given.token;
    if (!token.contains("content") || !token["content"].is_string())
      throw Error(ExitCode::usage, "{}: holds a token without a text", given.file.native());
    const auto content = token["content"].get<std::string>();
    const std::optional<json> known = id_in(root, content);
    if (!known && !token.contains("id"))
      throw Error(ExitCode::usage, "{}: {} is no token of the vocabulary", given.file.native(), content);
    if (known && token.contains("id") && token["id"] != *known)
      throw Error(ExitCode::usage, "{}: {} has the id {}, and {} in the vocabulary", given.file.native(), content,
                  json_text(token["id"]), json_text(*known));
    if (is_added(root, token["content"])) continue;
    if (known) token["id"] = *known;
    root["added_tokens"].push_back(std::move(token));
    changed = true;
  }
  return changed;
}

std::shared_ptr<const Tokenizer> load_json(const fs::path& path, const std::vector<ExtraToken>& extra) {
  const std::string text = read_text_file(path, max_tokenizer_bytes);
  json root = parse_json_or_discard(text);
  if (!root.is_object() || !add_tokens(extra, root)) return parse_tokenizer_json(text, path.native());
  return parse_tokenizer_json(json_text(root), path.native());
}

std::shared_ptr<const Tokenizer> load_gpt2(const fs::path& folder, const std::vector<ExtraToken>& extra) {
  const json config = object_of(folder / "tokenizer_config.json");
  const json given = config.value("tokenizer_class", json("GPT2Tokenizer"));
  const std::string name = given.is_string() ? given.get<std::string>() : "";
  if (!name.starts_with("GPT2Tokenizer")) {
    throw Error(ExitCode::usage,
                "{}: tokenizer_class {} is not GPT-2's; save its tokenizer.json with transformers "
                "(AutoTokenizer.from_pretrained(...).save_pretrained(...))",
                (folder / "tokenizer_config.json").native(), name);
  }
  // Builds the members of a tokenizer.json, so that the same reader checks both.
  json model = {{"vocab", json_in(folder / "vocab.json")}};
  auto merges = json::array();
  std::istringstream lines(read_text_file(folder / "merges.txt", max_tokenizer_bytes));
  for (std::string line; std::getline(lines, line);) {
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty() && !line.starts_with("#version")) merges.push_back(line);
  }
  model["merges"] = std::move(merges);
  json root = {
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", config.value("add_prefix_space", false)}}},
      {"added_tokens", json::array()},
      {"model", std::move(model)}};
  add_tokens(extra, root);
  const std::string end = "<|endoftext|>";
  const json& vocabulary = root["model"]["vocab"];
  if (vocabulary.is_object() && vocabulary.contains(end) && !is_added(root, end)) {
    json token = plain_token(end, true);
    token["id"] = vocabulary[end];
    root["added_tokens"].push_back(std::move(token));
  }
  return parse_tokenizer_json(json_text(root), folder.native());
}

// Loads a SentencePiece model or a rank file. A rank file takes the new tokens `extra`. A SentencePiece model takes
// none: throws Error(usage) if it lacks one of them or has it under another id.
std::shared_ptr<const Tokenizer> model_with(const std::vector<ExtraToken>& extra, const fs::path& path,
                                            const LoadModel& load_model) {
  auto tokenizer = load_model(path);
  if (tokenizer->sentencepiece() == nullptr) {
    json root = parse_json_or_discard(tokenizer_json(tokenizer->parts()));
    return add_tokens(extra, root) ? parse_tokenizer_json(json_text(root), path.native()) : tokenizer;
  }
  for (const ExtraToken& given : extra) {
    const json content = given.token.value("content", json());
    const std::optional<int32_t> id = content.is_string() ? tokenizer->id_of(content.get<std::string>()) : std::nullopt;
    if (id && given.token.value("id", json(*id)) == *id) continue;
    throw Error(ExitCode::usage, "{}: {} is no token of {} with this id; save a tokenizer.json with transformers",
                given.file.native(), json_text(content), path.filename().native());
  }
  return tokenizer;
}

}  // namespace

std::shared_ptr<const Tokenizer> load_tokenizer_folder(const fs::path& folder, const LoadModel& load_model) {
  const std::vector<ExtraToken> extra = extra_tokens(folder);
  const fs::path model = folder / "tokenizer.model";
  if (has_file(folder / "tokenizer.json")) {
    try {
      return load_json(folder / "tokenizer.json", extra);
    } catch (const Error& error) {
      if (!has_file(model)) throw;
      print_err("note: {} is used instead of tokenizer.json: {}\n", model.native(), error.what());
    }
    return model_with(extra, model, load_model);
  }
  if (has_file(folder / "vocab.json") && has_file(folder / "merges.txt")) return load_gpt2(folder, extra);
  for (const char* name : {"tokenizer.model", "tiktoken.model"})
    if (has_file(folder / name)) return model_with(extra, folder / name, load_model);
  throw Error(ExitCode::usage,
              "{}: the folder holds neither tokenizer.json nor vocab.json and merges.txt nor tokenizer.model nor "
              "tiktoken.model",
              folder.native());
}

}  // namespace gptrain::data
