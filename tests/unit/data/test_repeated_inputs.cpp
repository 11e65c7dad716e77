// Files that are given twice, under whatever names: to pack, to join, and as sources of a run.
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/ingest/inputs.h"
#include "data/join.h"
#include "data/token_set.h"
#include "support.h"

namespace gptrain {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::error_of;
using test::write_counting_tokens;

std::vector<std::string> names_of(const std::vector<TextInput>& inputs) {
  std::vector<std::string> names;
  for (const TextInput& input : inputs) names.push_back(input.path.filename().string());
  return names;
}

TEST_CASE("A text to which two words lead is refused, and the message has both") {
  const TemporaryFolder folder;
  fs::create_directory(folder / "in");
  write_file(folder / "in/a.jsonl", "{}\n");
  write_file(folder / "in/b.jsonl", "{}\n");
  fs::create_symlink("in/a.jsonl", folder / "link.jsonl");
  fs::create_hard_link(folder / "in/a.jsonl", folder / "hard.jsonl");
  fs::create_directory_symlink("in", folder / "same");
  struct Words {
    std::string first;
    std::string second;
  };
  for (const Words& words : std::vector<Words>{{"in/a.jsonl", "in/a.jsonl"},
                                               {"in", "in/a.jsonl"},
                                               {"in/b.jsonl", "in"},
                                               {"in/*.jsonl", "in/b*"},
                                               {"link.jsonl", "in/a.jsonl"},
                                               {"hard.jsonl", "link.jsonl"},
                                               {"in", "same"},
                                               {"in", "in/../in/b.jsonl"}}) {
    const std::string first = (folder / words.first).string();
    const std::string second = (folder / words.second).string();
    INFO(first << " " << second);
    const std::string error = error_of(ExitCode::usage, [&] { expand_inputs({first, second}); });
    CHECK(contains(error, first));
    CHECK(contains(error, second));
    CHECK(contains(error, "would be read twice: name each file once"));
  }
  CHECK(contains(error_of(ExitCode::usage, [] { expand_inputs({"-", "-"}); }), "- is named twice as inputs"));
  CHECK(expand_inputs({(folder / "in/a.jsonl").string(), (folder / "in/b.jsonl").string()}).size() == 2);
}

TEST_CASE("A text with several names below a folder, or among a pattern's matches, is taken once") {
  const TemporaryFolder folder;
  fs::create_directories(folder / "in/deep");
  write_file(folder / "in/a.txt", "one");
  write_file(folder / "in/b.txt", "one");  // another file with the same content
  fs::create_symlink("a.txt", folder / "in/c.txt");
  fs::create_hard_link(folder / "in/b.txt", folder / "in/deep/d.txt");
  CHECK(names_of(expand_inputs({folder.path().string()})) == std::vector<std::string>{"a.txt", "b.txt"});
  CHECK(names_of(expand_inputs({(folder / "in/*").string()})) == std::vector<std::string>{"a.txt", "b.txt"});
  CHECK(names_of(expand_inputs({(folder / "in/deep").string()})) == std::vector<std::string>{"d.txt"});
}

TEST_CASE("A token file is joined once") {
  const TemporaryFolder folder;
  write_counting_tokens(folder / "a", 0, 10);
  for (const char* suffix : {".bin", ".idx"})
    fs::create_symlink(std::string("a") + suffix, folder.path() / (std::string("b") + suffix));
  for (const char* second : {"a", "b"}) {
    const std::string error = error_of(ExitCode::usage, [&] {
      join_token_files({folder / "a", folder / second}, folder / "out", [](int64_t, int64_t) {});
    });
    CHECK(contains(error, "are the same file, whose documents would be joined twice"));
    CHECK(!fs::exists(folder / "out.bin"));
  }
}

TEST_CASE("A token file of two sources, or of one under two names, is warned of") {
  const TemporaryFolder folder;
  write_counting_tokens(folder / "set-00000", 0, 10);
  write_counting_tokens(folder / "set-00001", 10, 10);
  write_counting_tokens(folder / "other", 20, 10);
  const auto warning = [&](const std::vector<std::string>& names) {
    std::vector<DataSource> sources;
    for (const std::string& name : names) sources.push_back({.path = (folder / name).string()});
    return warning_of_repeated_files(sources);
  };
  CHECK(warning({"set", "other"}).empty());
  CHECK(warning({"missing", "missing"}).empty());
  const std::string second = (folder / "set-00001.bin").string();
  CHECK(warning({"set", "other", "set-00001"}) ==
        "a token file is in the data twice, and its samples come more often than others: " + second +
            " of data.train[2] is " + second +
            " of data.train[0]; name each file once, and set the weights of sources");
  CHECK(contains(warning({"set", "set-*"}), "2 token files are in the data twice"));
  for (const char* suffix : {".bin", ".idx"})
    fs::create_symlink(std::string("other") + suffix, folder.path() / (std::string("set-x") + suffix));
  CHECK(contains(warning({"set-*", "other"}), "other.bin of data.train[1] is "));
  CHECK(contains(warning({"*"}), "set-x.bin of data.train[0] is "));
}

}  // namespace
}  // namespace gptrain
