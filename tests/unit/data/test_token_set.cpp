// Sets of token files: their identity, and the type of tokens without a header.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <sys/stat.h>
#include <utility>
#include <vector>

#include "data/flat_tokens.h"
#include "data/inspect.h"
#include "data/pack_state.h"
#include "data/source_record.h"
#include "data/token_meta.h"
#include "data/token_set.h"
#include "support.h"

namespace gptrain {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::error_of;
using test::little_endian;
using test::RawTokenFile;

constexpr int64_t length = 4;

enum class Kind { with_checksums, with_index, llmc };

fs::path shard_path(const fs::path& folder, int number, Kind kind) {
  const std::string digits = "0000" + std::to_string(number);
  return folder / (kind == Kind::llmc ? "set_" + digits + ".bin" : "set-" + digits);
}

// Writes a shard of documents of 5 and of `number` + 3 tokens that count up from `first`.
void write_shard(const fs::path& folder, int number, Kind kind, int64_t first) {
  const fs::path path = shard_path(folder, number, kind);
  std::vector<std::vector<int64_t>> both(2);
  for (const int64_t size : {5, number + 3}) {
    std::vector<int64_t>& document = both[size == 5 ? 0 : 1];
    for (int64_t i = 0; i < size; ++i) document.push_back(first++);
  }
  const RawTokenFile raw = RawTokenFile::of(both, 8);
  if (kind == Kind::llmc) {
    const auto count = static_cast<int64_t>(raw.tokens.size());
    return write_file(path, little_endian(llmc::magic_u16, 4) + little_endian(1, 4) + little_endian(count, 4) +
                                std::string(llmc::header_bytes - 12, '\0') + raw.bin());
  }
  raw.write(path);
  if (kind == Kind::with_index) return;
  BlockChecksums checksums;
  checksums.add(raw.bin().data(), raw.bin().size());
  write_file(path.native() + ".meta.json", format_token_meta({.bytes = checksums.bytes(),
                                                              .tokens = static_cast<int64_t>(raw.tokens.size()),
                                                              .blocks = checksums.blocks()}));
}

void rename_shard(const fs::path& folder, const std::string& from, const std::string& to) {
  for (const char* suffix : {".bin", ".idx", ".meta.json"}) {
    if (fs::exists(folder / (from + suffix))) fs::rename(folder / (from + suffix), folder / (to + suffix));
  }
}

SourceRecord identity_of(const fs::path& folder) {
  const TokenSet set(DataSource{.path = folder.native()}, length, true);
  SourceRecord record = set.identity();
  record.samples = set.num_samples();
  return record;
}

TEST_CASE("A set is another one when a shard of it is packed again, removed, added or comes at another place") {
  for (const Kind kind : {Kind::with_checksums, Kind::with_index, Kind::llmc}) {
    const std::string name = kind == Kind::llmc ? "set_" : "set-";
    const std::vector<std::pair<std::string, std::function<void(const fs::path&)>>> changes = {
        {"again", [&](const fs::path& folder) { write_shard(folder, 1, kind, 700); }},
        {"last removed", [&](const fs::path& folder) { rename_shard(folder, name + "00003", ".hidden"); }},
        {"added", [&](const fs::path& folder) { write_shard(folder, 4, kind, 100); }},
        {"first behind the last",
         [&](const fs::path& folder) { rename_shard(folder, name + "00000", name + "00007"); }},
        {"first two change places", [&](const fs::path& folder) {
           rename_shard(folder, name + "00000", "other");
           rename_shard(folder, name + "00001", name + "00000");
           rename_shard(folder, "other", name + "00001");
         }}};
    for (const auto& [change, apply] : changes) {
      INFO(change << ", kind " << static_cast<int>(kind));
      const TemporaryFolder folder;
      const fs::path data = folder / "data";
      fs::create_directory(data);
      for (int number = 0; number < 4; ++number) write_shard(data, number, kind, 10 * number);
      const SourceRecord before = identity_of(data);
      CHECK(is_same_source(before, identity_of(data)));
      CHECK(parse_source_record(source_record_json(before)).checksum == before.checksum);
      apply(data);
      CHECK_FALSE(is_same_source(before, identity_of(data)));
      CHECK(describe_source(before) != describe_source(identity_of(data)));
    }
  }
}

TEST_CASE("A set whose documents begin elsewhere is another one, though its tokens are the same") {
  const TemporaryFolder folder;
  for (int number = 0; number < 2; ++number) write_shard(folder.path(), number, Kind::with_checksums, 10 * number);
  const SourceRecord before = identity_of(folder.path());
  RawTokenFile::of({{10}, {11, 12, 13, 14, 15, 16, 17, 18}}, 8)
      .write(shard_path(folder.path(), 1, Kind::with_checksums));
  SourceRecord now = identity_of(folder.path());
  CHECK(has_same_tokens(before, now));
  CHECK_FALSE(is_same_source(before, now));
  CHECK(is_same_source(now, parse_source_record(source_record_json(now))));
  // Older checkpoints say nothing of documents and the order of files.
  now.documents.reset();
  now.order.reset();
  CHECK(is_same_source(before, parse_source_record(source_record_json(now))));
}

TEST_CASE("Names of a set that keep its order keep its identity") {
  const TemporaryFolder folder;
  fs::create_directories(folder / "data");
  for (int number = 0; number < 3; ++number) write_shard(folder / "data", number, Kind::with_checksums, number);
  const SourceRecord before = identity_of(folder / "data");
  for (int number = 0; number < 3; ++number)
    rename_shard(folder / "data", "set-0000" + std::to_string(number), "other-" + std::to_string(number));
  fs::rename(folder / "data", folder / "moved");
  CHECK(is_same_source(before, identity_of(folder / "moved")));
}

TEST_CASE("A set without a shard that its pack counts is refused, by prefix, folder and pattern") {
  const TemporaryFolder folder;
  const std::string data = (folder / "data").native();
  fs::create_directory(data);
  for (int number = 0; number < 4; ++number) write_shard(data, number, Kind::with_checksums, 10 * number);
  const auto counts = [&](int shards, bool finished) {
    write_pack_state(data + "/set.pack.json", {{"shards", shards}, {"finished", finished}});
  };
  const std::vector<std::string> names = {data + "/set", data, data + "/*", data + "/set-*.idx"};
  counts(4, true);
  for (const std::string& name : names) CHECK(token_files_of(name).size() == 4);
  counts(3, false);  // a pack that goes on
  for (const std::string& name : names) CHECK(token_files_of(name).size() == 4);
  counts(6, true);
  for (const std::string& name : names) {
    INFO(name);
    CHECK(contains(error_of(ExitCode::data, [&] { token_files_of(name); }),
                   "set-00004.idx is missing, although " + data + "/set.pack.json counts 6 shards"));
  }
  for (const char* pattern : {"/set-0000[0-3]*", "/set-0000[0-3]"})  // ask for no more
    CHECK(token_files_of(data + pattern).size() == 4);
  CHECK(contains(error_of(ExitCode::data, [&] { token_files_of(data + "/set-0000?"); }), "set-00004.idx is missing"));
  counts(4, true);
  rename_shard(data, "set-00001", ".hidden");
  for (const std::string& name : {names[1], names[2]})
    CHECK(contains(error_of(ExitCode::data, [&] { token_files_of(name); }), "set-00001.idx is missing"));
  write_file(data + "/set.pack.json", "{}");
  CHECK(contains(error_of(ExitCode::data, [&] { token_files_of(data); }), "set.pack.json is damaged"));
}

TEST_CASE("A set with a gap is refused, by prefix, folder and pattern, without the state of its pack too") {
  const TemporaryFolder folder;
  const std::string data = folder.path().native();
  for (const int number : {0, 1, 3}) write_shard(data, number, Kind::with_checksums, 10 * number);
  for (const std::string name : {"/set", "", "/*", "/set-0000?", "/set-*.bin"}) {
    INFO(name);
    CHECK(contains(error_of(ExitCode::data, [&] { token_files_of(data + name); }),
                   "set-00002.idx is missing, although there is a later shard, " + data + "/set-00003"));
  }
  CHECK(token_files_of(data + "/set-0000[013]").size() == 3);  // asks for no more
  rename_shard(data, "set-00000", ".hidden");
  CHECK(contains(error_of(ExitCode::data, [&] { token_files_of(data + "/set"); }), "set-00000.idx is missing"));
  // Names that end with other numbers are no set.
  for (const char* const part : {".idx", ".bin", ".meta.json"})
    fs::rename(data + "/set-00001" + part, data + "/set-20230115" + part);
  CHECK(token_files_of(data).size() == 2);
}

TEST_CASE("What is no token file in a folder is passed over or named") {
  const TemporaryFolder folder;
  const std::string data = folder.path().native();
  write_shard(data, 0, Kind::with_checksums, 5);
  fs::create_directory(data + "/folder.bin");
  for (const char* const name : {"", "/*", "/*.bin"}) CHECK(token_files_of(data + name).size() == 1);
  REQUIRE(::mkfifo((data + "/pipe.bin").c_str(), 0600) == 0);
  CHECK(contains(error_of(ExitCode::data, [&] { TokenSet(DataSource{.path = data}, length, true); }),
                 "cannot read " + data + "/pipe.bin: not a regular file"));
  for (const char* const suffix : {".idx", ".meta.json"}) {
    const std::string path = data + "/set-00000" + suffix;
    CHECK(contains(error_of(ExitCode::data, [&] { TokenSet(DataSource{.path = path}, length, true); }),
                   "holds no tokens; name the token file that it belongs to by its PREFIX, " + data + "/set-00000"));
  }
  write_file(data + "/set-00000.meta.json", "{");
  CHECK(contains(error_of(ExitCode::data, [&] { TokenSet(DataSource{.path = data + "/set"}, length, true); }),
                 "set-00000.meta.json cannot be used: not valid JSON: line 1, column 2: "));
}

TEST_CASE("A pattern and a folder without token files are named as such") {
  const TemporaryFolder folder;
  for (const auto& [path, message] : {std::pair{folder / "*.bin", "no token file matches"},
                                      std::pair{folder / "", "no token file is in this folder"}}) {
    CHECK(contains(error_of(ExitCode::data, [&] { TokenSet(DataSource{.path = path}, length, true); }), message));
    CHECK(contains(error_of(ExitCode::data, [&] { inspect(path, -1); }), message));
  }
}

TEST_CASE("A set is inspected as a whole") {
  const TemporaryFolder folder;
  for (int number = 0; number < 3; ++number) write_shard(folder.path(), number, Kind::llmc, 10 * number);
  const std::string pattern = folder / "set_*.bin";
  const std::string text = inspect(pattern, -1);
  // Shards of 5 + 3, 5 + 4 and 5 + 5 tokens, each one document.
  CHECK(contains(text, ": 3 documents, 27 tokens of dtype u16 (54 B) in 3 token files, largest id 29\n"));
  CHECK(inspect(pattern, 2) == inspect(folder / "set_00002.bin", 0));
  CHECK(contains(error_of(ExitCode::data, [&] { inspect(pattern, 3); }), "its documents are 0 to 2"));
}

TEST_CASE("A list of weights and paths is answered with the sources that it means") {
  const TemporaryFolder folder;
  const std::string meant = R"([{"path":"a","weight":30},{"path":"b","weight":0.5}])";
  write_file(folder / "list.txt", "30 a\n0.5 b\n");
  for (const std::string& path : {std::string("30 a 0.5 b"), (folder / "list.txt").native()})
    CHECK(contains(error_of(ExitCode::usage, [&] { TokenSet(DataSource{.path = path}, length, true); }), meant));
  write_file(folder / "text.txt", "It was 30 years ago.\n");
  CHECK(contains(error_of(ExitCode::data, [&] { TokenSet(DataSource{.path = folder / "text.txt"}, length, true); }),
                 "no token file of llm.c"));
  CHECK(contains(error_of(ExitCode::data, [&] { TokenSet(DataSource{.path = "30 a 0.5"}, length, true); }),
                 "30 a 0.5.idx does not exist"));
}

TEST_CASE("The type of tokens without a header is that of the source") {
  const TemporaryFolder folder;
  const std::vector<int64_t> ids = {70'000, 1, 2, 100'000, 5, 6, 7, 8, 9, 10};
  std::string bytes;
  for (const int64_t id : ids) bytes += little_endian(id, 4);
  write_file(folder / "ids.dat", bytes);
  write_file(folder / "ids.bin", bytes);
  for (const fs::path& path : {folder / "ids.dat", folder / "ids.bin"}) {
    const TokenSet wide(DataSource{.path = path, .dtype = DType::i32}, length, true);
    REQUIRE(wide.num_tokens() == 10);
    std::vector<int32_t> read(10);
    wide.files()[0].read({0, 10}, any_vocabulary, read.data());
    CHECK(std::vector<int64_t>(read.begin(), read.end()) == ids);
  }
  CHECK(TokenSet(DataSource{.path = folder / "ids.bin"}, length, true).num_tokens() == 20);
  write_shard(folder / "", 1, Kind::llmc, 0);
  write_shard(folder / "", 1, Kind::with_index, 0);
  const auto refused = [&](const char* name) {
    return error_of(ExitCode::usage,
                    [&] { TokenSet(DataSource{.path = folder / name, .dtype = DType::u16}, length, true); });
  };
  CHECK(contains(refused("set_00001.bin"), "has a header that says its type"));
  CHECK(contains(refused("set-00001"), "set-00001.idx says the type of its tokens"));
}

}  // namespace
}  // namespace gptrain
