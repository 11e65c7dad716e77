// Finds the files that command line arguments name, and the options for reading them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gptrain::inline data {

enum class InputKind : uint8_t {
  text,   // the whole input is one document
  jsonl,  // one document per line
  json,   // a list of documents, or a single one
  csv,    // one document per record; RFC 4180, or the same with tabs for commas
  rows,   // one document per row of a Parquet file
};

struct TextInput {
  std::filesystem::path path;  // "-" is the standard input
  int64_t size_bytes = 0;      // 0 for the standard input
  int64_t modified = 0;        // time of the last change, in ticks of the file system's clock
};

// Name of the member or column that holds the text, by input.
class TextFields {
 public:
  // Each word is NAME or PATTERN=NAME. The first PATTERN (* ? [...]) that matches an input's path or file name applies,
  // else NAME, else "text".
  TextFields() = default;
  explicit TextFields(std::vector<std::string> words);

  const std::string& of(const std::filesystem::path& input) const;  // name for this input
  // Returns true if a word applies to the input.
  bool is_given(const std::filesystem::path& input) const;
  const std::vector<std::string>& words() const { return words_; }
  // Throws Error(usage) for a PATTERN=NAME that applies to none of the inputs.
  void refuse_unused(const std::vector<TextInput>& inputs) const;

 private:
  struct Rule {
    std::string pattern;
    std::string name;
  };
  const Rule* rule_of(const std::filesystem::path& input) const;

  std::vector<std::string> words_;
  std::vector<Rule> rules_;  // in order of use; NAME without a pattern is last, as *
};

struct ReadOptions {
  TextFields fields;
  std::optional<InputKind> kind;  // format of all inputs; nullopt: detected by name and content
  // Limits of texts and records that must be in memory as a whole. max_record_bytes: a record of JSONL or CSV, and
  // anything of the standard input. max_whole_bytes: a text without a place to cut it, or a JSON list, in a file.
  int64_t max_record_bytes = int64_t{256} << 20;
  int64_t max_whole_bytes = int64_t{4} << 30;
};

// Returns the size of all inputs together; 0 if one is the standard input.
int64_t total_bytes(const std::vector<TextInput>& inputs);

// Throws Error(data) if `output` is one of the inputs; `other` is the choice that avoids it: "another --out".
void refuse_overwritten(const std::vector<TextInput>& inputs, const std::filesystem::path& output,
                        std::string_view other);

// Returns the files of command line words. A word is a file, "-", a folder (all files below whose names do not begin
// with a dot, in the order of their paths; links to files are followed, other entries named on standard error) or, if
// no such file exists, a pattern with * ? [...] (its matches, in order). A file that has several names below a folder
// or among a pattern's matches is taken once; the others are named on standard error. Throws Error(usage) for a file to
// which two words lead, Error(data), with the name, for a word that leads to no file and for a file that cannot be
// read.
std::vector<TextInput> expand_inputs(const std::vector<std::string>& words);

}  // namespace gptrain::data
