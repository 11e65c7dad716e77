// The files that the words of a command line name, and how they are read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace gptrain {

enum class InputKind : uint8_t {
  text,   // the whole input is one document
  jsonl,  // one document a line
  json,   // a list of documents, or one
  csv,    // one document a record, RFC 4180, or with tabs for commas
  rows,   // one document a row of a Parquet file
};

struct TextInput {
  std::filesystem::path path;  // "-" is the standard input
  int64_t size_bytes = 0;      // 0 for the standard input
  int64_t modified = 0;        // the file system's time of the last change, in its own unit
};

// The member or column that holds the text, by input.
class TextFields {
 public:
  // Each word is NAME, of all inputs, or PATTERN=NAME, of those whose path or file name matches (* ? [...]): the first
  // that matches counts, and NAME where none does. Without a NAME, "text".
  TextFields() = default;
  explicit TextFields(std::vector<std::string> words);

  const std::string& of(const std::filesystem::path& input) const;
  // Whether a word says it.
  bool is_given(const std::filesystem::path& input) const;
  const std::vector<std::string>& words() const { return words_; }

 private:
  struct Rule {
    std::string pattern;
    std::string name;
  };
  const Rule* rule_of(const std::filesystem::path& input) const;

  std::vector<std::string> words_;
  std::vector<Rule> rules_;  // the word without a pattern stands last, as *
};

// How inputs are read.
struct ReadOptions {
  TextFields fields;
  std::optional<InputKind> kind;  // of all inputs, whatever their names and contents say
};

// Each word is a file, "-", a folder (all files below it whose names do not begin with a dot, in the order of their
// paths) or, where no such file is there, a pattern with * ? [...] (its matches, in order). Throws Error(data) naming a
// word that is nothing of these, or a file that cannot be read.
std::vector<TextInput> expand_inputs(const std::vector<std::string>& words);

}  // namespace gptrain
