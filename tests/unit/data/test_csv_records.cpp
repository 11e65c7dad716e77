#include <cstdint>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/ingest/csv_cutter.h"
#include "data/ingest/input_format.h"
#include "data/pack.h"
#include "data/token_file.h"
#include "support.h"

namespace gptrain {
namespace {

using test::contains;
using test::error_of;

PackResult pack_table(const std::filesystem::path& input, const std::filesystem::path& prefix, bool skip_faults) {
  PackOptions options;
  options.inputs = {input};
  options.out_prefix = prefix;
  options.tokenizer = std::make_shared<Tokenizer>();
  options.skip_faults = skip_faults;
  return pack(options, nullptr);
}

TEST_CASE("CSV is cut where the parser ends a record, however the text grows") {
  std::mt19937 draw(7);
  for (int round = 0; round < 2000; ++round) {
    const char delimiter = round % 2 == 0 ? ',' : '\t';
    std::string text;
    for (auto left = draw() % 40; left > 0; --left) text += "\"\"\"\n\n\r,\tab"[draw() % 10];
    CsvCutter cutter(delimiter);
    size_t begin = 0;  // start of the bytes that are not dropped
    for (size_t end = 0; end < text.size();) {
      end += 1 + draw() % (text.size() - end);
      const std::string_view grown = std::string_view(text).substr(begin, end - begin);
      cutter.scan(grown, end == text.size());
      size_t expected = 0;
      std::vector<std::string> fields;
      while (const size_t length = parse_csv_record(grown.substr(expected), false, fields, delimiter))
        expected += length;
      INFO(text << " from " << begin << " to " << end);
      REQUIRE(cutter.end() == expected);
      if (draw() % 2 == 0) {
        cutter.drop(expected);
        begin += expected;
      }
    }
  }
}

TEST_CASE("A quote within a field opens nothing, in a table of several blocks") {
  const TemporaryFolder folder;
  std::string table = "size\ttext\n6\" nail\tfirst\n";
  int64_t tokens = 6;
  for (int i = 0; table.size() < 2'300'000; ++i) {
    table += "x\t\"line one\nline \"\"two\"\"\"\n";
    tokens += 20;
  }
  write_file(folder / "in.tsv", table);
  const PackResult packed = pack_table(folder / "in.tsv", folder / "out", false);
  CHECK(packed.tokens == tokens);
}

TEST_CASE("A quote that is not closed stops at its line, even if bad lines are skipped") {
  const TemporaryFolder folder;
  std::string long_table = "id,text\n";
  int lines = 1;
  for (; long_table.size() < 1'500'000; lines += 2) long_table += "1,\"two\nlines\"\n";
  const std::vector<std::pair<std::string, int>> tables = {{"id,text\n1,fine\n2,\"open\n3,three\n", 3},
                                                           {long_table + "2,\"\"\"open\n3,three\n", lines + 1},
                                                           {"id,text,\"x\n1,fine\n", 1}};
  for (const auto& [table, line] : tables) {
    write_file(folder / "in.csv", table);
    for (const bool skips : {false, true}) {
      const std::string found = error_of(ExitCode::data, [&] { pack_table(folder / "in.csv", folder / "out", skips); });
      INFO(found);
      CHECK(contains(found, "in.csv, line " + std::to_string(line) + ": the double quote that opens a field here"));
    }
  }
  write_file(folder / "in.csv", "id,text\n1,\"closed\"");
  CHECK(pack_table(folder / "in.csv", folder / "out", false).tokens == 7);
}

}  // namespace
}  // namespace gptrain
