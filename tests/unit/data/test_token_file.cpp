#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "data/token_file.h"
#include "data/token_writer.h"
#include "support.h"

namespace gptrain {
namespace {

using test::contains;
using test::error_of;
using test::RawTokenFile;

const std::vector<std::vector<int64_t>> documents = {{1, 2, 256}, {500}, {3, 65535, 4, 5}};

std::vector<int32_t> all_tokens(const TokenFile& file) {
  std::vector<int32_t> tokens(static_cast<size_t>(file.num_tokens()));
  file.read({0, file.num_tokens()}, 1 << 20, tokens.data());
  return tokens;
}

void write_with_writer(const std::filesystem::path& prefix, DType dtype) {
  TokenWriter writer(prefix, dtype);
  for (const auto& document : documents) {
    for (const int64_t token : document) {
      const auto narrow = static_cast<int32_t>(token);
      writer.append({&narrow, 1});
    }
    writer.end_document();
  }
  writer.finish();
}

TEST_CASE("A file built by the specification is read right") {
  const TemporaryFolder folder;
  for (const int code : {4, 8}) {
    RawTokenFile::of(documents, code).write(folder / "spec");
    const TokenFile file(folder / "spec");
    CHECK(file.dtype() == (code == 8 ? DType::u16 : DType::i32));
    CHECK(file.num_tokens() == 8);
    CHECK(file.num_documents() == 3);
    CHECK(all_tokens(file) == std::vector<int32_t>{1, 2, 256, 500, 3, 65535, 4, 5});
    CHECK(file.document(1).first == 3);
    CHECK(file.document(1).count == 1);
    CHECK(file.document(2).first == 4);
    CHECK(file.document(2).count == 4);
  }
}

TEST_CASE("The writer's bytes are those of the specification") {
  const TemporaryFolder folder;
  for (const int code : {4, 8}) {
    write_with_writer(folder / "ours", code == 8 ? DType::u16 : DType::i32);
    const RawTokenFile raw = RawTokenFile::of(documents, code);
    CHECK(read_file(folder / "ours.bin") == raw.bin());
    CHECK(read_file(folder / "ours.idx") == raw.idx());
    CHECK(file_names(folder.path()) == std::vector<std::string>{"ours.bin", "ours.idx", "ours.meta.json"});
  }
}

TEST_CASE("A document longer than a sequence may be takes several") {
  const TemporaryFolder folder;
  TokenWriter writer(folder / "long", DType::u16, 3);
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6, 7};
  writer.append(std::span(tokens).first(2));
  writer.append(std::span(tokens).subspan(2));
  writer.end_document();
  writer.append(std::span(tokens).first(1));
  writer.end_document();
  writer.finish();

