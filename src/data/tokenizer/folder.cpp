#include "data/tokenizer/folder.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/json_scanner.h"
#include "base/output.h"
#include "base/printable.h"
#include "base/text_file.h"
#include "data/tokenizer/tokenizer_json.h"

namespace gptrain::inline data {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// A link that leads nowhere counts: opening it reports the reason.
bool has_file(const fs::path& path) {
  std::error_code unreadable;  // ignored: opening the file reports the reason
  return fs::exists(fs::symlink_status(path, unreadable));
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
  json token;              // has no "id" if the file gives none
  fs::path file;           // for messages
  bool has_flags;          // its lstrip and the like replace those of tokenizer.json
  bool may_be_new = true;  // otherwise another file must add it
};

json plain_token(const std::string& content, bool special) {
  return {{"content", content}, {"single_word", false},   {"lstrip", false},
          {"rstrip", false},    {"normalized", !special}, {"special", special}};
}

// Returns a token with the flags that transformers' AddedToken has by default, where `value` gives none.
json token_with_defaults(const json& value, bool special, const fs::path& file) {
  if (!value.contains("content") || !value["content"].is_string() || value["content"] == "")
    throw Error(ExitCode::usage, "{}: holds a token without a text", file.native());
  json token = plain_token(value["content"].get<std::string>(), special || value.value("special", json(false)) == true);
  for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized"})
    if (value.contains(flag)) token[flag] = value[flag];
  return token;
}

void add_special(const json& value, const fs::path& file, std::vector<ExtraToken>& extra) {
  if (value.is_string() && value != "")
    extra.push_back({.token = plain_token(value.get<std::string>(), true), .file = file, .has_flags = false});
  if (value.is_array()) {
    for (const json& element : value) add_special(element, file, extra);
  }
  if (!value.is_object()) return;
  if (value.contains("content")) {
    extra.push_back({.token = token_with_defaults(value, true, file), .file = file, .has_flags = false});
  } else {
    for (const auto& [name, element] : value.items()) add_special(element, file, extra);
  }
}

// Adds the special tokens that a file names, in the order in which transformers adds them. Their flags count where no
// other file has the token.
void add_named(const fs::path& file, const json& names, std::vector<ExtraToken>& extra) {
  static constexpr std::array<std::string_view, 9> added = {
      "bos_token",           "eos_token", "unk_token",  "sep_token",
      "pad_token",           "cls_token", "mask_token", "additional_special_tokens",
      "extra_special_tokens"};
  for (const std::string_view name : added) add_special(names.value(name, json()), file, extra);
  // Releases of transformers differ on these: some add the tokens, others do not.
  const size_t num_added = extra.size();
  for (const auto& [name, value] : names.items()) {
    const bool is_known = std::find(added.begin(), added.end(), name) != added.end();
    if (!is_known && (name.ends_with("_token") || name == "model_specific_special_tokens"))
      add_special(value, file, extra);
  }
  for (size_t i = num_added; i < extra.size(); ++i) extra[i].may_be_new = false;
}

void add_with_ids(const std::map<int64_t, json>& tokens, const fs::path& file, bool has_flags,
                  std::vector<ExtraToken>& extra) {
  for (const auto& [id, value] : tokens) {
    json token = value;
    token["id"] = id;
    extra.push_back({.token = std::move(token), .file = file, .has_flags = has_flags});
  }
}

// Returns the tokens of tokenizer_config.json, added_tokens.json and special_tokens_map.json in transformers' order.
std::vector<ExtraToken> extra_tokens(const fs::path& folder) {
  std::vector<ExtraToken> extra;
  const fs::path config = folder / "tokenizer_config.json";
  const json given = object_of(config);
  if (given.value("split_special_tokens", json(false)) == true)
    throw Error(ExitCode::usage,
                "{}: split_special_tokens is true, so that texts have no special tokens: remove it, and pass "
                "--special-in-text text to `gptrain data pack`",
                config.native());
  const json decoder = given.value("added_tokens_decoder", json::object());
  if (!decoder.is_object())
    throw Error(ExitCode::usage, "{}: added_tokens_decoder is not a JSON object", config.native());
  std::map<int64_t, json> by_id;
  for (const auto& [number, value] : decoder.items()) {
    int64_t id = -1;
    const char* const end = number.data() + number.size();
    if (std::from_chars(number.data(), end, id).ptr != end || id < 0)
      throw Error(ExitCode::usage,
                  "{}: added_tokens_decoder has the id \"{}\", which is not a whole number of at least 0",
                  config.native(), number);
    if (!value.is_object()) throw Error(ExitCode::usage, "{}: added_tokens_decoder holds no tokens", config.native());
    by_id[id] = token_with_defaults(value, false, config);
  }
  add_with_ids(by_id, config, true, extra);
  by_id.clear();
  const fs::path added = folder / "added_tokens.json";
  const json added_content = object_of(added);
  for (const auto& [content, id] : added_content.items()) {
    if (!id.is_number_unsigned() || by_id.contains(id.get<int64_t>()))
      throw Error(ExitCode::usage, "{}: the id of {} is {}, must be a number that no other token has", added.native(),
                  content, json_text(id));
    by_id[id.get<int64_t>()] = plain_token(content, false);
  }
  add_with_ids(by_id, added, false, extra);
  add_named(config, given, extra);
  const fs::path map = folder / "special_tokens_map.json";
  add_named(map, object_of(map), extra);
  return extra;
}

// Returns the vocabulary of a tokenizer.json: an object for BPE, a list for Unigram; null if it has none.
const json& vocabulary_of(const json& root) {
  static const json none;
  const auto model = root.find("model");
  if (model == root.end() || !model->is_object()) return none;
  const auto vocabulary = model->find("vocab");
  return vocabulary == model->end() ? none : *vocabulary;
}

// Returns the element of added_tokens with this text; null if there is none. REQUIRES: added_tokens is a list.
json* find_added(json& root, const json& content) {
  for (json& token : root["added_tokens"]) {
    if (token.is_object() && token.value("content", json()) == content) return &token;
  }
  return nullptr;
}

// Returns the id of a token's text in a tokenizer.json; nullopt if it is no token.
std::optional<json> id_in(json& root, const std::string& content) {
  if (const json* const added = find_added(root, content); added != nullptr) return added->value("id", json());
  const json& vocabulary = vocabulary_of(root);
  for (const std::string& text : {content, to_byte_level(content)}) {
    if (vocabulary.is_object() && vocabulary.contains(text)) return vocabulary[text];
  }
  for (size_t id = 0; vocabulary.is_array() && id < vocabulary.size(); ++id) {
    if (vocabulary[id].is_array() && !vocabulary[id].empty() && vocabulary[id][0] == content) return json(id);
  }
  return std::nullopt;
}

// Returns the id that Hugging Face tokenizers give the next added token.
int64_t next_id(const json& root) {
  auto next = static_cast<int64_t>(vocabulary_of(root).size());
  for (const json& token : root["added_tokens"]) {
    if (token.is_object() && token.value("id", json()).is_number_integer())
      next = std::max(next, token["id"].get<int64_t>() + 1);
  }
  return next;
}

// Replaces the flags of an added token. Returns false if they are the same.
bool replace_flags(const ExtraToken& given, json& token) {
  bool changed = false;
  for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized", "special"}) {
    const json absent =
        std::string_view(flag) == "normalized" ? json(token.value("special", json(false)) != true) : json(false);
    if (token.value(flag, absent) == given.token[flag]) continue;
    token[flag] = given.token[flag];
    changed = true;
  }
  return changed;
}

