// Tokenizer folders whose files name further tokens, or contradict each other. The ids are those of Hugging Face
// tokenizers after the same tokens were added.
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "data/tokenizer/files.h"
#include "data/tokenizer/record.h"
#include "data/tokenizer/tokenizer_json.h"
#include "support.h"

namespace gptrain {
namespace {

using nlohmann::json;
using test::contains;
using test::error_of;

constexpr int64_t vocabulary = 258;  // 256 bytes, "ab" and the added <mask>

// A tokenizer.json of all bytes, the merge of a and b, and the special token <mask>.
json tokenizer_of_bytes() {
  json content = parse_json(tokenizer_text(*[] {
    TokenizerParts parts;
    for (int byte = 0; byte < 256; ++byte) parts.tokens.emplace_back(1, static_cast<char>(byte));
    parts.tokens.emplace_back("ab");
    parts.merges = {{'a', 'b', 256}};
    parts.added = {{.id = 257, .content = "<mask>", .special = true, .normalized = false}};
    parts.stages = {PatternKind::gpt2};
    return std::make_shared<Tokenizer>(std::move(parts));
  }()));
  content["model"]["vocab"].erase("<mask>");
  return content;
}

json object_token(bool lstrip) {
  return {{"content", "<mask>"}, {"lstrip", lstrip}, {"rstrip", false}, {"normalized", false}, {"special", true}};
}

class TokenizerFolder {
 public:
  explicit TokenizerFolder(const std::map<std::string, json>& files) {
    write_file(folder_ / "tokenizer.json", json_text(tokenizer_of_bytes()));
    for (const auto& [name, content] : files) write_file(folder_ / name, json_text(content));
  }

  std::vector<int32_t> encode(const std::string& text) const {
    Encoder encoder(load());
    const auto ids = encoder.encode(text);
    return {ids.begin(), ids.end()};
  }

  std::shared_ptr<const Tokenizer> load() const { return load_tokenizer(folder_.path().native(), ""); }

