#include "planner/published_steps.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <fmt/format.h>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "config/faults.h"
#include "config/json_text.h"
#include "config/load.h"
#include "machine/profile_reader.h"
#include "parallel/groups.h"
#include "planner/layouts.h"
#include "planner/predict.h"

namespace gptrain::inline planner {
namespace {

constexpr std::array<std::string_view, 3> figure_names = {"seconds", "tflops", "mfu"};

// Reads the keys of one object. Every fault throws, with the file and the key.
class PointReader {
 public:
  // REQUIRES: `object` outlives the reader.
  PointReader(const Json& object, std::string origin, std::vector<std::string_view> keys)
      : object_(object), origin_(std::move(origin)) {
    if (!object.is_object()) throw Error(ExitCode::usage, "{}: must be an object", origin_);
    for (const auto& [key, value] : object.items())
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) fault(key, "unknown key");
  }

  std::string word(const std::string& key) const {
    const Json& value = at(key);
    if (!value.is_string() || value.get<std::string>().empty()) fault(key, "must be a text");
    return one_line(value.get<std::string>());
  }
  double number(const std::string& key) const {
    constexpr double most = 1e9;
    const Json& value = at(key);
    if (!value.is_number() || !(value.get<double>() > 0) || !(value.get<double>() <= most))
      fault(key, "must be a number above 0, at most 1e9");
    return value.get<double>();
  }
  int64_t count(const std::string& key) const {
    constexpr int64_t most = int64_t{1} << 17;
    const Json& value = at(key);
    if (!value.is_number_unsigned() || value.get<uint64_t>() < 1 || value.get<uint64_t>() > uint64_t{most})
      fault(key, fmt::format("must be a whole number from 1 to {}", most));
    return value.get<int64_t>();
  }
  std::vector<std::string> words(const std::string& key) const {
    std::vector<std::string> words;
    if (!object_.contains(key)) return words;
    if (!object_[key].is_array()) fault(key, "must be an array of texts");
    for (const Json& word : object_[key]) {
      if (!word.is_string()) fault(key, "must be an array of texts");
      words.push_back(word.get<std::string>());
    }
    return words;
  }
  std::string word_or(const std::string& key, const std::string& usual) const {
    return object_.contains(key) ? word(key) : usual;
  }
  // Returns the index of the word among `words`.
  size_t choice(const std::string& key, std::span<const std::string_view> words) const {
    const auto found = std::find(words.begin(), words.end(), word(key));
    if (found == words.end())
      fault(key, "must be one of " + join(std::vector<std::string>(words.begin(), words.end()), ", "));
    return static_cast<size_t>(found - words.begin());
  }
  const Json& list(const std::string& key) const {
    if (!at(key).is_array() || at(key).empty()) fault(key, "must be an array with at least one element");
    return at(key);
  }
  [[noreturn]] void fault(const std::string& key, const std::string& rule) const {
    throw Error(ExitCode::usage, "{}: {}: {}", origin_, key, rule);
  }

 private:
  const Json& at(const std::string& key) const {
    if (!object_.contains(key)) fault(key, "is missing");
    return object_[key];
  }

  const Json& object_;
  std::string origin_;
};

Json document_of(const std::filesystem::path& file) {
  JsonText parsed = read_json(read_profile(file.string()));
  if (!parsed.syntax_error.empty()) throw Error(ExitCode::usage, "{}:{}", file.string(), parsed.syntax_error);
  for (const DuplicateKey& duplicate : parsed.duplicates)
    throw Error(ExitCode::usage, "{}: {}: is given twice", file.string(), duplicate.path);
  return std::move(parsed.document);
}

PublishedPoint read_point(const Json& object, const std::filesystem::path& file, size_t index) {
  const PointReader reader(object, fmt::format("{}: points[{}]", file.string(), index),
                           {"name", "config", "set", "gpus", "published"});
  PublishedPoint point{
      .name = reader.word("name"), .gpus = reader.count("gpus"), .published = reader.number("published")};
  point.config = load_config(file.parent_path() / reader.word("config"), reader.words("set"), point.gpus);
  return point;
}

}  // namespace

PublishedSteps read_published(const std::filesystem::path& file) {
  const Json document = document_of(file);
  const PointReader reader(document, file.string(),
                           {"title", "source", "figure", "target", "cluster", "software", "points"});
  const std::string cluster = reader.word_or("cluster", "");
  PublishedSteps steps{.title = reader.word("title"),
                       .source = reader.word("source"),
                       .figure = static_cast<PublishedFigure>(reader.choice("figure", figure_names)),
                       .machine = machine_named({reader.word("target"), cluster, reader.word("software")}, true),
                       .points = {}};
  const Json& points = reader.list("points");
  for (size_t i = 0; i < points.size(); ++i) steps.points.push_back(read_point(points[i], file, i));
  return steps;
}

void predict_published(PublishedSteps& steps) {
  for (PublishedPoint& point : steps.points) {
    try {
      static_cast<void>(make_mesh(point.config, point.gpus));  // throws if the GPUs are no whole number of models
      point.result = predict_layout(point.config, steps.machine, layout_of(point.config, point.gpus), 0);
    } catch (const Error& error) {
      const std::string text = error.what();
      point.refused = text.substr(0, text.find('\n'));
    }
  }
}

}  // namespace gptrain::planner