// Adds the tokens that `root` lacks, and replaces flags, as transformers does. `ids_are_free`: an id that a file gives
// need not be the next one. Returns false if nothing changes.
bool add_tokens(const std::vector<ExtraToken>& extra, bool ids_are_free, json& root) {
  bool changed = false;
  if (!root.contains("added_tokens") || !root["added_tokens"].is_array()) root["added_tokens"] = json::array();
  for (const ExtraToken& given : extra) {
    json token = given.token;
    const auto content = token["content"].get<std::string>();
    const std::optional<json> known = id_in(root, content);
    if (known && token.contains("id") && token["id"] != *known)
      throw Error(ExitCode::usage, "{}: {} has the id {} here, but {} in the vocabulary", given.file.native(), content,
                  json_text(token["id"]), json_text(*known));
    if (json* const added = find_added(root, token["content"]); added != nullptr) {
      if (given.has_flags) changed = replace_flags(given, *added) || changed;
      continue;
    }
    if (!given.may_be_new)
      throw Error(ExitCode::usage,
                  "{}: {} is named as a special token, and tokenizer.json has it not in added_tokens: releases of "
                  "transformers differ on it; save the tokenizer anew with yours",
                  given.file.native(), content);
    const int64_t next = next_id(root);
    if (!known && !token.contains("id"))
      print_err("note: {}: {} is no token of the vocabulary, and is added with the id {}, as in transformers\n",
                given.file.native(), content, next);
    if (!known && token.contains("id") && token["id"] != next && !ids_are_free)
      throw Error(ExitCode::usage, "{}: {} has the id {}, and transformers would give it {}, the next free one",
                  given.file.native(), content, json_text(token["id"]), next);
    if (!token.contains("id")) token["id"] = known ? *known : json(next);
    root["added_tokens"].push_back(std::move(token));
    changed = true;
  }
  return changed;
}

