#include <cmath>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "data/inspect.h"
#include "data/pack.h"
#include "data/token_file.h"
#include "support.h"

namespace gptrain {
namespace {

using test::contains;
using test::error_of;
using test::RawTokenFile;

PackOptions options_of(const std::vector<std::filesystem::path>& inputs, const std::filesystem::path& prefix) {
  PackOptions options;
  options.inputs.assign(inputs.begin(), inputs.end());
  options.out_prefix = prefix;
  options.tokenizer = std::make_shared<Tokenizer>();
  return options;
}

PackResult pack(const std::vector<std::filesystem::path>& inputs, const std::filesystem::path& prefix) {
  return pack(options_of(inputs, prefix), nullptr);
}

// Returns the documents of a packed file without their end tokens, which are checked.
std::vector<std::string> documents_of(const std::filesystem::path& prefix) {
  const TokenFile file(prefix);
  std::vector<std::string> documents;
  for (int64_t i = 0; i < file.num_documents(); ++i) {
    const TokenFile::Range range = file.document(i);
    std::vector<int32_t> tokens(static_cast<size_t>(range.count));
    file.read(range, 257, tokens.data());
    REQUIRE(tokens.back() == 256);
    documents.emplace_back();
    for (size_t k = 0; k + 1 < tokens.size(); ++k) documents.back() += static_cast<char>(tokens[k]);
  }
  return documents;
}

TEST_CASE("A text file is one document, byte for byte") {
  const TemporaryFolder folder;
  std::string all_bytes;
  for (int byte = 0; byte < 256; ++byte) all_bytes += static_cast<char>(byte);
  const std::vector<std::string> texts = {"a\r\nb\r\n", "no newline at the end", "\xC3\xA4\xE2\x82\xAC\n", all_bytes};
  std::vector<std::filesystem::path> inputs;
  int64_t size = 0;
  for (const std::string& text : texts) {
    inputs.push_back(folder / (std::to_string(inputs.size()) + ".txt"));
    write_file(inputs.back(), text);
    size += static_cast<int64_t>(text.size());
  }
  PackOptions options = options_of(inputs, folder / "out");
  options.reading.kind = InputKind::text;
  const PackResult result = pack(options, nullptr);
  CHECK(result.documents == 4);
  CHECK(result.empty_documents == 0);
  CHECK(result.input_bytes == size);
  CHECK(result.tokens == size + 4);
  CHECK(TokenFile(folder / "out").dtype() == DType::u16);
  CHECK(documents_of(folder / "out") == texts);
}

TEST_CASE("A text longer than the reader's chunk is packed whole, with progress") {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; text.size() < 3'000'000; ++i) text += std::to_string(i) + ' ';
  write_file(folder / "long.txt", text);
  std::vector<PackProgress> reports;
  pack(options_of({folder / "long.txt"}, folder / "out"), [&](const PackProgress& done) { reports.push_back(done); });
  CHECK(documents_of(folder / "out") == std::vector<std::string>{text});
  REQUIRE(reports.size() >= 3);
  // The first report comes before any work, since rates count from it.
  CHECK(reports.front().done_bytes == 0);
  CHECK(reports.front().tokens == 0);
  const auto total = static_cast<int64_t>(text.size());
  CHECK(reports.back().done_bytes == total);
  CHECK(reports.back().tokens == total + 1);
  for (size_t i = 0; i + 1 < reports.size(); ++i) {
    CHECK(reports[i].done_bytes <= reports[i + 1].done_bytes);
    CHECK(reports[i].tokens <= reports[i].done_bytes);
    CHECK(reports[i].tokens < reports[i + 1].tokens);
    CHECK(reports[i].total_bytes == total);
  }
}

TEST_CASE("The message of what stops in spite of skip_faults is its own, not that of a record that is left out") {
  const TemporaryFolder folder;
  std::string lines;
  for (int i = 0; i < 12; ++i) lines += "{}\n";
  write_file(folder / "in.jsonl", lines + R"({"data": [{"text": "one"}]})" + "\n");
  PackOptions options = options_of({folder / "in.jsonl"}, folder / "out");
  CHECK(contains(error_of(ExitCode::data, [&] { pack(options, nullptr); }), "line 1: no member \"text\""));
  options.skip_faults = true;
  CHECK(contains(error_of(ExitCode::data, [&] { pack(options, nullptr); }),
                 "line 13: no member \"text\", but member \"data\""));
}

TEST_CASE("JSONL: one document a line") {
  const TemporaryFolder folder;
  const std::string lines =
      "{\"text\": \"one\"}\r\n"
      "{\"id\": 7, \"text\": \"t\\u00e4b\\tnew\\nline\", \"meta\": {\"text\": 1}}\n"
      "\n"
      "  \r\n"
      "{\"text\": \"\"}\n"
      "{\"text\": \"last\"}";
  write_file(folder / "in.jsonl", lines);
  const PackResult result = pack({folder / "in.jsonl"}, folder / "out");
  CHECK(documents_of(folder / "out") == std::vector<std::string>{"one",
                                                                 "t\xC3\xA4"
                                                                 "b\tnew\nline",
                                                                 "last"});
  CHECK(result.documents == 3);
  CHECK(result.empty_documents == 1);
  CHECK(result.input_bytes == static_cast<int64_t>(lines.size()));
  CHECK(result.tokens == 3 + 13 + 4 + 3);
}

TEST_CASE("Faults of JSONL name file and line, and leave what was there") {
  const std::vector<std::pair<std::string, std::string>> faults = {
      {"{\"text\": \"a\"", "in.jsonl, line 3: not valid JSON"},
      {"{\"text\": \"\xFF\"}", "in.jsonl, line 3: not valid JSON"},
      {"{\"text\": \"a\"} {}", "in.jsonl, line 3: no member \"text\""},
      {"{\"text\": \"a\"} x", "in.jsonl, line 3: not valid JSON"},
      {"{\"Text\": \"a\"}", "in.jsonl, line 3: no member \"text\""},
      {"{\"text\": 3}", "in.jsonl, line 3: member \"text\" is of type number, must be a string"},
      {"{\"text\": null}", "in.jsonl, line 3: member \"text\" is of type null"},
      {"[\"text\"]", "in.jsonl, line 3: string where an object"},
      {"\"text\"", "in.jsonl, line 3: string where an object"},
  };
  const TemporaryFolder folder;
  write_file(folder / "good.txt", "good");
  pack({folder / "good.txt"}, folder / "out");
  const auto names = [&] { return file_names(folder.path()); };
  for (const auto& [line, message] : faults) {
    write_file(folder / "in.jsonl", "{\"text\": \"fine\"}\n\n" + line + "\n");
    const std::string found = error_of(ExitCode::data, [&] { pack({folder / "in.jsonl"}, folder / "out"); });
    INFO(found);
    CHECK(contains(found, message));
    CHECK(names() == std::vector<std::string>{"good.txt", "in.jsonl", "out.bin", "out.idx", "out.meta.json"});
    CHECK(documents_of(folder / "out") == std::vector<std::string>{"good"});
    error_of(ExitCode::data, [&] { pack({folder / "good.txt", folder / "in.jsonl"}, folder / "new"); });
    CHECK(names().size() == 5);
  }
}

TEST_CASE("Inputs that cannot be packed are refused") {
  const TemporaryFolder folder;
  write_file(folder / "empty.txt", "");
  write_file(folder / "empty.jsonl", "\n{\"text\": \"\"}\n");
  write_file(folder / "a.txt", "a");
  std::filesystem::create_directory(folder / "sub");
  const auto refusal = [&](const std::vector<std::filesystem::path>& inputs) {
    return error_of(ExitCode::data, [&] { pack(inputs, folder / "out"); });
  };
  CHECK(contains(refusal({folder / "sub"}), "sub: the folder holds no file"));
  CHECK(contains(refusal({folder / "a.txt", folder / "gone.txt"}), "gone.txt: No such file or directory"));
  CHECK(contains(refusal({"/dev/null"}), "/dev/null: not a regular file"));
  CHECK(contains(refusal({folder / "empty.txt", folder / "empty.jsonl"}), "nothing to pack"));
  CHECK(contains(error_of(ExitCode::usage, [&] { pack({}, folder / "out"); }), "no input file"));
  CHECK(contains(error_of(ExitCode::data, [&] { pack({folder / "a.txt"}, folder / "a.txt/out"); }),
                 "cannot create the folder"));
  CHECK_FALSE(std::filesystem::exists(folder / "out.bin"));

  const PackResult result = pack({folder / "empty.txt", folder / "a.txt"}, folder / "out");
  CHECK(result.documents == 1);
  CHECK(result.empty_documents == 1);
  CHECK(contains(refusal({folder / "out.bin"}), "out.bin is an input and would be overwritten"));
  CHECK(documents_of(folder / "out") == std::vector<std::string>{"a"});
}

TEST_CASE("Unigram entropy is that of the counts, the end of documents included") {
  const TemporaryFolder folder;
  RawTokenFile::of({{1, 1, 2, 2}, {3, 3, 70000, 70000}}, 4).write(folder / "four");
  CHECK(unigram_entropy(folder / "four") == Approx(std::log(4.0)));
  RawTokenFile::of({{5, 5, 5, 6}}, 8).write(folder / "two");
  CHECK(unigram_entropy(folder / "two") == Approx(-0.75 * std::log(0.75) - 0.25 * std::log(0.25)));
  RawTokenFile::of({{5, 5, 5}}, 8).write(folder / "one");
  CHECK(unigram_entropy(folder / "one") == 0);
  write_file(folder / "ab.txt", "ab");
  pack({folder / "ab.txt"}, folder / "ab");
  CHECK(unigram_entropy(folder / "ab") == Approx(std::log(3.0)));
  RawTokenFile::of({{0, 1 << 30}}, 4).write(folder / "wild");
  CHECK(contains(error_of(ExitCode::data, [&] { unigram_entropy(folder / "wild"); }), "wild.bin, byte 4: token"));
}

TEST_CASE("Inspect prints counts, histogram, frequent tokens and entropy") {
  const TemporaryFolder folder;
  RawTokenFile::of({{5, 5, 5}, {6}, {7, 7}}, 8).write(folder / "x");
  const std::string text = inspect(folder / "x", -1);
  INFO(text);
  CHECK(contains(text, "x: 3 documents, 6 tokens of dtype u16 (12 B), largest id 7"));
  CHECK(contains(text, "unigram entropy 1.0114 nats"));
  CHECK(contains(text, "           1 -            1                1"));
  CHECK(contains(text, "           2 -            3                2"));
  CHECK(contains(text, "         5                3   50.00%\n         7                2   33.33%\n"));
}

TEST_CASE("Inspect prints a document as text or as ids") {
  const TemporaryFolder folder;
  // Printable: two, three and four bytes. Escaped: bare and cut sequences, overlong forms, a surrogate, controls.
  write_file(
      folder / "a.txt",
      "t\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80\n\tx \xFF\xC3 \xE2\x82 \xC0\xAF \xED\xA0\x80 \x1B[31m\r\xC2\x9B\xC3");
  write_file(folder / "b.txt", "second");
  PackOptions options = options_of({folder / "a.txt", folder / "b.txt"}, folder / "out");
  options.reading.kind = InputKind::text;
  pack(options, nullptr);
  CHECK(inspect(folder / "out", 0) ==
        "t\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80\n\tx \\xff\\xc3 \\xe2\\x82 \\xc0\\xaf \\xed\\xa0\\x80 "
        "\\x1b[31m\\x0d\\xc2\\x9b\\xc3\n");
  CHECK(inspect(folder / "out", 1) == "second\n");
  CHECK(contains(error_of(ExitCode::data, [&] { inspect(folder / "out", 2); }),
                 "out has no document 2; its documents are 0 to 1"));

  RawTokenFile::of({{72, 300, 256}, {72, 73}}, 8).write(folder / "ids");
  CHECK(inspect(folder / "ids", 0) == "72\n300\n256\n");
  CHECK(inspect(folder / "ids", 1) == "72\n73\n");
}

}  // namespace
}  // namespace gptrain