  RawTokenFile raw;
  raw.num_sequences = 4;
  raw.num_boundaries = 3;
  raw.lengths = {3, 3, 1, 1};
  raw.offsets = {0, 6, 12, 14};
  raw.boundaries = {0, 3, 4};
  CHECK(read_file(folder / "long.idx") == raw.idx());
  const TokenFile file(folder / "long");
  CHECK(file.num_documents() == 2);
  CHECK(file.document(0).count == 7);
  CHECK(file.document(1).first == 7);
  CHECK(file.document(1).count == 1);
}

TEST_CASE("Documents and sequences without tokens are read") {
  const TemporaryFolder folder;
  RawTokenFile raw = RawTokenFile::of({{1}, {}, {2, 3}}, 8);
  raw.boundaries = {0, 1, 1, 3, 3};
  raw.num_boundaries = 5;
  raw.write(folder / "gaps");
  const TokenFile file(folder / "gaps");
  REQUIRE(file.num_documents() == 4);
  std::vector<int64_t> counts;
  for (int64_t i = 0; i < 4; ++i) counts.push_back(file.document(i).count);
  CHECK(counts == std::vector<int64_t>{1, 0, 2, 0});
}

TEST_CASE("The writer refuses what its dtype cannot hold and leaves nothing behind") {
  const TemporaryFolder folder;
  for (const int32_t token : {-1, 65536, std::numeric_limits<int32_t>::min()}) {
    const std::string message = error_of(ExitCode::data, [&] {
      TokenWriter writer(folder / "bad", DType::u16);
      writer.append({&token, 1});
    });
    CHECK(contains(message, "bad.bin: token " + std::to_string(token)));
    CHECK(contains(message, "u16"));
  }
  CHECK(file_names(folder.path()).empty());
}

TEST_CASE("An unfinished writer leaves the file that was there") {
  const TemporaryFolder folder;
  write_with_writer(folder / "kept", DType::u16);
  const std::string before = read_file(folder / "kept.bin");
  {
    TokenWriter writer(folder / "kept", DType::u16);
    const int32_t token = 9;
    writer.append({&token, 1});
    CHECK(file_names(folder.path()).size() == 6);
  }
  CHECK(file_names(folder.path()) == std::vector<std::string>{"kept.bin", "kept.idx", "kept.meta.json"});
  CHECK(read_file(folder / "kept.bin") == before);
  write_with_writer(folder / "kept", DType::i32);
  CHECK(TokenFile(folder / "kept").dtype() == DType::i32);
}

TEST_CASE("The folder is made, where it can be") {
  const TemporaryFolder folder;
  write_with_writer(folder / "new/below/corpus", DType::u16);
  CHECK(TokenFile(folder / "new/below/corpus").dtype() == DType::u16);
  write_file(folder / "taken", "a file");
  const std::string message = error_of(ExitCode::data, [&] { TokenWriter(folder / "taken/corpus", DType::u16); });
  CHECK(contains(message, "cannot create the folder"));
  CHECK(contains(message, "taken: "));
}

// A damage whose message names the file and the wrong byte. The index has three sequences: lengths at byte 34, offsets
// at 46, boundaries at 70, end at 102.
struct Damage {
  std::function<void(RawTokenFile&)> change;
  std::string message;
};

TEST_CASE("Damaged fields are refused by name and byte") {
  constexpr int64_t huge = std::numeric_limits<int64_t>::min();  // 2^63 as an unsigned number
  const std::vector<Damage> damages = {
      {[](RawTokenFile& raw) { raw.magic[0] = 'X'; }, "x.idx, byte 0: the file does not start with \"MMIDIDX\""},
      {[](RawTokenFile& raw) { raw.version = 2; }, "x.idx, byte 9: version 2, but only 1"},
      {[](RawTokenFile& raw) { raw.dtype_code = 1; }, "x.idx, byte 17: dtype code 1 (u8) is not supported"},
      {[](RawTokenFile& raw) { raw.dtype_code = 5; }, "(i64) is not supported; tokens must be u16 (code 8) or i32"},
      {[](RawTokenFile& raw) { raw.dtype_code = 77; }, "dtype code 77 (unknown)"},
      {[](RawTokenFile& raw) { raw.dtype_code = 4; },
       "x.idx, byte 54: sequence 1 starts at 6 in the .bin, but the one"},
      {[](RawTokenFile& raw) { raw.num_sequences = 2; }, "x.idx, byte 26: 2 sequences and 4 document boundaries"},
      {[](RawTokenFile& raw) { raw.num_sequences = -1; }, "x.idx, byte 18: 18446744073709551615 sequences do not fit"},
      {[](RawTokenFile& raw) { raw.num_sequences = huge; }, "x.idx, byte 18: 9223372036854775808 sequences"},
      {[](RawTokenFile& raw) { raw.num_boundaries = huge; }, "x.idx, byte 26: 3 sequences and 9223372036854775808"},
      {[](RawTokenFile& raw) { raw.num_boundaries = int64_t{1} << 61 | 4; }, "x.idx, byte 26:"},
      {[](RawTokenFile& raw) { raw.num_boundaries = 0, raw.boundaries.clear(); }, "byte 26: no document boundaries"},
      {[](RawTokenFile& raw) { raw.lengths[1] = -1; }, "x.idx, byte 38: sequence 1 has the negative length -1"},
      {[](RawTokenFile& raw) { raw.lengths[0] = 4; }, "x.idx, byte 54: sequence 1 starts at 6"},
      {[](RawTokenFile& raw) { raw.offsets[0] = 2; }, "x.idx, byte 46: sequence 0 starts at 2"},
      {[](RawTokenFile& raw) { raw.offsets[2] = 6; }, "x.idx, byte 62: sequence 2 starts at 6 in the .bin"},
      {[](RawTokenFile& raw) { raw.offsets[2] = huge; }, "x.idx, byte 62: sequence 2 starts at -9223372036854775808"},
      {[](RawTokenFile& raw) { raw.lengths[2] = 2147483647; }, "x.bin, byte 16: the file ends here"},
      {[](RawTokenFile& raw) { raw.lengths[2] = 3; }, "x.bin, byte 14: the sequences of the index end here"},
      {[](RawTokenFile& raw) { raw.tokens.pop_back(); }, "x.bin, byte 14: the file ends here, but sequence 2"},
      {[](RawTokenFile& raw) { raw.tokens.clear(); }, "x.bin, byte 0: the file ends here"},
      {[](RawTokenFile& raw) { raw.boundaries[0] = 1; }, "x.idx, byte 70: the first document starts at sequence 1"},
      {[](RawTokenFile& raw) { raw.boundaries[1] = 3; }, "x.idx, byte 86: document boundary 2 is sequence 2"},
      {[](RawTokenFile& raw) { raw.boundaries[1] = -1; }, "x.idx, byte 78: document boundary 1 is sequence -1"},
      {[](RawTokenFile& raw) { raw.boundaries[3] = 4; }, "x.idx, byte 94: document boundary 3 is sequence 4"},
      {[](RawTokenFile& raw) { raw.boundaries[3] = 2; }, "x.idx, byte 94: the last document ends at sequence 2"},
      {[](RawTokenFile& raw) { raw = RawTokenFile::of({}, 8); }, "x.bin, byte 0: the file holds no tokens"},
  };
  const TemporaryFolder folder;
  for (const Damage& damage : damages) {
    RawTokenFile raw = RawTokenFile::of(documents, 8);
    const std::string good_bin = raw.bin();
    const int code_before = raw.dtype_code;
    damage.change(raw);
    raw.write(folder / "x");
    // Only the code is wrong, not the width of the tokens.
    if (raw.dtype_code != code_before) write_file(folder / "x.bin", good_bin);
    const std::string message = error_of(ExitCode::data, [&] { TokenFile(folder / "x"); });
    INFO(message);
    CHECK(contains(message, damage.message));
  }
}

TEST_CASE("An index cut at any byte is refused") {
  const TemporaryFolder folder;
  const RawTokenFile raw = RawTokenFile::of(documents, 8);
  const std::string whole = raw.idx();
  REQUIRE(whole.size() == 102);
  write_file(folder / "cut.bin", raw.bin());
  for (size_t size = 0; size < whole.size(); ++size) {
    write_file(folder / "cut.idx", whole.substr(0, size));
    const std::string message = error_of(ExitCode::data, [&] { TokenFile(folder / "cut"); });
    const char* expected = size < 9 ? "byte 0:" : size < 34 ? "the file ends here, inside its header" : "truncated";
    INFO(message);
    CHECK(contains(message, "cut.idx, byte "));
    CHECK(contains(message, expected));
  }
  write_file(folder / "cut.idx", whole + "x");
  CHECK(contains(error_of(ExitCode::data, [&] { TokenFile(folder / "cut"); }), "cut.idx, byte 26"));
}

TEST_CASE("A missing file and a folder in its place are refused") {
  const TemporaryFolder folder;
  CHECK(contains(error_of(ExitCode::data, [&] { TokenFile(folder / "no"); }), "no.idx does not exist (a data path is"));
  RawTokenFile::of(documents, 8).write(folder / "no");
  std::filesystem::remove(folder / "no.bin");
  CHECK(contains(error_of(ExitCode::data, [&] { TokenFile(folder / "no"); }), "no.bin does not exist"));
  std::filesystem::create_directory(folder / "no.bin");
  CHECK(contains(error_of(ExitCode::data, [&] { TokenFile(folder / "no"); }), "no.bin: not a regular file"));
}

TEST_CASE("Tokens outside the vocabulary are refused where they are read") {
  const TemporaryFolder folder;
  std::vector<int32_t> out(8);
  RawTokenFile::of(documents, 8).write(folder / "v");
  const TokenFile narrow(folder / "v");
  CHECK_NOTHROW(narrow.read({0, 8}, 65536, out.data()));
  CHECK_NOTHROW(narrow.read({0, 3}, 257, out.data()));
  CHECK(contains(error_of(ExitCode::data,
                          [&] {
                            narrow.read({0, 3}, 256, out.data());
                          }),
                 "v.bin, byte 4: token 256 at position 2 is outside the vocabulary of 256"));
  CHECK(contains(error_of(ExitCode::data,
                          [&] {
                            narrow.read({4, 4}, 65535, out.data());
                          }),
                 "v.bin, byte 10: token 65535 at position 5 is outside the vocabulary of 65535"));

  RawTokenFile raw = RawTokenFile::of(documents, 4);
  raw.tokens[6] = -2;
  raw.write(folder / "v");
  const TokenFile wide(folder / "v");
  CHECK_NOTHROW(wide.read({0, 6}, 65536, out.data()));
  CHECK(contains(error_of(ExitCode::data,
                          [&] {
                            wide.read({0, 8}, 65536, out.data());
                          }),
                 "v.bin, byte 24: token -2 at position 6"));
}

}  // namespace
}  // namespace gptrain