// Throws Error(usage) if tokenizer_config.json and tokenizer.json differ on the space before a text: the first counts
// in transformers.
void refuse_other_prefix(const fs::path& folder, const json& root) {
  const fs::path config = folder / "tokenizer_config.json";
  const json given = object_of(config).value("add_prefix_space", json());
  const json pre_tokenizer = root.value("pre_tokenizer", json());
  if (!given.is_boolean() || !pre_tokenizer.is_object()) return;
  const json scheme = pre_tokenizer.value("prepend_scheme", json());
  json own = pre_tokenizer.value("add_prefix_space", json());
  if (scheme.is_string()) own = scheme != "never";
  if (!own.is_boolean() || own == given) return;
  throw Error(ExitCode::usage,
              "{}: add_prefix_space is {}, and its pre_tokenizer in tokenizer.json says otherwise: save both anew with "
              "transformers",
              config.native(), json_text(given));
}

std::shared_ptr<const Tokenizer> load_json(const fs::path& path, const std::vector<ExtraToken>& extra) {
  const std::string text = read_text_file(path, max_tokenizer_bytes);
  json root = parse_json_or_discard(text);
  if (root.is_object()) refuse_other_prefix(path.parent_path(), root);
  const bool is_changed = root.is_object() && add_tokens(extra, false, root);
  return parse_tokenizer_json(is_changed ? json_text(root) : text, path.native(), AddedIds::of_tokenizers);
}

// Throws Error(usage) if a list of merges is too short for its vocabulary: the rest of a download that broke off.
void refuse_short_merges(const fs::path& folder, const json& vocabulary, size_t num_merges) {
  constexpr size_t most_without = 256 + 64;  // the bytes, and special tokens
  if (vocabulary.size() <= most_without + 2 * num_merges) return;
  throw Error(ExitCode::usage, "{} has {} merges, too few for the {} tokens of vocab.json: fetch it again",
              (folder / "merges.txt").native(), num_merges, vocabulary.size());
}

// Throws Error(usage) for a line of merges.txt that is no merge of tokens, most likely because the file was cut there.
void refuse_cut_merge(const fs::path& folder, int64_t number, const std::string& line, const json& vocabulary,
                      bool is_at_end) {
  const size_t space = line.find(' ');
  const bool is_pair = space != std::string::npos && space > 0 && space + 1 < line.size() &&
                       line.find(' ', space + 1) == std::string::npos;
  const auto is_token = [&](const std::string& text) { return !vocabulary.is_object() || vocabulary.contains(text); };
  if (is_pair && is_token(line.substr(0, space)) && is_token(line.substr(space + 1)) &&
      is_token(line.substr(0, space) + line.substr(space + 1)))
    return;
  throw Error(ExitCode::usage, "{}, line {}: \"{}\" {}{}", (folder / "merges.txt").native(), number,
              printable(line, 40),
              is_pair ? "is no merge of two tokens of vocab.json" : "is no pair of tokens with a space between them",
              is_at_end ? ", and the file ends there, without a line end: it was cut, fetch it again" : "");
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
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty() || line.starts_with("#version")) continue;
    refuse_cut_merge(folder, number, line, model["vocab"], lines.eof());
    merges.push_back(line);
  }
  refuse_short_merges(folder, model["vocab"], merges.size());
  model["merges"] = std::move(merges);
  json root = {
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", config.value("add_prefix_space", false)}}},
      {"added_tokens", json::array()},
      {"model", std::move(model)}};
  add_tokens(extra, true, root);
  const std::string end = "<|endoftext|>";
  const json& vocabulary = root["model"]["vocab"];
  if (vocabulary.is_object() && vocabulary.contains(end) && find_added(root, end) == nullptr) {
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
    return add_tokens(extra, true, root) ? parse_tokenizer_json(json_text(root), path.native()) : tokenizer;
  }
  for (const ExtraToken& given : extra) {
    const json content = given.token.value("content", json());
    const std::optional<int32_t> id = content.is_string() ? tokenizer->id_of(content.get<std::string>()) : std::nullopt;
    if (id && given.token.value("id", json(*id)) == *id) continue;
    throw Error(ExitCode::usage,
                "{}: {} is not in {}, or has another id there, and a SentencePiece model takes no new tokens; save a "
                "tokenizer.json with transformers, and use that",
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
