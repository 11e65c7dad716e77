// Tokenizers compared with ids from Hugging Face tokenizers and tiktoken (tools/compare/compare_tokenizers.py), and
// refusals.
#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/sha256.h"
#include "data/tokenizer/bpe_trainer.h"
#include "data/tokenizer/files.h"
#include "data/tokenizer/record.h"
#include "data/tokenizer/unicode.h"
#include "support.h"

namespace gptrain {
namespace {

using nlohmann::json;
using test::contains;
using test::error_of;

const json& golden() {
  static const json content = parse_json(read_file(GOLDEN_TOKENS));
  return content;
}

std::shared_ptr<const Tokenizer> golden_tokenizer(const std::string& pattern) {
  TokenizerParts parts = parse_tokenizer_json(json_text(golden()["tokenizer"]), "golden")->parts();
  parts.stages = {pattern == "cl100k" ? PatternKind::cl100k : *pattern_of_name(pattern)};
  parts.nfc = pattern == "qwen2";
  return std::make_shared<Tokenizer>(parts);
}

std::vector<int32_t> encode(const std::shared_ptr<const Tokenizer>& tokenizer, std::string_view text) {
  Encoder encoder(tokenizer);
  const auto ids = encoder.encode(text);
  return {ids.begin(), ids.end()};
}

TEST_CASE("Golden ids of every pattern, and back") {
  for (const std::string pattern : {"gpt2", "cl100k", "llama3", "qwen2", "o200k"}) {
    const auto tokenizer = golden_tokenizer(pattern);
    Encoder encoder(tokenizer);
    for (size_t i = 0; i < golden()["texts"].size(); ++i) {
      const auto text = golden()["texts"][i].get<std::string>();
      const auto ids = encoder.encode(text);
      INFO(pattern << ", text " << i << ": " << text);
      CHECK(std::vector<int32_t>(ids.begin(), ids.end()) == golden()["ids"][pattern][i].get<std::vector<int32_t>>());
      std::string normalized;
      const bool changed = pattern == "qwen2" && normalize_nfc(text, normalized);
      CHECK(tokenizer->decode(ids) == (changed ? normalized : text));
    }
  }
}

// Patterns of DeepSeek, Kimi, Qwen3.5 and nanochat, NFKC, every way to split, characters with byte fallback as Llama 2
// and Gemma have them, and Unigram.
TEST_CASE("Golden ids of every form of tokenizer.json") {
  const json forms = parse_json(read_file(GOLDEN_FORMS));
  for (const auto& [name, form] : forms["forms"].items()) {
    const auto tokenizer = parse_tokenizer_json(json_text(form["tokenizer"]), name);
    const auto again = parse_tokenizer_json(tokenizer_text(*tokenizer), "again");
    for (size_t i = 0; i < forms["texts"].size(); ++i) {
      const auto text = forms["texts"][i].get<std::string>();
      INFO(name << ", text " << i << ": " << text);
      const auto expected = form["ids"][i].get<std::vector<int32_t>>();
      CHECK(encode(tokenizer, text) == expected);
      CHECK(encode(again, text) == expected);
    }
  }
}

TEST_CASE("A tokenizer written and read again gives the same ids") {
  for (const std::string pattern : {"gpt2", "llama3", "qwen2", "o200k"}) {
    const auto tokenizer = golden_tokenizer(pattern);
    const auto again = parse_tokenizer_json(tokenizer_json(tokenizer->parts()), "again");
    REQUIRE(again->parts().stages.size() == 1);
    CHECK(std::get<PatternKind>(again->parts().stages[0]) == *pattern_of_name(pattern));
    const auto text = golden()["texts"][3].get<std::string>();
    CHECK(encode(again, text) == encode(tokenizer, text));
  }
}

TEST_CASE("A tokenizer.json may write its merges as strings, and leave out what kind of model it holds") {
  json content = golden()["tokenizer"];
  json& model = content["model"];
  for (json& merge : model["merges"]) merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  model.erase("type");
  const auto again = parse_tokenizer_json(json_text(content), "strings");
  const auto tokenizer = golden_tokenizer("gpt2");
  for (const json& text : golden()["texts"])
    CHECK(encode(again, text.get<std::string>()) == encode(tokenizer, text.get<std::string>()));
}

TEST_CASE("With ignore_merges a piece that is a token is that token, whatever merges make of it") {
  TokenizerParts parts;
  for (int byte = 0; byte < 256; ++byte) parts.tokens.emplace_back(1, static_cast<char>(byte));
  parts.tokens.insert(parts.tokens.end(), {"ab", "abc"});
  parts.merges = {{'a', 'b', 256}};
  parts.stages = {PatternKind::gpt2};
  CHECK(encode(std::make_shared<Tokenizer>(parts), "abc abc") == std::vector<int32_t>{256, 'c', ' ', 256, 'c'});
  parts.ignore_merges = true;
  CHECK(encode(std::make_shared<Tokenizer>(parts), "abc abc") == std::vector<int32_t>{257, ' ', 256, 'c'});
}

TEST_CASE("White space at the end of a text is one piece to tiktoken's cl100k only") {
  const std::string text = "a\n  ";
  CHECK(scanner_of_pattern(PatternKind::cl100k)(text, 1) == 3);
  CHECK(scanner_of_pattern(PatternKind::llama3)(text, 1) == 1);
  CHECK(scanner_of_pattern(PatternKind::gpt2)(text, 1) == 3);
}

// Returns a tokenizer with a tiny vocabulary: bytes, then the results of `merges` on the letters a and b.
std::shared_ptr<const Tokenizer> tokenizer_of_merges(const std::vector<Merge>& merges) {
  TokenizerParts parts;
  for (int byte = 0; byte < 256; ++byte) parts.tokens.emplace_back(1, static_cast<char>(byte));
  for (const Merge& merge : merges) {
    parts.tokens.push_back(parts.tokens[static_cast<size_t>(merge.left)] +
                           parts.tokens[static_cast<size_t>(merge.right)]);
  }
  parts.merges = merges;
  return std::make_shared<Tokenizer>(parts);
}

TEST_CASE("Long pieces are merged as short ones are: the earliest merge first, the leftmost of equals") {
  const auto tokenizer = tokenizer_of_merges({{'a', 'a', 256}, {'b', 'a', 257}, {256, 256, 258}, {257, 'b', 259}});
  uint32_t state = 1;
  for (size_t size = 1; size < 400; ++size) {
    std::string text;
    for (size_t i = 0; i < size; ++i) text += (state = state * 1664525 + 1013904223) >> 28 < 9 ? 'a' : 'b';
    // By definition: look at all pairs, merge the best, repeat.
    std::vector<int32_t> expected(text.begin(), text.end());
    while (true) {
      size_t best_rank = tokenizer->parts().merges.size();
      size_t best_at = 0;
      for (size_t i = 0; i + 1 < expected.size(); ++i) {
        for (size_t rank = 0; rank < best_rank; ++rank) {
          const Merge& merge = tokenizer->parts().merges[rank];
          if (merge.left == expected[i] && merge.right == expected[i + 1]) {
            best_rank = rank;
            best_at = i;
          }
        }
      }
      if (best_rank == tokenizer->parts().merges.size()) break;
      expected[best_at] = tokenizer->parts().merges[best_rank].result;
      expected.erase(expected.begin() + static_cast<std::ptrdiff_t>(best_at) + 1);
    }
    CHECK(encode(tokenizer, text) == expected);
  }
}

TEST_CASE("Added tokens are found first, the longest of several") {
  TokenizerParts parts = golden_tokenizer("gpt2")->parts();
  const auto first = static_cast<int32_t>(parts.tokens.size());
  parts.added = {{.id = first, .content = "<x>", .special = true, .normalized = false},
                 {.id = first + 1, .content = "<x>y", .special = false, .normalized = false}};
  const auto tokenizer = std::make_shared<Tokenizer>(parts);
  const auto ids = encode(tokenizer, "<x><x>y<x");
  REQUIRE(ids.size() >= 3);
  CHECK(ids[0] == first);
  CHECK(ids[1] == first + 1);
  CHECK(tokenizer->decode(ids) == "<x><x>y<x");
  Encoder encoder(tokenizer);
  const auto plain = encoder.encode("<x>", true);
  CHECK(std::find(plain.begin(), plain.end(), first) == plain.end());
  CHECK(tokenizer->decode(plain) == "<x>");
  CHECK(contains(error_of(ExitCode::data, [&] { tokenizer->text_of(first + 2); }), "is no token of"));
}

TEST_CASE("A text cut at a safe place has the same ids") {
  for (const std::string pattern : {"gpt2", "cl100k", "llama3", "qwen2", "o200k"}) {
    const auto tokenizer = golden_tokenizer(pattern);
    std::string text;
    for (const json& part : golden()["texts"]) text += part.get<std::string>() + " it's a word ";
    const size_t cut = tokenizer->last_safe_cut(std::string_view(text).substr(0, text.size() / 2));
    REQUIRE(cut > 0);
    std::vector<int32_t> ids = encode(tokenizer, std::string_view(text).substr(0, cut));
    const std::vector<int32_t> rest = encode(tokenizer, std::string_view(text).substr(cut));
    ids.insert(ids.end(), rest.begin(), rest.end());
    CHECK(ids == encode(tokenizer, text));
  }
}

TEST_CASE("What a tokenizer.json asks for and is not done is refused by name") {
  const std::vector<std::pair<std::string, std::string>> faults = {
      {R"({"model": {"type": "WordPiece"}})", "model.type is \"WordPiece\""},
      {R"({"model": {"type": "Unigram"}})", "model is Unigram after ByteLevel"},
      {R"({"model": {"dropout": 0.1}})", "model.dropout"},
      {R"({"model": {"continuing_subword_prefix": "##"}})", "model.continuing_subword_prefix"},
      {R"({"model": {"merges": ["a b c"]}})", "model.merges holds \"a b c\", which is no \"left right\""},
      {R"({"model": {"merges": ["a ☃"]}})", "model.merges names \"☃\", which is not in model.vocab"},
      {R"({"normalizer": {"type": "Lowercase"}})", "normalizer is Lowercase"},
      {R"({"pre_tokenizer": {"type": "Whitespace"}})", "pre_tokenizer is Whitespace"},
      {R"({"pre_tokenizer": null})", "decoder is ByteLevel"},
      {R"({"pre_tokenizer": null, "decoder": null})", "model has neither ByteLevel nor a token for unknown characters"},
      {R"({"padding": {"strategy": {"Fixed": 5}}})", "padding is set"},
      {R"({"decoder": {"type": "WordPiece"}})", "decoder is WordPiece"},
      {R"({"truncation": {"max_length": 5}})", "truncation is set"},
      {R"({"added_tokens": [{"id": 999, "content": "<x>", "single_word": true}]})", "added_tokens[0].single_word"},
      {R"({"added_tokens": [{"id": 3, "content": "<x>"}]})", "added_tokens[0] has the id 3 of another token"},
      {R"({"added_tokens": [{"id": 900, "content": "<x>"}, {"id": 900, "content": "<y>"}]})",
       "added_tokens[1] has the id 900 of another token"},
      {R"({"added_tokens": [{"id": -1, "content": "<x>"}]})", "added_tokens[0].id is -1"},
  };
  for (const auto& [patch, message] : faults) {
    json content = golden()["tokenizer"];
    content.merge_patch(parse_json(patch));
    INFO(patch);
    CHECK(contains(error_of(ExitCode::usage, [&] { parse_tokenizer_json(json_text(content), "t.json"); }),
                   "t.json: " + message));
  }
  json split = golden()["tokenizer"];
  const auto refusal_of = [&](const std::string& regex) {
    split["pre_tokenizer"] = {{"type", "Sequence"},
                              {"pretokenizers",
                               {{{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}},
                                {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
    return error_of(ExitCode::usage, [&] { encode(parse_tokenizer_json(json_text(split), "t.json"), "x"); });
  };
  for (const std::string regex :
       {"a{1,3}+", "[a&&b]", "[[:alpha:]]", "(?m)a", "\\bx", "\\p{Klingon}", "[b-a]", "a)", "[]"}) {
    INFO(regex);
    CHECK(contains(refusal_of(regex), "t.json: "));
  }
}

TEST_CASE("A byte without a token, and ranks without a pattern, are refused") {
  const TemporaryFolder folder;
  TokenizerParts parts = golden_tokenizer("gpt2")->parts();
  const auto id = golden_tokenizer("gpt2")->id_of("\x07");
  REQUIRE(id);
  parts.tokens[static_cast<size_t>(*id)].clear();
  CHECK(contains(error_of(ExitCode::usage, [&] { Tokenizer{parts}; }), "no token is the byte 0x07"));
  std::string ranks;
  for (int byte = 0; byte < 256; ++byte) {
    constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    ranks += std::string{digits[static_cast<size_t>(byte) >> 2], digits[(static_cast<size_t>(byte) & 3) << 4]} +
             "== " + std::to_string(byte) + "\n";
  }
  write_file(folder / "r", ranks + "YWI= 256\n");
  CHECK(contains(error_of(ExitCode::usage, [&] { load_tokenizer(folder / "r"); }),
                 "257 ranks is not one of the published"));
  CHECK(encode(load_tokenizer(folder / "r", "gpt2"), "ab b") == std::vector<int32_t>{256, ' ', 'b'});
  for (const std::string pattern : {"a$", "^a|b", "\\w+", "[^a]|\\W"}) {
    CHECK(contains(error_of(ExitCode::usage, [&] { load_tokenizer(folder / "r", pattern); }), "as tiktoken does"));
  }
  CHECK(encode(load_tokenizer(folder / "r", "[^\\s\\p{P}]+|\\$"), "ab$b") == std::vector<int32_t>{256, '$', 'b'});
  write_file(folder / "r", ranks + "YWI= 7\n");
  CHECK(contains(error_of(ExitCode::usage, [&] { load_tokenizer(folder / "r", "gpt2"); }),
                 "line 257: rank 7 is given a second time"));
  write_file(folder / "r", "hello\n");
  CHECK(contains(error_of(ExitCode::usage, [&] { load_tokenizer(folder / "r"); }), "neither a tokenizer.json nor"));
  for (const auto& [content, message] : std::vector<std::pair<std::string, std::string>>{
           {R"({"config": {"pattern": ""}, "vocab": []})", "it is no tokenizer.json"},
           {R"({"a": 0, "model": 1, "padding": 2})", "is a list of tokens: name the folder"},
           {"#version: 0.2\na b\n", "is a list of merges: name the folder"},
           {"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "is a Git LFS pointer"}}) {
    write_file(folder / "t.json", content);
    CHECK(contains(error_of(ExitCode::usage, [&] { load_tokenizer(folder / "t.json"); }), message));
  }
}

TEST_CASE("Normalization form C, and bytes that are not UTF-8") {
  const std::vector<std::pair<std::string, std::string>> forms = {
      {"e\xCC\x81", "\xC3\xA9"},                                 // composes
      {"\xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB", "\xED\x95\x9C"},  // Hangul
      {"a\xCC\x81\xCC\xA3", "\xE1\xBA\xA1\xCC\x81"},             // marks are reordered, then composed
      {"\xE2\x84\xAB", "\xC3\x85"},                              // a singleton
      {"\xFF"
       "e\xCC\x81",
       "\xFF\xC3\xA9"},
  };
  for (const auto& [text, expected] : forms) {
    std::string normalized;
    CHECK(normalize_nfc(text, normalized));
    CHECK(normalized == expected);
    CHECK_FALSE(normalize_nfc(expected, normalized));
  }
  CHECK(replace_invalid_utf8("a\xE2\x82z\xC0\xAF\xF0\x9F\x98\xED\xA0\x80") ==
        "a\xEF\xBF\xBDz\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
  CHECK(find_invalid_utf8("12345678\xC3\xA9\xC3") == 10);
}

TEST_CASE("Beginnings of characters") {
  // Unicode 16, table 3-7: a lead byte of two, three or four, and second bytes that follow it.
  const auto num_begun = [](const std::string& start) {
    int count = 0;
    for (int byte = 0; byte < 256; ++byte) count += begins_utf8(start + static_cast<char>(byte)) ? 1 : 0;
    return count;
  };
  CHECK(num_begun("") == 51);
  for (const auto& [start, count] : std::vector<std::pair<std::string, int>>{{"\xC2", 0},
                                                                             {"\xE0", 32},
                                                                             {"\xE1", 64},
                                                                             {"\xED", 32},
                                                                             {"\xF0", 48},
                                                                             {"\xF1", 64},
                                                                             {"\xF4", 16},
                                                                             {"\xF5", 0},
                                                                             {"\xF0\x90", 64},
                                                                             {"\xF0\x8F", 0}})
    CHECK(num_begun(start) == count);
  for (const auto& [text, size] : std::vector<std::pair<std::string, size_t>>{
           {"a\xC3\xA9", 3}, {"a\xC3", 1}, {"a\xF0\x9F\x98", 1}, {"a\xE0\x80", 3}, {"a\xC0", 2}, {"", 0}})
    CHECK(whole_characters_size(text) == size);
}

TEST_CASE("Training merges the most frequent pair, of equals the one with the smaller ids") {
  const TokenizerParts parts = train_bpe({{"abab", 3}, {"cd", 6}, {"ab", 1}, {"xy", 1}}, 262, {"<s>"}, nullptr);
  REQUIRE(parts.tokens.size() == 261);
  CHECK(parts.added.at(0).id == 0);
  std::vector<std::string> learned(parts.tokens.begin() + 257, parts.tokens.end());
  // ab 7 times; then cd 6 times; then abab; then xy; nothing is left.
  CHECK(learned == std::vector<std::string>{"ab", "cd", "abab", "xy"});
  CHECK(contains(error_of(ExitCode::usage, [] { train_bpe({}, 256, {"<s>"}, nullptr); }), "at least 257"));
}

TEST_CASE("A tokenizer's record reads back, and not with another text") {
  CHECK(sha256_hex("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const TokenizerRecord bytes = make_tokenizer_record(Tokenizer(), end_of_document);
  CHECK(bytes.sha256 == "277089d91c0bdf4f2e6862ba7e4a07605119431f5d13f726dd352b06f1b206a9");
  CHECK(bytes.is_bytes());
  CHECK(tokenizer_of(bytes, "here")->is_bytes());
  const auto tokenizer = golden_tokenizer("gpt2");
  const TokenizerRecord record = make_tokenizer_record(*tokenizer, std::nullopt);
  const json object = parse_json(json_text(tokenizer_record_json(record)));
  const TokenizerRecord again = parse_tokenizer_record(object);
  CHECK(again.sha256 == record.sha256);
  CHECK(again.vocab_size == tokenizer->vocab_size());
  CHECK_FALSE(again.end_token.has_value());
  CHECK(make_tokenizer_record(*tokenizer_of(again, "here"), std::nullopt).text == record.text);
  for (const auto& [key, value] : std::vector<std::pair<std::string, json>>{{"text", "bytes"},
                                                                            {"sha256", "00"},
                                                                            {"vocab_size", 0},
                                                                            {"end_token", -1},
                                                                            {"end_token", tokenizer->vocab_size()}}) {
    json changed = object;
    changed[key] = value;
    CHECK_THROWS_AS(parse_tokenizer_record(changed), json::exception);
  }
}

TEST_CASE("Special tokens stand for no bytes of text") {
  const auto tokenizer = golden_tokenizer("gpt2");
  const std::vector<int32_t> bytes = tokenizer->text_bytes();
  REQUIRE(bytes.size() == static_cast<size_t>(tokenizer->vocab_size()));
  for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
    const auto size = static_cast<size_t>(bytes[static_cast<size_t>(id)]);
    if (size > 0) CHECK(tokenizer->text_of(id).size() == size);
  }
  for (const AddedToken& token : tokenizer->parts().added) {
    if (token.special) CHECK(bytes[static_cast<size_t>(token.id)] == 0);
  }
  CHECK(Tokenizer().text_bytes()[end_of_document] == 0);
  CHECK(Tokenizer().text_bytes()[65] == 1);
}

}  // namespace
}  // namespace gptrain
