#include "config/value_rule.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <string>
#include <string_view>

#include "base/attention_pattern.h"
#include "base/json.h"
#include "base/kinds.h"
#include "config/aliases.h"
#include "config/run_config.h"
#include "config/source_list.h"

namespace gptrain::inline config {
namespace {

struct Subject {
  const std::string& path;
  const Json& value;
  const std::string& example;
  Faults& faults;

  void fault(const std::string& rule, const std::string& nearest) const {
    faults.add(path, show_value(value), rule, nearest);
  }
};

// Returns a text about each kind of compressed sums that has one.
std::string by_kind(std::string_view GradientSumKind::*text) {
  std::string all;
  for (const GradientSumKind& kind : gradient_sum_kinds) {
    if (!(kind.*text).empty()) all += fmt::format("{}{}: {}", all.empty() ? "" : "; ", kind.name, kind.*text);
  }
  return all;
}

enum class Side { below, inside, above };

Side side_of(const IntegerRule& rule, const Json& value) {
  const auto min = static_cast<double>(rule.min);
  if (value.is_number_float()) {  // integral, or a literal beyond 64 bits
    const double number = value.get<double>();
    if (number < min) return Side::below;
    return number >= 0x1p64 || (number >= 0 && static_cast<uint64_t>(number) > rule.max) ? Side::above : Side::inside;
  }
  if (!value.is_number_unsigned()) {
    const auto number = value.get<int64_t>();
    if (number < rule.min) return Side::below;
    return number >= 0 && static_cast<uint64_t>(number) > rule.max ? Side::above : Side::inside;
  }
  const auto number = value.get<uint64_t>();
  if (rule.min > 0 && number < static_cast<uint64_t>(rule.min)) return Side::below;
  return number > rule.max ? Side::above : Side::inside;
}

void check(const IntegerRule& rule, const Subject& subject) {
  if (!subject.value.is_number()) return subject.fault("must be an integer", subject.example);
  const Side side = side_of(rule, subject.value);
  if (side == Side::above && !rule.refusal.empty()) return subject.fault(rule.refusal, fmt::format("{}", rule.max));
  if (side != Side::inside) {
    return subject.fault(fmt::format("must be at least {} and at most {}", rule.min, rule.max),
                         side == Side::below ? fmt::format("{}", rule.min) : fmt::format("{}", rule.max));
  }
  // As in JSON Schema, 12.0 and 1e4 are integers.
  if (subject.value.is_number_float() && std::floor(subject.value.get<double>()) != subject.value.get<double>()) {
    const double number = subject.value.get<double>();
    subject.fault("must be an integer", fmt::format("{:.0f} or {:.0f}", std::floor(number), std::ceil(number)));
  }
}

void check(const NumberRule& rule, const Subject& subject) {
  if (!subject.value.is_number()) return subject.fault("must be a number", subject.example);
  const auto number = subject.value.get<double>();
  if (rule.may_be_zero && number == 0) return;
  const bool below = rule.min_excluded ? !(number > rule.min) : !(number >= rule.min);
  const bool above = rule.max_excluded ? !(number < rule.max) : !(number <= rule.max);
  if (!below && !above) return;
  const std::string bounds = fmt::format("must be {}{} {} and {} {}", rule.may_be_zero ? "0, or " : "",
                                         rule.min_excluded ? "greater than" : "at least", rule.min,
                                         rule.max_excluded ? "less than" : "at most", rule.max);
  const bool bound_is_valid = below ? !rule.min_excluded : !rule.max_excluded;
  subject.fault(bounds, bound_is_valid ? fmt::format("{}", below ? rule.min : rule.max) : subject.example);
}

void check(const BooleanRule&, const Subject& subject) {
  if (!subject.value.is_boolean()) subject.fault("must be true or false", subject.example);
}

bool is_utf8(const Json& text) {
  try {
    (void)json_text(text);
    return true;
  } catch (const Json::type_error&) {
    return false;
  }
}

void check(const TextRule& rule, const Subject& subject) {
  if (!subject.value.is_string()) return subject.fault("must be text", subject.example);
  const auto& text = subject.value.get_ref<const std::string&>();
  if (text.empty() && !rule.may_be_empty) return subject.fault("must not be empty", subject.example);
  if (text.find('\0') != std::string::npos) return subject.fault("must not hold a NUL character", subject.example);
  if (!is_utf8(subject.value)) return subject.fault("must be UTF-8", subject.example);
  // A folder with such a name would be made, or looked for, in the working directory.
  if (rule.is_path && (text.starts_with('~') || text.starts_with('$')))
    return subject.fault("must not begin with ~ or $, which a shell replaces and a config does not", subject.example);
  if (rule.is_path && text.find("://") != std::string::npos)
    subject.fault("must be a path in a file system of this machine, not a URL", subject.example);
}

void check(const WordRule& rule, const Subject& subject) {
  constexpr size_t listed_words = 9;  // a longer list would hide the message
  const std::string words =
      rule.words.size() <= listed_words
          ? fmt::format("must be one of {}", join(rule.words, ", "))
          : fmt::format("must be one of the {} names that `gptrain config schema` lists", rule.words.size());
  if (!subject.value.is_string()) return subject.fault(words, subject.example);
  const auto& word = subject.value.get_ref<const std::string&>();
  if (std::find(rule.words.begin(), rule.words.end(), word) != rule.words.end()) return;
  const auto refused = std::find_if(rule.refused.begin(), rule.refused.end(),
                                    [&](const RefusedWord& candidate) { return candidate.word == word; });
  if (refused != rule.refused.end()) return subject.fault(refused->reason, fmt::format("\"{}\"", refused->instead));
  const std::string meant = word_meant(word, rule.words);
  subject.fault(words, fmt::format("\"{}\"", meant.empty() ? nearest_word(word, rule.words) : meant));
}

void check(const IntegerOrWordRule& rule, const Subject& subject) {
  if (subject.value.is_number()) return check(rule.integer, subject);
  if (std::find(rule.words.begin(), rule.words.end(), subject.value) != rule.words.end()) return;
  if (rule.words.size() == 1)
    return subject.fault(fmt::format("must be an integer or \"{}\"", rule.words.front()), subject.example);
  subject.fault(fmt::format("must be an integer or one of {}", join(rule.words, ", ")), subject.example);
}

void check(const NumberPairRule& rule, const Subject& subject) {
  if (!subject.value.is_array() || subject.value.size() != 2) {
    return subject.fault("must be an array of two numbers", subject.example);
  }
  const Json example = Json::parse(subject.example);
  for (size_t i = 0; i < 2; ++i) {
    const std::string path = fmt::format("{}[{}]", subject.path, i);
    check(rule.each, {path, subject.value[i], json_text(example[i]), subject.faults});
  }
}

void check(const IntegerListRule& rule, const Subject& subject) {
  if (!subject.value.is_array()) return subject.fault("must be an array of integers", subject.example);
  for (size_t i = 0; i < subject.value.size(); ++i)
    check(rule.each, {fmt::format("{}[{}]", subject.path, i), subject.value[i], "1", subject.faults});
}

void check(const NumberListRule& rule, const Subject& subject) {
  if (!subject.value.is_array()) return subject.fault("must be an array of numbers", subject.example);
  for (size_t i = 0; i < subject.value.size(); ++i)
    check(rule.each, {fmt::format("{}[{}]", subject.path, i), subject.value[i], "1", subject.faults});
}

void check_source(const std::string& path, const Json& source, bool counts_epochs, Faults& faults) {
  if (!source.is_object()) {
    return faults.add(path, show_value(source), "must be an object with path and weight",
                      R"({"path": "data/corpus/train"})");
  }
  for (const auto& [key, value] : source.items()) {
    const auto known =
        std::find_if(source_keys().begin(), source_keys().end(), [&, &name = key](const SourceKey& candidate) {
          return candidate.key == name && (counts_epochs || !candidate.counts_epochs);
        });
    if (known != source_keys().end()) {
      check_value(known->rule, path + "." + key, value, known->example, faults);
      continue;
    }
    std::vector<std::string> names;
    for (const SourceKey& candidate : source_keys()) {
      if (counts_epochs || !candidate.counts_epochs) names.push_back(candidate.key);
    }
    faults.add(path + "." + key, show_value(value), "unknown key", path + "." + nearest_word(key, names));
  }
  for (const SourceKey& known : source_keys()) {
    if (known.required && !source.contains(known.key)) {
      faults.add(path + "." + known.key, "", "must be given", known.example);
    }
  }
  if (source.contains("weight") && source.contains("epochs"))
    faults.add(path + ".epochs", show_value(source["epochs"]), "is another way to give the weight",
               "leaving one of them out");
}

void check(const SourcesRule& rule, const Subject& subject) {
  const bool has_objects =
      std::any_of(subject.value.begin(), subject.value.end(), [](const Json& element) { return element.is_object(); });
  const Json meant = has_objects ? Json() : sources_of_list(subject.value);
  if (!meant.empty()) {
    constexpr size_t longest_offer = 1000;
    const std::string offer = json_text(meant);
    return subject.fault("must be an array of data sources, each an object",
                         offer.size() <= longest_offer ? offer : subject.example);
  }
  if (!subject.value.is_array()) return subject.fault("must be an array of data sources", subject.example);
  if (subject.value.empty() && !rule.may_be_empty) {
    return subject.fault("must hold at least one data source", subject.example);
  }
  for (size_t i = 0; i < subject.value.size(); ++i) {
    check_source(fmt::format("{}[{}]", subject.path, i), subject.value[i], rule.counts_epochs, subject.faults);
  }
}

void check_phase(const std::string& path, const Json& phase, Faults& faults) {
  constexpr const char* example = R"({"until_step": 1000, "weights": [1, 2]})";
  if (!phase.is_object() || phase.size() != 2 || !phase.contains("until_step") || !phase.contains("weights"))
    return faults.add(path, show_value(phase), "must be an object with until_step and weights", example);
  check_value(IntegerRule{1, uint64_t{INT64_MAX} >> 24, {}}, path + ".until_step", phase["until_step"], "1000", faults);
  const Json& weights = phase["weights"];
  if (!weights.is_array())
    return faults.add(path + ".weights", show_value(weights), "must be an array of numbers", "[1, 2]");
  for (size_t i = 0; i < weights.size(); ++i)
    check_value(NumberRule{.min = 0, .max = 1e9}, fmt::format("{}.weights[{}]", path, i), weights[i], "1", faults);
}

void check(const PhasesRule&, const Subject& subject) {
  if (!subject.value.is_array()) return subject.fault("must be an array of phases", subject.example);
  for (size_t i = 0; i < subject.value.size(); ++i)
    check_phase(fmt::format("{}[{}]", subject.path, i), subject.value[i], subject.faults);
}

void check(const SampleRangesRule&, const Subject& subject) {
  if (!subject.value.is_array()) return subject.fault("must be an array of ranges of samples", subject.example);
  for (size_t i = 0; i < subject.value.size(); ++i) {
    const std::string path = fmt::format("{}[{}]", subject.path, i);
    const Json& range = subject.value[i];
    if (!range.is_object() || range.size() != 2 || !range.contains("first") || !range.contains("count")) {
      subject.faults.add(path, show_value(range), "must be an object with first and count",
                         R"({"first": 1000, "count": 64})");
      continue;
    }
    constexpr uint64_t most = uint64_t{1} << 50;
    check_value(IntegerRule{0, most, {}}, path + ".first", range["first"], "1000", subject.faults);
    check_value(IntegerRule{1, most, {}}, path + ".count", range["count"], "64", subject.faults);
  }
}

void check(const WordListRule& rule, const Subject& subject) {
  if (!subject.value.is_array() || (subject.value.empty() && !rule.may_be_empty))
    return subject.fault(rule.may_be_empty ? "must be an array of words" : "must be an array of words, at least one",
                         subject.example);
  for (size_t i = 0; i < subject.value.size(); ++i) {
    const std::string path = fmt::format("{}[{}]", subject.path, i);
    const Json& word = subject.value[i];
    check(rule.each, {path, word, fmt::format("\"{}\"", rule.each.words.front()), subject.faults});
    const auto first = subject.value.begin(), here = first + static_cast<std::ptrdiff_t>(i);
    if (!rule.may_repeat && std::find(first, here, word) != here)
      subject.faults.add(path, show_value(word), "is there twice", "leaving one of them out");
  }
}

void check(const PatternListRule&, const Subject& subject) {
  if (!subject.value.is_array() || subject.value.empty())
    return subject.fault("must be an array of attention patterns, at least one", subject.example);
  for (size_t i = 0; i < subject.value.size(); ++i) {
    const Json& word = subject.value[i];
    if (word.is_string() && parse_attention_pattern(word.get_ref<const std::string&>())) continue;
    subject.faults.add(
        fmt::format("{}[{}]", subject.path, i), show_value(word),
        fmt::format("must be one of {}; sizes are 1 to 16777216, and C * V at most L", attention_pattern_words),
        R"("band:256")");
  }
}

void check(const ObjectRule& rule, const Subject& subject) {
  if (!subject.value.is_object()) return subject.fault("must be an object", subject.example);
  std::vector<std::string> names;
  for (const ObjectKey& known : rule.keys()) names.push_back(known.key);
  for (const auto& [key, value] : subject.value.items()) {
    const std::string path = subject.path + "." + key;
    const auto known = std::find_if(rule.keys().begin(), rule.keys().end(),
                                    [&, &name = key](const ObjectKey& candidate) { return candidate.key == name; });
    if (known == rule.keys().end()) {
      subject.faults.add(path, show_value(value), "unknown key", subject.path + "." + nearest_word(key, names));
    } else {
      check_value(known->rule, path, value, known->example, subject.faults);
    }
  }
  for (const ObjectKey& known : rule.keys()) {
    if (!subject.value.empty() && known.required && !subject.value.contains(known.key))
      subject.faults.add(subject.path + "." + known.key, "", "must be given", known.example);
  }
}

}  // namespace

const std::vector<ObjectKey>& rollback_keys() {
  static const std::vector<ObjectKey> keys = {
      {"spike", "a loss is high if it is more than this many standard deviations above the mean of the window",
       NumberRule{.min = 0, .max = 1e6, .min_excluded = true}, false, "4.0"},
      {"window",
       "number of latest losses that were not high, which give the mean and the standard deviation; until there are so "
       "many, no loss is high",
       IntegerRule{2, 100'000, {}}, false, "100"},
      {"skip_samples", "samples to leave out after the checkpoint, in the order of the training data",
       IntegerRule{1, uint64_t{1} << 50, {}}, true, "4096"},
      {"steps", "high losses in a row that make a spike", IntegerRule{1, 1000, {}}, false, "3"},
      {"limit", "times that a run goes back; the next spike ends it with exit code 6", IntegerRule{1, 1'000'000, {}},
       false, "5"},
  };
  return keys;
}

const std::vector<ObjectKey>& projection_keys() {
  // Attention's backward reads its output whatever the linear behind it saves.
  const RefusedWord out{"out", "saves nothing there: attention's backward reads the input of that linear anyway",
                        "qkv"};
  static const std::vector<ObjectKey> keys = {
      {"kind",
       "random matrix that projects: gauss (normal numbers), rademacher (signs), dct (cosines of some frequencies) or "
       "rows (one row out of each run of neighbours)",
       WordRule{{projection_names.begin(), projection_names.end()}, {}}, true, R"("rademacher")"},
      {"share", "rows of a sequence's projection, divided by the tokens of the sequence",
       NumberRule{.min = 0, .max = 1, .min_excluded = true}, false, "0.2"},
      {"sites",
       "linears that keep a projection: qkv (to queries, keys and values), ffn_in and ffn_out (the two of the FFN)",
       WordListRule{{{"qkv", "ffn_in", "ffn_out"}, {out}}}, false, R"(["qkv","ffn_in","ffn_out"])"},
  };
  return keys;
}

const std::vector<ObjectKey>& compression_keys() {
  static const std::vector<ObjectKey> keys = {
      {"kind", by_kind(&GradientSumKind::help),
       WordRule{{gradient_codec_names.begin() + 1, gradient_codec_names.end() - 1}, {}}, true, R"("int8")"},
      {"rank", by_kind(&GradientSumKind::rank_help), IntegerRule{1, 32, {}}, false, "2"},
      {"share", by_kind(&GradientSumKind::share_help), NumberRule{.min = 0, .max = 0.5, .min_excluded = true}, false,
       "0.01"},
      {"error",
       "each rank adds the error that it has made to its next gradients; takes 8 bytes for each element and saves 4 "
       "of them in checkpoints, for each data rank",
       BooleanRule{}, false, "true"},
      {"alternate",
       "kind powersgd: a step sums one of the two factors only, and the next step the other one, so that each sends "
       "about half the bytes, and waits for one sum in place of two",
       BooleanRule{}, false, "false"},
      {"between",
       "all: sums over all data ranks are compressed; nodes: the ranks of a node sum gradients as they are, and only "
       "the sums between nodes are compressed; each rank keeps the errors of its share of the node's sum",
       WordRule{{compressed_sums_names.begin(), compressed_sums_names.end()}, {}}, false, R"("all")"},
      {"start_step", "steps at the run's start that sum gradients in fp32", IntegerRule{0, 1 << 30, {}}, false, "0"},
      {"min_elements", "matrices with fewer elements, norms and biases are summed in fp32", IntegerRule{1, 1 << 30, {}},
       false, "65536"},
  };
  return keys;
}

const std::vector<ObjectKey>& local_steps_keys() {
  static const std::vector<ObjectKey> keys = {
      {"islands", "number of islands; an island is a group of neighbouring data ranks that trains by itself",
       IntegerRule{1, 1 << 16, {}}, true, "2"},
      {"every", "steps from one averaging of the weights to the next; the last step of the run averages as well",
       IntegerRule{1, 1 << 30, {}}, true, "30"},
      {"start_step", "steps at the run's start in which all data ranks sum gradients", IntegerRule{0, 1 << 30, {}},
       false, "0"},
      {"outer",
       "average: the islands' mean is the new weight; nesterov: the mean of the islands' moves is the gradient of an "
       "SGD step with Nesterov momentum from the weights of the last averaging (DiLoCo)",
       WordRule{{outer_step_names.begin(), outer_step_names.end()}, {}}, false, R"("average")"},
      {"outer_lr", "of nesterov only: learning rate of that step; default: 0.7",
       NumberRule{.min = 0, .max = 10, .min_excluded = true}, false, "0.7"},
      {"outer_momentum", "of nesterov only: momentum of that step; default: 0.9",
       NumberRule{.min = 0, .max = 1, .max_excluded = true}, false, "0.9"},
  };
  return keys;
}

const std::vector<SourceKey>& source_keys() {
  static const std::vector<SourceKey> keys = {
      {"path",
       "PREFIX of PREFIX.bin and PREFIX.idx, or of shards; a file of llm.c, nanoGPT (.bin) or numpy (.npy); or a "
       "folder or "
       "pattern of such files; a relative path starts at the working directory",
       TextRule{.is_path = true}, true, R"("data/corpus/train")"},
      {"weight", "share of the samples that come from this source, relative to the other weights",
       NumberRule{.min = 0, .max = 1e9, .min_excluded = true}, false, "1"},
      {"dtype", "type of the tokens in files that have no header and no index, u16 or u32; auto: u16",
       WordRule{{"auto", "u16", "u32"}, {}}, false, R"("auto")"},
      {"epochs",
       "passes over this source, given in place of weight for all sources: the weight is this number times the "
       "source's size",
       NumberRule{.min = 0, .max = 1e9, .min_excluded = true}, false, "2", true},
      {"max_epochs", "passes over this source after which the other sources take its place",
       NumberRule{.min = 0, .max = 1e9, .min_excluded = true}, false, "4", true},
      {"tokens",
       "number of tokens of a source whose files are not there, for `data mix` and dry runs; training needs the files, "
       "and refuses this key",
       IntegerRule{1, uint64_t{1} << 50, {}}, false, "1000000000", true},
  };
  return keys;
}

void check_value(const ValueRule& rule, const std::string& path, const Json& value, const std::string& example,
                 Faults& faults) {
  const Subject subject{path, value, example, faults};
  std::visit([&](const auto& alternative) { check(alternative, subject); }, rule);
}

}  // namespace gptrain::config
