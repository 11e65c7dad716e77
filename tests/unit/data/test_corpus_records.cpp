// Records of JSONL and CSV however they are joined, inputs without an end, and texts that hold their end token.
#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "data/ingest/block_texts.h"
#include "data/ingest/encode_block.h"
#include "data/ingest/foreign_formats.h"
#include "data/ingest/input_format.h"
#include "data/inspect.h"
#include "data/token_file.h"
#include "data/tokenizer/files.h"
#include "data/tokenizer/tokenizer_json.h"
#include "support.h"

namespace gptrain {
namespace {

using nlohmann::json;
using test::contains;
using test::error_of;

struct Found {
  std::vector<std::string> texts;
  std::vector<std::string> faults;
  bool are_counted = true;  // each fault is one document
};

Found read_records(const std::string& content, const InputFormat& format) {
  TextBlock block;
  block.kind = format.kind;
  block.field = "text";
  block.csv_delimiter = format.csv_delimiter;
  block.csv_column = format.csv_column;
  block.csv_columns = format.csv_columns;
  block.bytes = content.substr(format.header_bytes) + std::string(block_padding, '\0');
  Found found;
  BlockTexts(false).read(
      block, [&](std::string_view text, int64_t) { found.texts.emplace_back(text); },
      [&](int64_t, const std::string& reason, bool is_one_document) {
        found.faults.push_back(reason);
        found.are_counted = found.are_counted && is_one_document;
      });
  return found;
}

InputFormat format_of(const std::string& content, const std::string& name) {
  static const std::string field = "text";
  const std::filesystem::path path = name;
  return find_input_format({.path = path, .start = content, .is_whole = true, .field = field, .field_is_given = false});
}

std::string random_text(std::mt19937& draw) {
  constexpr std::array<std::string_view, 10> parts = {"a", "{", "}", "[]", "\"", "\\", "\n", "\r", "\x1E", "\xC3\xA9"};
  std::string text = "t";
  for (auto left = draw() % 6; left > 0; --left) text += parts[draw() % parts.size()];
  return text;
}

TEST_CASE("Every document of JSONL is found, however values and lines are joined") {
  constexpr std::array<std::string_view, 9> separators = {"\n",     "\r\n",      "\r",           "",      " ",
                                                          "\n\x1E", "\n\n \r\n", "\xEF\xBB\xBF", "\r\r\n"};
  std::mt19937 draw(26);
  for (int round = 0; round < 400; ++round) {
    std::string content = draw() % 4 == 0 ? "\x1E" : "";
    std::vector<std::string> texts;
    const bool is_one_kind = draw() % 2 == 0;
    const auto separator = draw() % separators.size();
    for (auto values = 1 + draw() % 6; values > 0; --values) {
      const bool is_list = draw() % 3 == 0;
      auto list = json::array();
      for (auto left = is_list ? 1 + draw() % 3 : 1; left > 0; --left) {
        texts.push_back(random_text(draw));
        list.push_back({{"id", {{"n", {1, 2}}}}, {"text", texts.back()}});
      }
      content += json_text(is_list ? list : list[0]);
      content += separators[is_one_kind ? separator : draw() % separators.size()];
    }
    INFO(content);
    for (const std::string name : {"a.jsonl", "a.json", "a"}) {
      const InputFormat format = format_of(content, name);
      const Found found = read_records(content, format);
      CHECK(found.texts == texts);
      CHECK(found.faults.empty());
    }
  }
}

TEST_CASE("Each bad value among others on its line is counted once") {
  constexpr std::array<std::string_view, 5> bad = {R"({"text": nul})", R"({"text": 3})", R"({"Text": "a"})",
                                                   R"({"text": "a"},)", R"({"text" "a"})"};
  std::mt19937 draw(3);
  for (int round = 0; round < 200; ++round) {
    std::string line = R"({"text": "first"})";
    std::vector<std::string> texts = {"first"};
    size_t num_bad = 0;
    for (auto values = 1 + draw() % 5; values > 0; --values) {
      if (draw() % 2 == 0) {
        texts.push_back(random_text(draw));
        line += json_text(json{{"text", texts.back()}});
      } else {
        line += bad[draw() % bad.size()];
        ++num_bad;
      }
    }
    INFO(line);
    const Found found = read_records(line + "\n", {.kind = InputKind::jsonl});
    CHECK(found.texts == texts);
    CHECK(found.faults.size() == num_bad);
    CHECK(found.are_counted);
  }
  // Text around one object makes the line one fault.
  for (const std::string line : {R"({"text": "a"} // one)", R"(x {"text": "a"})", R"({"text": "a"}})", "[]", "\x1A"}) {
    const Found found = read_records(line, {.kind = InputKind::jsonl});
    CHECK(found.texts.empty());
    CHECK(found.faults.size() == 1);
  }
}

TEST_CASE("JSON beside the text may be as deep as Python reads it, and deeper JSON is one fault") {
  const auto record = [](size_t levels, const std::string& open, const std::string& close) {
    std::string text = R"({"text": "a", "tree": )";
    for (size_t level = 1; level < levels; ++level) text += open;
    text += "1";
    for (size_t level = 1; level < levels; ++level) text += close;
    return text + "}";
  };
  for (const auto& [open, close] : {std::pair("[", "]"), std::pair(R"({"x": )", "}"), std::pair("[[", "]]")}) {
    // NaN is for the second parser.
    for (const std::string after : {"", R"({"text": "b", "x": NaN})"}) {
      const size_t each = std::string(open) == "[[" ? 2 : 1;
      const size_t number = after.empty() ? 1 : 2;
      for (const size_t levels : {size_t{65}, size_t{500}, 999 / each + 1}) {
        const Found found = read_records(record(levels, open, close) + after, {.kind = InputKind::jsonl});
        CHECK(found.texts.size() == number);
        CHECK(found.faults.empty());
      }
      for (const size_t levels : {1002, 100'000}) {
        const Found found = read_records(record(levels, open, close) + after, {.kind = InputKind::jsonl});
        CHECK(found.texts.size() == number - 1);
        REQUIRE(found.faults.size() == 1);
        CHECK(contains(found.faults[0], "nested deeper than 1000 levels"));
        CHECK(found.are_counted);
      }
    }
  }
  const std::string list = "[" + record(900, "[", "]") + ", " + record(100, "[", "]") + "]";
  CHECK(read_records(list, {.kind = InputKind::json}).texts == std::vector<std::string>{"a", "a"});
}

TEST_CASE("Documents in another place than the field stop, as their number is unknown") {
  for (const auto& [content, message] : std::vector<std::pair<std::string, std::string>>{
           {R"({"data": [{"text": "a"}, {"text": "b"}]})", "member \"data\" is a list of 2 objects"},
           {R"([{"id": 1, "rows": [{"text": "a"}]}])", "member \"rows\" is a list of 1 object:"},
           {R"({"text": {"0": "a", "1": "b"}, "id": {"0": 1, "1": 2}})", "\"text\" is a column of 2 rows"}}) {
    for (const InputKind kind : {InputKind::json, InputKind::jsonl}) {
      const Found found = read_records(content, {.kind = kind});
      REQUIRE(found.faults.size() == 1);
      CHECK(contains(found.faults[0], message));
      CHECK_FALSE(found.are_counted);
    }
  }
  const Found found = read_records(R"({"meta": [{"id": 1}], "other": {"0": 1}})", {.kind = InputKind::jsonl});
  CHECK(found.are_counted);
}

TEST_CASE("A record with documents in another place is one bad record among records that have texts") {
  const std::vector<std::string> hidden = {R"({"data": [{"text": "a"}, {"text": "b"}]})", R"({"text": {"0": "a"}})"};
  const std::string good = R"({"text": "one"})";
  for (const std::string& record : hidden) {
    for (const auto& [lines, list] : std::vector<std::pair<std::string, std::string>>{
             {record + "\n" + good + "\n" + good, "[" + record + ", " + good + ", " + good + "]"},
             {good + "\n" + record + "\n" + good, "[" + good + ", " + record + ", " + good + "]"}}) {
      for (const Found& found :
           {read_records(lines, {.kind = InputKind::jsonl}), read_records(list, {.kind = InputKind::jsonl}),
            read_records(list, {.kind = InputKind::json})}) {
        CHECK(found.texts.size() == 2);
        CHECK(found.faults.size() == 1);
        CHECK(found.are_counted);
      }
    }
    // Values in a row on a line, and lists without a text: each value is counted once, and none after it is lost.
    const std::string lines = record + " " + good + " {} " + record + " " + good + "\n[" + record + ", {}]\n" + good;
    const Found found = read_records(lines, {.kind = InputKind::jsonl});
    CHECK(found.texts.size() == 3);
    CHECK(found.faults.size() == 5);
    CHECK(found.are_counted);
    CHECK_FALSE(read_records(record + "\n{}\n" + record, {.kind = InputKind::jsonl}).are_counted);
    CHECK_FALSE(read_records("[" + record + ", {}, " + record + "]", {.kind = InputKind::json}).are_counted);
  }
}

TEST_CASE("Tables with every delimiter and line end give the same documents") {
  const std::vector<std::string> texts = {"one", "two;|,\t\"x\"\r\nlines", "", "three"};
  for (const char delimiter : {',', '\t', ';', '|'}) {
    for (const std::string_view line_end : {"\n", "\r\n", "\r"}) {
      std::string table = std::string("id") + delimiter + "text" + std::string(line_end);
      for (const std::string& text : texts) {
        std::string quoted;
        for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
        table += std::string("1") + delimiter + '"' + quoted + '"' + std::string(line_end);
      }
      for (const std::string name : {"a.csv", "a"}) {
        const InputFormat format = format_of(table, name);
        CHECK(format.kind == InputKind::csv);
        CHECK(format.csv_delimiter == delimiter);
        CHECK(read_records(table, format).texts == texts);
      }
    }
  }
}

TEST_CASE("Pointers to data that are elsewhere are refused, and say how to fetch it") {
  for (const auto& [content, remedy] : std::vector<std::pair<std::string, std::string>>{
           {"version https://hawser.github.com/spec/v1\noid sha256:a\n", "git lfs pull"},
           {"/annex/objects/MD5E-s123--abc.parquet\n", "git annex get"},
           {"outs:\n- md5: abc\n  size: 1\n  path: a.jsonl\n", "dvc pull"},
           {"# xet version 0\n", "git xet"},
           {"x\x9C\xAB", "decompress it"}}) {
    CHECK(contains(error_of(ExitCode::data, [&] { refuse_foreign_format("a.jsonl", content); }), remedy));
  }
  CHECK(contains(error_of(ExitCode::data, [&] { format_of("md5: 1\nouts: 2\n", "a.jsonl.dvc"); }), "dvc pull"));
}

TEST_CASE("Text of two or four bytes a character is named without a byte order mark") {
  const std::u32string ascii = U"{\"text\": \"the quick brown fox\"}\n";
  const std::u32string wide = U"{\"text\": \"\u65e5\u672c\u8a9e, \u0416 and words\"}\n";
  for (const std::u32string& text : {ascii, wide}) {
    for (const size_t width : {2U, 4U}) {
      for (const bool big_endian : {false, true}) {
        std::string bytes;
        for (const char32_t c : text) {
          std::string unit = test::little_endian(c, static_cast<int>(width));
          if (big_endian) std::reverse(unit.begin(), unit.end());
          bytes += unit;
        }
        INFO(width << " " << big_endian);
        CHECK(contains(error_of(ExitCode::data, [&] { refuse_foreign_format("a.jsonl", bytes); }),
                       width == 2 ? "text in UTF-16" : "text in UTF-32"));
      }
    }
  }
  CHECK_NOTHROW(refuse_foreign_format("a", std::string("words, ") + '\0' + " and more of them"));
}

TEST_CASE("A record or a text that does not end is refused at its limit") {
  const TemporaryFolder folder;
  const std::string filler(size_t{5} << 20, 'a');
  for (const auto& [name, content] :
       std::vector<std::pair<std::string, std::string>>{{"a.jsonl", "{\"text\": \"b\"}\n{\"text\": \"" + filler},
                                                        {"a.csv", "id,text\n1,b\n1,\"" + filler},
                                                        {"a.json", "[{\"text\": \"" + filler},
                                                        {"a.txt", filler}}) {
    write_file(folder / name, content);
    const std::vector<TextInput> inputs = {{folder / name, static_cast<int64_t>(content.size()), 0}};
    const bool is_record = name == "a.jsonl" || name == "a.csv";
    ReadOptions options;
    (is_record ? options.max_record_bytes : options.max_whole_bytes) = int64_t{4} << 20;
    BlockReader reader(inputs, options, [](std::string_view text) { return last_safe_cut(text); });
    const std::string message = error_of(ExitCode::data, [&] {
      while (reader.next()) continue;
    });
    CHECK(contains(message, is_record ? "the record that begins here has more than 4.0 MiB"
                                      : "the text that begins here has more than 4.0 MiB"));
    CHECK(contains(message,
                   name + ", line " + (name == "a.csv" || name == "a.jsonl" ? (name == "a.csv" ? "3" : "2") : "1")));
  }
}

// A tokenizer of bytes whose token 256 is a special one, 257 an added one that is not special, and 258 the merge "ab".
std::shared_ptr<const Tokenizer> tokenizer_with_ends() {
  TokenizerParts parts;
  for (int byte = 0; byte < 256; ++byte) parts.tokens.emplace_back(1, static_cast<char>(byte));
  parts.tokens.resize(258);
  parts.tokens.emplace_back("ab");
  parts.merges = {{'a', 'b', 258}};
  parts.added = {{.id = 256, .content = "<end>", .special = true, .normalized = false},
                 {.id = 257, .content = "<eot>", .special = false, .normalized = false}};
  parts.stages = {PatternKind::gpt2};
  return std::make_shared<Tokenizer>(std::move(parts));
}

TEST_CASE("The end token within texts is counted, and is there only if tokens are asked for") {
  const auto tokenizer = tokenizer_with_ends();
  constexpr std::array<std::string_view, 6> parts = {"<end>", "<eot>", "ab", "a", "<", " "};
  std::mt19937 draw(9);
  std::string content;
  std::vector<std::string> texts;
  for (int i = 0; i < 200; ++i) {
    texts.emplace_back("x");
    for (auto left = draw() % 4; left > 0; --left) texts.back() += parts[draw() % parts.size()];
    content += json_text(json{{"text", texts.back()}}) + "\n";
  }
  TextBlock block;
  block.kind = InputKind::jsonl;
  block.field = "text";
  block.bytes = content + std::string(block_padding, '\0');
  for (const int32_t end : {256, 257, 258}) {
    const std::string name = end == 258 ? "ab" : std::string(tokenizer->text_of(end));
    int64_t with_end = 0;
    for (const std::string& text : texts) with_end += contains(text, name) ? 1 : 0;
    REQUIRE(with_end > 0);
    for (const SpecialInText way : {SpecialInText::tokens, SpecialInText::text, SpecialInText::refuse}) {
      EncodeOptions options;
      options.end_token = end;
      options.special_in_text = way;
      const EncodedBlock encoded = BlockEncoder(tokenizer, options).encode(block);
      INFO(name << ", way " << static_cast<int>(way));
      CHECK(encoded.special_in_text >= with_end);
      CHECK(std::ssize(encoded.ends) + encoded.num_faults == std::ssize(texts));
      const auto ids = encoded.ids.ids32();
      const auto found = std::count(ids.begin(), ids.end(), end) - std::ssize(encoded.ends);
      CHECK((found > 0) == (way == SpecialInText::tokens));
      // A piece of the merges has no other spelling: its documents are faults.
      if (way == SpecialInText::text) CHECK(encoded.num_faults == (end == 258 ? with_end : 0));
      if (way == SpecialInText::refuse) CHECK(encoded.num_faults >= with_end);
    }
  }
}

TEST_CASE("Ids of four bytes that no vocabulary has are found by data verify") {
  const TemporaryFolder folder;
  test::RawTokenFile::of({{1, 2, -100, 3}}, 4).write(folder / "labels");
  const std::string message =
      error_of(ExitCode::data, [&] { verify_tokens(folder / "labels", any_vocabulary, nullptr); });
  CHECK(contains(message, "token -100 at position 2"));
  test::RawTokenFile::of({{1, 2, 70000, 3}}, 4).write(folder / "wide");
  CHECK(contains(verify_tokens(folder / "wide", any_vocabulary, nullptr), "sound"));
}

// Ids of Hugging Face tokenizers 0.23 for all texts of 1 to 4 letters a, \u00E9 (two tokens of bytes) and \u00FC (of
// whose bytes one is no token), digits joined.
TEST_CASE("An unknown character among tokens of bytes stands where Hugging Face tokenizers put it") {
  const std::vector<std::pair<bool, std::string>> golden = {
      {false,
       "1 23 0 11 123 10 231 2323 230 01 230 00 111 1123 110 1231 12323 1230 101 1230 100 2311 23123 2310 23231 232323 "
       "23230 2301 23230 2300 011 0123 010 2301 23230 2300 001 0230 000"},
      {true,
       "1 23 0 11 123 10 231 2323 230 01 230 0 111 1123 110 1231 12323 1230 101 1230 10 2311 23123 2310 23231 232323 "
       "23230 2301 23230 230 011 0123 010 2301 23230 230 01 230 0"}};
  for (const auto& [fuses, expected] : golden) {
    const json content = {{"model",
                           {{"type", "BPE"},
                            {"unk_token", "<unk>"},
                            {"fuse_unk", fuses},
                            {"byte_fallback", true},
                            {"vocab", {{"<unk>", 0}, {"a", 1}, {"<0xC3>", 2}, {"<0xA9>", 3}}},
                            {"merges", json::array()}}}};
    Encoder encoder(parse_tokenizer_json(json_text(content), "t.json"));
    std::string found;
    constexpr std::array<std::string_view, 3> letters = {"a", "\xC3\xA9", "\xC3\xBC"};
    size_t num_texts = 1;
    for (int length = 1; length <= 3; ++length) {
      num_texts *= letters.size();
      for (size_t number = 0; number < num_texts; ++number) {
        std::string text;
        for (size_t index = num_texts / letters.size(); index > 0; index /= letters.size())
          text += letters[number / index % letters.size()];
        if (!found.empty()) found += ' ';
        for (const int32_t id : encoder.encode(text)) found += std::to_string(id);
      }
    }
    CHECK(found == expected);
  }
}

}  // namespace
}  // namespace gptrain
