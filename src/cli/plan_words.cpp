#include "cli/plan_words.h"

#include <algorithm>
#include <charconv>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace gptrain::inline cli {

std::vector<int64_t> numbers_of(std::string_view option, std::string_view text, std::string_view separator,
                                std::string_view example) {
  std::vector<int64_t> numbers;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    int64_t number = 0;
    const auto [last, error] = std::from_chars(text.data() + begin, text.data() + end, number);
    if (error != std::errc() || last != text.data() + end || number < 1)
      throw Error(ExitCode::usage, "{} {}: must be whole numbers from 1 on, as in {}", option, text, example);
    numbers.push_back(number);
    begin = end + separator.size();
  }
  return numbers;
}

namespace {

// Returns the end of the value that starts at `begin`: the next comma outside brackets and quotes, or the end of the
// word.
size_t end_of_value(const std::string& word, size_t begin) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = begin; i < word.size(); ++i) {
    const char c = word[i];
    if (c == '"') quoted = !quoted;
    if (quoted) continue;
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if (c == ',' && depth <= 0) return i;
  }
  return word.size();
}

}  // namespace

std::vector<SweepAxis> axes_of(const std::vector<std::string>& words) {
  std::vector<SweepAxis> axes;
  for (const std::string& word : words) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == word.size())
      throw Error(ExitCode::usage, "--sweep {}: must be a key and its values, as in batch.micro=1,2,4", word);
    SweepAxis axis{word.substr(0, equals), {}};
    if (!axes.empty() && axes.front().key == axis.key)
      throw Error(ExitCode::usage, "--sweep {}: {} has a --sweep already: give all its values in one", word, axis.key);
    for (size_t begin = equals + 1; begin <= word.size();) {
      const size_t end = end_of_value(word, begin);
      if (end == begin) throw Error(ExitCode::usage, "--sweep {}: has an empty value", word);
      const std::string value = word.substr(begin, end - begin);
      if (std::find(axis.values.begin(), axis.values.end(), value) != axis.values.end())
        throw Error(ExitCode::usage, "--sweep {}: has the value {} twice", word, value);
      axis.values.push_back(value);
      begin = end + 1;
    }
    axes.push_back(std::move(axis));
  }
  if (axes.size() > 2) throw Error(ExitCode::usage, "--sweep takes one key or two, not {}", axes.size());
  return axes;
}

}  // namespace gptrain::cli
