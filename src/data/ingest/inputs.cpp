#include "data/ingest/inputs.h"

#include <algorithm>
#include <fnmatch.h>
#include <glob.h>
#include <set>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/output.h"
#include "base/units.h"
#include "data/ingest/foreign_formats.h"
#include "data/seen_files.h"
#include "data/token_paths.h"

namespace gptrain::inline data {
namespace {

namespace fs = std::filesystem;

constexpr const char* any_input = "*";  // pattern of a NAME without one

[[noreturn]] void refuse_input(const fs::path& input, const std::string& reason) {
  throw Error(ExitCode::data, "cannot read {}: {}", input.native(), reason);
}

// Returns the reason why a path cannot be read; `otherwise` unless it is the PREFIX of a token file, or a link of
// git-annex, which leads nowhere until the data are fetched.
std::string reason_of(const fs::path& path, const std::string& otherwise) {
  std::error_code ignored;
  if (fs::exists(token_file_path(path, ".idx"), ignored))
    return fmt::format("it is the PREFIX of a token file: {}", not_packed_again);
  const std::string target = fs::read_symlink(path, ignored).native();
  return target.find("annex/objects/") == std::string::npos
             ? otherwise
             : "a link of git-annex whose data are not here: fetch them with git annex get";
}

TextInput input_file(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (error) refuse_input(path, reason_of(path, error.message()));
  if (fs::is_fifo(status))
    refuse_input(path, fmt::format("it is a pipe: redirect it to the standard input (<{}), and name - as the input",
                                   path.native()));
  if (!fs::is_regular_file(status)) refuse_input(path, "not a regular file");
  TextInput file{path, static_cast<int64_t>(fs::file_size(path, error)), 0};
  if (error) refuse_input(path, error.message());
  file.modified = fs::last_write_time(path, error).time_since_epoch().count();
  if (error) refuse_input(path, error.message());
  return file;
}

// Files and other entries below a folder.
struct FolderEntries {
  std::vector<fs::path> files;
  std::vector<fs::path> left_out;  // links to folders, pipes, sockets, devices
};

FolderEntries entries_below(const fs::path& folder) {
  FolderEntries found;
  std::error_code error;
  for (auto entry = fs::recursive_directory_iterator(folder, error); entry != fs::recursive_directory_iterator();
       entry.increment(error)) {
    const fs::path& path = entry->path();
    std::error_code unreadable;
    const fs::file_status own = entry->symlink_status(unreadable);
    if (path.filename().native().starts_with('.')) {
      if (fs::is_directory(own)) entry.disable_recursion_pending();
      continue;
    }
    if (fs::is_directory(own)) continue;
    const fs::file_status status = entry->status(unreadable);
    if (!fs::exists(status)) refuse_input(path, reason_of(path, "the link leads to no file that can be read"));
    (fs::is_regular_file(status) ? found.files : found.left_out).push_back(path);
  }
  if (error) refuse_input(folder, error.message());
  std::sort(found.files.begin(), found.files.end());
  std::sort(found.left_out.begin(), found.left_out.end());
  return found;
}

void add_folder(const fs::path& folder, std::vector<TextInput>& files) {
  const FolderEntries found = entries_below(folder);
  if (!found.left_out.empty()) {
    print_err("left out: below {}, {} of links to folders, pipes and devices; the first is {}\n", folder.native(),
              format_grouped(std::ssize(found.left_out)), found.left_out.front().native());
  }
  if (found.files.empty()) refuse_input(folder, "the folder holds no file");
  for (const fs::path& path : found.files) files.push_back(input_file(path));
}

void add_matches(const std::string& pattern, std::vector<TextInput>& files) {
  glob_t matches{};
  const int result = ::glob(pattern.c_str(), 0, nullptr, &matches);
  std::vector<std::string> found;
  for (size_t i = 0; result == 0 && i < matches.gl_pathc; ++i) found.emplace_back(matches.gl_pathv[i]);
  ::globfree(&matches);
  if (found.empty()) refuse_input(pattern, "no file matches");
  for (const std::string& path : found) {
    std::error_code unreadable;  // ignored: opening the file reports the reason
    if (fs::is_directory(path, unreadable)) {
      add_folder(path, files);
    } else {
      files.push_back(input_file(path));
    }
  }
}

std::vector<TextInput> files_of_word(const std::string& word) {
  std::vector<TextInput> files;
  std::error_code ignored;
  if (word == "-") {
    files.push_back({"-", 0, 0});
  } else if (fs::is_directory(word, ignored)) {
    add_folder(word, files);
  } else if (!fs::exists(word, ignored) && word.find_first_of("*?[") != std::string::npos) {
    add_matches(word, files);
  } else {
    files.push_back(input_file(word));
  }
  return files;
}

// A name of an input, and the command line word that has led to it.
struct InputName {
  fs::path path;
  std::string word;
};

[[noreturn]] void refuse_second_word(const InputName& first, const InputName& second) {
  const std::string words = first.word == second.word
                                ? fmt::format("{} is named twice", first.word)
                                : fmt::format("{} and {} are both named", first.word, second.word);
  const std::string file = first.path == second.path
                               ? first.path.native()
                               : fmt::format("the same file, {} and {},", first.path.native(), second.path.native());
  throw Error(ExitCode::usage, "{} as inputs, so that {} would be read twice: name each file once", words, file);
}

}  // namespace

TextFields::TextFields(std::vector<std::string> words) : words_(std::move(words)) {
  std::string name_of_all;
  for (const std::string& word : words_) {
    const size_t sign = word.find('=');
    const std::string name = sign == std::string::npos ? word : word.substr(sign + 1);
    if (name.empty() || sign == 0) throw Error(ExitCode::usage, "--field {}: must be NAME or PATTERN=NAME", word);
    if (sign != std::string::npos) {
      rules_.push_back({word.substr(0, sign), name});
    } else if (name_of_all.empty()) {
      name_of_all = name;
    } else {
      throw Error(ExitCode::usage,
                  "--field {}: a second --field needs a pattern of the inputs that it is for, as in '*.parquet={}'",
                  word, word);
    }
  }
  if (!name_of_all.empty()) rules_.push_back({any_input, name_of_all});
}

const TextFields::Rule* TextFields::rule_of(const fs::path& input) const {
  for (const Rule& rule : rules_) {
    const auto matches = [&](const fs::path& path) { return ::fnmatch(rule.pattern.c_str(), path.c_str(), 0) == 0; };
    if (matches(input) || matches(input.filename())) return &rule;
  }
  return nullptr;
}

const std::string& TextFields::of(const fs::path& input) const {
  static const std::string usual = "text";
  const Rule* const rule = rule_of(input);
  return rule == nullptr ? usual : rule->name;
}

bool TextFields::is_given(const fs::path& input) const { return rule_of(input) != nullptr; }

void TextFields::refuse_unused(const std::vector<TextInput>& inputs) const {
  std::set<const Rule*> used;
  for (const TextInput& input : inputs) used.insert(rule_of(input.path));
  for (const Rule& rule : rules_) {
    if (rule.pattern == any_input || used.contains(&rule)) continue;
    throw Error(ExitCode::usage,
                "--field {}={} applies to no input: its pattern must match the path or the name of an input that no "
                "earlier --field matches",
                rule.pattern, rule.name);
  }
}

int64_t total_bytes(const std::vector<TextInput>& inputs) {
  int64_t total = 0;
  for (const TextInput& input : inputs) {
    if (input.path == "-") return 0;
    total += input.size_bytes;
  }
  return total;
}

void refuse_overwritten(const std::vector<TextInput>& inputs, const fs::path& output, std::string_view other) {
  for (const TextInput& input : inputs) {
    std::error_code ignored;
    if (!fs::equivalent(input.path, output, ignored)) continue;
    throw Error(ExitCode::data, "{} is an input and would be overwritten; choose {}", output.native(), other);
  }
}

std::vector<TextInput> expand_inputs(const std::vector<std::string>& words) {
  std::vector<TextInput> files;
  std::vector<InputName> names;  // one for each call of seen.add()
  SeenFiles seen;
  for (const std::string& word : words) {
    const size_t first_of_word = names.size();
    int64_t repeated = 0;
    std::string first_repeated;
    for (TextInput& file : files_of_word(word)) {
      const std::optional<size_t> before = seen.add(file.path);
      names.push_back({file.path, word});
      if (!before) {
        files.push_back(std::move(file));
        continue;
      }
      if (*before < first_of_word) refuse_second_word(names[*before], names.back());
      if (repeated++ == 0)
        first_repeated = fmt::format("{} is the file {}", file.path.native(), names[*before].path.native());
    }
    if (repeated > 0)
      print_err("left out: in {}, {} of files that are read under another name; the first: {}\n", word,
                format_counted(repeated, "second name"), first_repeated);
  }
  return files;
}

}  // namespace gptrain::data