 private:
  TemporaryFolder folder_;
};

using Ids = std::vector<int32_t>;

// As transformers 5.24 reads them.
TEST_CASE("Flags of a token in added_tokens_decoder count, those of a named token do not") {
  const Ids plain = {'x', ' ', 257};
  const Ids stripped = {'x', 257};
  CHECK(TokenizerFolder({}).encode("x <mask>") == plain);
  const json decoder = {{"257", object_token(true)}};
  const json other = {{"257", object_token(false)}};
  for (const auto& [files, ids] : std::vector<std::pair<std::map<std::string, json>, Ids>>{
           {{{"tokenizer_config.json", {{"added_tokens_decoder", decoder}}}}, stripped},
           {{{"tokenizer_config.json", {{"mask_token", object_token(true)}}}}, plain},
           {{{"special_tokens_map.json", {{"mask_token", object_token(true)}}}}, plain},
           {{{"special_tokens_map.json", {{"additional_special_tokens", {object_token(true)}}}}}, plain},
           {{{"special_tokens_map.json", {{"mask_token", "<mask>"}}}}, plain},
           {{{"tokenizer_config.json", {{"added_tokens_decoder", other}}},
             {"special_tokens_map.json", {{"mask_token", object_token(true)}}}},
            plain},
           {{{"tokenizer_config.json", {{"added_tokens_decoder", decoder}, {"mask_token", object_token(false)}}}},
            stripped}}) {
    CHECK(TokenizerFolder(files).encode("x <mask>") == ids);
  }
}

TEST_CASE("Special tokens that only a config names are tokens") {
  for (const json& config : {json{{"eos_token", "cab"}}, json{{"additional_special_tokens", {"cab"}}},
                             json{{"extra_special_tokens", {{"image_token", "cab"}}}},
                             json{{"pad_token", {{"__type", "AddedToken"}, {"content", "cab"}}}}}) {
    INFO(json_text(config));
    for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
      const TokenizerFolder folder({{name, config}});
      CHECK(folder.encode("scabs") == Ids{'s', vocabulary, 's'});
      CHECK(folder.load()->vocab_size() == vocabulary + 1);
    }
  }
  // A token of the merges, named as a special one, is found before the text is split.
  const TokenizerFolder folder({{"tokenizer_config.json", {{"eos_token", "ab"}, {"bos_token", nullptr}}}});
  CHECK(folder.encode("cab") == Ids{'c', 256});
  Encoder encoder(folder.load());
  encoder.encode("cab");
  CHECK(encoder.num_special() == 1);
}

TEST_CASE("Files of a tokenizer folder that contradict each other are refused") {
  for (const auto& [name, content, message] : std::vector<std::tuple<std::string, json, std::string>>{
           {"tokenizer_config.json",
            {{"added_tokens_decoder", {{"300", object_token(true)}}}},
            "<mask> has the id 300 here, but 257 in the vocabulary"},
           {"tokenizer_config.json", {{"added_tokens_decoder", {{"258x", object_token(true)}}}}, "the id \"258x\""},
           {"tokenizer_config.json",
            {{"added_tokens_decoder", {{"258", {{"content", ""}}}}}},
            "a token without a text"},
           {"added_tokens.json", {{"<pad>", 400}}, "<pad> has the id 400, and transformers would give it 258"},
           {"added_tokens.json", {{"<pad>", 5}}, "<pad> has the id 5, and transformers would give it 258"},
           {"added_tokens.json", {{"<pad>", "x"}}, "the id of <pad> is \"x\""},
           {"tokenizer_config.json", {{"add_prefix_space", true}}, "add_prefix_space is true"}}) {
    INFO(name << ": " << json_text(content));
    const TokenizerFolder folder({{name, content}});
    CHECK(contains(error_of(ExitCode::usage, [&] { folder.load(); }), message));
  }
  CHECK(TokenizerFolder({{"tokenizer_config.json", {{"add_prefix_space", false}}}}).encode("x") == Ids{'x'});
}

json added(const std::string& content, int64_t id) { return {{"content", content}, {"id", id}, {"special", true}}; }

// Tokenizers gives an added token that is not in model.vocab the next id behind the vocabulary's number of tokens and
// behind all added ones.
TEST_CASE("Added tokens whose ids the tokenizers library does not keep are refused, in a file and in a folder") {
  const json mask = added("<mask>", 257);
  for (const auto& [list, message] : std::vector<std::pair<json, std::string>>{
           {{mask, added("a", 'a'), added("<x>", 258), added("<y>", 259), added("<x>", 258)}, ""},
           {{mask, added("<x>", 259)},
            "added_tokens[1] has the id 259, and the tokenizers library gives it the next "
            "free one, 258: write it into model.vocab with its id"},
           {{mask, added("<x>", 258), added("<y>", 300)}, "added_tokens[2] has the id 300"},
           {{mask, added("<y>", 259), added("<x>", 258)}, "added_tokens[1] has the id 259"},
           {{added("<x>", 258), mask}, "added_tokens[0] has the id 258"}}) {
    INFO(json_text(list));
    json content = tokenizer_of_bytes();
    content["added_tokens"] = list;
    const TemporaryFolder folder;
    write_file(folder / "tokenizer.json", json_text(content));
    for (const std::filesystem::path& path : {folder.path(), folder / "tokenizer.json"}) {
      if (message.empty())
        CHECK(load_tokenizer(path.native(), "")->vocab_size() == 260);
      else
        CHECK(contains(error_of(ExitCode::usage, [&] { load_tokenizer(path.native(), ""); }), message));
    }
  }
}

TEST_CASE("Vocabularies with gaps are read, and exported so that the tokenizers library keeps the ids") {
  json content = tokenizer_of_bytes();
  content["model"]["vocab"]["ab"] = 700;
  content["model"]["vocab"]["<x>"] = 900;
  content["added_tokens"] = {added("<x>", 900), added("<y>", 901)};
  const TokenizerFolder gaps({{"tokenizer.json", content}});
  CHECK(gaps.encode("ab<x><y>") == Ids{700, 900, 901});

  // A rank file has no place for its special tokens, so that their ids may be any.
  TokenizerParts parts = gaps.load()->parts();
  parts.added = {{.id = 1000, .content = "<z>", .special = true, .normalized = false},
                 {.id = 1001, .content = "<w>", .special = true, .normalized = false}};
  const std::string own = tokenizer_json(parts);
  const std::string exported = with_added_ids(own);
  CHECK(parse_json(exported)["model"]["vocab"]["<z>"] == 1000);
  CHECK(parse_json(exported)["model"]["vocab"]["<w>"] == 1001);
  const TemporaryFolder folder;
  for (const std::string& text : {own, exported}) {  // the program reads its own files whatever their ids
    write_file(folder / "t.json", text);
    Encoder encoder(load_tokenizer((folder / "t.json").native(), ""));
    const auto ids = encoder.encode("ab<z><w>");
    CHECK(Ids(ids.begin(), ids.end()) == Ids{700, 1000, 1001});
  }
  CHECK(with_added_ids(exported) == exported);
  const auto record_of = [](const std::string& text) {
    return make_tokenizer_record(*parse_tokenizer_json(text, "t.json"), std::nullopt);
  };
  CHECK(record_of(own).sha256 != record_of(exported).sha256);
  CHECK(is_same_tokenizer(record_of(own), record_of(exported)));
  parts.added.back().id = 1002;
  CHECK(!is_same_tokenizer(record_of(tokenizer_json(parts)), record_of(exported)));
  CHECK(with_added_ids(json_text(tokenizer_of_bytes())) == json_text(tokenizer_of_bytes()));
}

TEST_CASE("A link in a tokenizer folder that leads nowhere is an error") {
  for (const char* name : {"added_tokens.json", "special_tokens_map.json", "tokenizer.json", "vocab.json"}) {
    const TemporaryFolder folder;
    const std::string tokenizer = std::string_view(name) == "vocab.json" ? "" : "tokenizer.json";
    if (!tokenizer.empty() && tokenizer != name) write_file(folder / tokenizer, json_text(tokenizer_of_bytes()));
    write_file(folder / "merges.txt", "a b\n");
    std::filesystem::create_symlink("nowhere", folder / name);
    CHECK(contains(error_of(ExitCode::usage, [&] { load_tokenizer(folder.path().native(), ""); }),
                   "cannot read " + (folder / name).native()));
  }
}

}  // namespace
}  // namespace gptrain
