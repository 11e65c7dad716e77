// Rules for the value of a single key: types, ranges and words.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "config/faults.h"
#include "config/json_text.h"

namespace gptrain::inline config {

// An integer from min to max. 12.0 and 1e4 are integers too.
struct IntegerRule {
  int64_t min = 0;
  uint64_t max = 0;
  std::string refusal;  // why values above `max` are refused; empty: `max` is the whole rule
};

struct NumberRule {
  double min = 0;
  double max = 0;
  bool min_excluded = false;
  bool max_excluded = false;
  bool may_be_zero = false;  // 0 is valid even if below `min`
};

struct BooleanRule {};

struct TextRule {  // UTF-8, no NUL
  bool may_be_empty = false;
  bool is_path = false;
};

// A word of the config language that this build cannot honour.
struct RefusedWord {
  std::string word;
  std::string reason;
  std::string instead;
};

struct WordRule {
  std::vector<std::string> words;
  std::vector<RefusedWord> refused;
};

// An integer or one of some words.
struct IntegerOrWordRule {
  IntegerRule integer;
  std::vector<std::string> words;
};

// An array of two numbers.
struct NumberPairRule {
  NumberRule each;
};

// An array of any length.
struct IntegerListRule {
  IntegerRule each;
};

// An array of any length.
struct NumberListRule {
  NumberRule each;
};

// An array of data sources, each an object with the keys of source_keys().
struct SourcesRule {
  bool may_be_empty = false;
  bool counts_epochs = true;  // training data: keys with SourceKey::counts_epochs are allowed
};

// An array of phases of the mixture of data, each {"until_step": integer, "weights": array of numbers}.
struct PhasesRule {};

// An array of ranges of samples, each {"first": integer, "count": integer}.
struct SampleRangesRule {};

// An array of words: unless it says otherwise at least one, each once.
struct WordListRule {
  WordRule each;
  bool may_repeat = false;
  bool may_be_empty = false;
};

// An array of words of attention patterns, at least one.
struct PatternListRule {};

struct ObjectKey;

// An object with any of the keys.
struct ObjectRule {
  const std::vector<ObjectKey>& (*keys)();
};

using ValueRule = std::variant<IntegerRule, NumberRule, BooleanRule, TextRule, WordRule, IntegerOrWordRule,
                               NumberPairRule, IntegerListRule, NumberListRule, SourcesRule, PhasesRule,
                               SampleRangesRule, WordListRule, PatternListRule, ObjectRule>;

struct ObjectKey {
  std::string key;
  std::string description;
  ValueRule rule;
  bool required;        // unless the object is empty
  std::string example;  // JSON text: the default, if there is one
};

// Return the keys of the objects run.rollback, memory.linear_projection, comm.compression and parallel.local_steps.
const std::vector<ObjectKey>& rollback_keys();
const std::vector<ObjectKey>& projection_keys();
const std::vector<ObjectKey>& compression_keys();
const std::vector<ObjectKey>& local_steps_keys();

struct SourceKey {
  std::string key;
  std::string description;
  ValueRule rule;
  bool required;
  std::string example;         // JSON text: the default, if there is one
  bool counts_epochs = false;  // for training data only (SourcesRule::counts_epochs); such keys have no default
};

// Returns the keys of a data source, an element of data.train or data.validation.
const std::vector<SourceKey>& source_keys();

// Adds a fault for everything in `value` that breaks `rule`; null breaks every rule. Rules between keys are not
// checked. `path` is the value's path in the config, which faults name ("model.num_heads", "data.train[0].weight").
// `example` is the JSON text of a valid value, proposed if there is no nearest one.
void check_value(const ValueRule& rule, const std::string& path, const Json& value, const std::string& example,
                 Faults& faults);

}  // namespace gptrain::config
