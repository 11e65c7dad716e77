#include "layouts.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <map>
#include <random>
#include <set>

#include "base/error.h"
#include "model_fixture.h"
#include "some_cases.h"

namespace gptrain::testing {
namespace {

constexpr int64_t max_ranks = 8;
constexpr int64_t samples_of_data_rank = 8;
constexpr int64_t first_compared_sample = 1000;

std::vector<AxisValue> numbers(const std::string& key, const std::vector<int64_t>& values) {
  std::vector<AxisValue> result;
  for (const int64_t value : values) result.push_back({fmt::format("{}", value), {fmt::format("{}={}", key, value)}});
  return result;
}

std::vector<Axis> make_axes() {
  return {
      {"model", true, {{"gpt2", {}}, {"llama", {}}}},
      {"head", true, {{"tied", {"model.tied_head=true"}}, {"untied", {"model.tied_head=false"}}}},
      // Patterns of attention go along with other axes, as one more would triple the product.
      {"bias",
       true,
       {{"yes", {"model.bias=true"}},
        {"no, band:7", {"model.bias=false", R"(model.attention_pattern=["dense","band:7"])"}},
        {"no, experts",
         {"model.bias=false", R"(model.moe={"experts":6,"top_k":2,"ffn_hidden_size":192,"first":1,"shared":1})"}}}},
      {"kv_heads",
       true,
       {{"all", {}},
        {"2", {"model.num_kv_heads=2"}},
        {"1, fixed:10,2", {"model.num_kv_heads=1", R"(model.attention_pattern=["fixed:10,2","dense"])"}}}},
      {"dropout", true, {{"0", {}}, {"0.1", {"model.dropout=0.1"}}}},
      {"tensor", false, numbers("parallel.tensor", {1, 2, 3, 4, 5, 6, 8})},
      {"context",
       false,
       {{"1", {}},
        {"2", {"parallel.context=2", "parallel.context_method=heads"}},
        {"4", {"parallel.context=4", "parallel.context_method=heads"}},
        {"5", {"parallel.context=5", "parallel.context_method=heads"}},
        {"2, ring", {"parallel.context=2", "parallel.context_method=ring"}},
        {"5, ring", {"parallel.context=5", "parallel.context_method=ring"}}}},
      {"data", false, {{"1", {}}, {"2", {}}, {"3", {}}, {"4", {}}, {"5", {}}, {"6", {}}, {"8", {}}}},
      {"zero", false, numbers("parallel.zero", {0, 1, 2, 3})},
      {"sequence",
       false,
       {{"off", {}},
        {"on", {"parallel.sequence=true"}},
        {"off, in pieces", {"parallel.overlap_tensor=true"}},
        {"on, in pieces", {"parallel.sequence=true", "parallel.overlap_tensor=true"}}}},
      {"micro_batches", false, numbers("batch.accumulation", {1, 2, 4})},
      {"recompute", false, {{"none", {}}, {"block", {"memory.recompute=block"}}}},
  };
}

size_t axis_index(const std::string& name) {
  const std::vector<Axis>& axes = layout_axes();
  const auto found = std::find_if(axes.begin(), axes.end(), [&](const Axis& axis) { return axis.name == name; });
  return static_cast<size_t>(found - axes.begin());
}

// Two axes and a value of each; twice the same axis where single values are to be covered.
using Pair = std::array<size_t, 4>;

std::vector<Pair> pairs_of(const std::vector<size_t>& choice) {
  std::vector<Pair> pairs;
  for (size_t a = 0; a < choice.size(); ++a) {
    if (some_cases()) {
      pairs.push_back({a, choice[a], a, choice[a]});
      continue;
    }
    for (size_t b = a + 1; b < choice.size(); ++b) pairs.push_back({a, choice[a], b, choice[b]});
  }
  return pairs;
}

bool contains(const std::vector<size_t>& choice, const Pair& pair) {
  return choice[pair[0]] == pair[1] && choice[pair[2]] == pair[3];
}

struct Range {
  std::string name;
  size_t first, end;
};

// Returns the tensor's whole range, or the ranges of a matrix's sections.
std::vector<Range> ranges_of(const TensorSpec& tensor) {
  if (tensor.sections.size() < 2 || tensor.shape.size() < 2)
    return {{tensor.name, 0, static_cast<size_t>(tensor.count())}};
  std::vector<Range> ranges;
  const auto cols = static_cast<size_t>(tensor.shape[1]);
  size_t first = 0;
  for (size_t i = 0; i < tensor.sections.size(); ++i) {
    const size_t end = first + static_cast<size_t>(tensor.sections[i].rows) * cols;
    ranges.push_back({fmt::format("{}[{}]", tensor.name, i), first, end});
    first = end;
  }
  return ranges;
}

// Updates `worst` with the largest relative distance of the tensor's ranges.
void compare(const TensorSpec& tensor, const std::vector<float>& a, const std::vector<float>& b, double& worst,
             std::string& where) {
  for (const Range& range : ranges_of(tensor)) {
    double distance = 0;
    double size = 0;
    for (size_t i = range.first; i < range.end; ++i) {
      const auto value = static_cast<double>(a[i]);
      distance += (value - static_cast<double>(b[i])) * (value - static_cast<double>(b[i]));
      size += value * value;
    }
    const double relative = std::sqrt(distance / size);
    if (std::isnan(worst) || relative <= worst) continue;  // keeps a NaN
    worst = relative;
    where = range.name;
  }
}

}  // namespace

RunConfig config_of(const SmallLayout& layout, const Overrides& more) {
  Overrides overrides = {"model.num_heads=6",
                         "model.num_kv_heads=2",
                         "model.hidden_size=48",
                         "model.ffn_hidden_size=60",
                         "model.sequence_length=20",
                         "batch.global=12",
                         "batch.micro=2",
                         fmt::format("parallel.tensor={}", layout.tensor),
                         fmt::format("parallel.pipeline={}", layout.pipeline)};
  overrides.insert(overrides.end(), layout.overrides.begin(), layout.overrides.end());
  overrides.insert(overrides.end(), more.begin(), more.end());
  return small_config(Family::llama, overrides, layout.world_size());
}

Outcome train(const SmallLayout& layout, const Overrides& more, int steps) {
  return train_on_ranks(config_of(layout, more), layout.world_size(), steps);
}

double relative_distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, length = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    length += double{b[i]} * b[i];
  }
  return std::sqrt(difference / (length + 1e-30));
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

const std::vector<Axis>& layout_axes() {
  static const std::vector<Axis> axes = make_axes();
  return axes;
}

int64_t LayoutCase::number_of(const std::string& axis) const {
  const size_t index = axis_index(axis);
  return std::stoll(layout_axes().at(index).values.at(choice_.at(index)).label);
}

std::string LayoutCase::name() const {
  std::string name;
  for (size_t i = 0; i < choice_.size(); ++i) {
    const Axis& axis = layout_axes()[i];
    const std::string& label = axis.values[choice_[i]].label;
    name += i == 0 ? label : " " + axis.name + "=" + label;
  }
  return name;
}

std::vector<std::string> LayoutCase::overrides(bool model_only) const {
  const int64_t tensor = tensor_size();
  const int64_t num_heads = tensor == 5 || context_size() == 5 ? 10 : tensor == 8 ? 8 : 12;
  // A large eps beside the rounding of gradients: Adam's first step must not depend on the sign of a gradient that is
  // zero except for rounding (the key bias).
  std::vector<std::string> result = {fmt::format("model.num_heads={}", num_heads),
                                     fmt::format("model.num_kv_heads={}", num_heads),
                                     fmt::format("model.hidden_size={}", 4 * num_heads),
                                     "model.ffn_hidden_size=120",
                                     "model.vocab_size=201",
                                     "model.sequence_length=20",
                                     "optimizer.eps=1e-3"};
  for (size_t i = 0; i < choice_.size(); ++i) {
    const Axis& axis = layout_axes()[i];
    if (model_only && !axis.of_model) continue;
    const std::vector<std::string>& more = axis.values[choice_[i]].overrides;
    result.insert(result.end(), more.begin(), more.end());
  }
  return result;
}

namespace {

RunConfig make_config(const LayoutCase& layout, std::vector<std::string> overrides, int64_t samples,
                      int64_t micro_batch, int64_t world_size) {
  overrides.push_back(fmt::format("batch.global={}", samples));
  overrides.push_back(fmt::format("batch.micro={}", micro_batch));
  const bool gpt2 = layout_axes()[0].values[layout.choice()[0]].label == "gpt2";
  return small_config(gpt2 ? Family::gpt2 : Family::llama, overrides, world_size);
}

}  // namespace

bool LayoutCase::possible() const {
  if (world_size() > max_ranks || (context_size() * data_size() == 1 && number_of("zero") > 0)) return false;
  try {
    config();
  } catch (const Error& error) {
    if (error.code() != ExitCode::usage) throw;
    return false;
  }
  return true;
}

RunConfig LayoutCase::config() const {
  return make_config(*this, overrides(false), samples_of_data_rank * data_size(),
                     samples_of_data_rank / number_of("micro_batches"), world_size());
}

RunConfig LayoutCase::config_of_one_rank() const {
  const int64_t samples = samples_of_data_rank * data_size();
  return make_config(*this, overrides(true), samples, samples, 1);
}

RunConfig LayoutCase::config_of_start() const {
  return make_config(*this, overrides(true), samples_of_data_rank, samples_of_data_rank, 1);
}

std::vector<LayoutCase> full_product() {
  const std::vector<Axis>& axes = layout_axes();
  std::vector<LayoutCase> cases;
  std::vector<size_t> choice(axes.size(), 0);
  // No number of values of an axis divides it, so that the share has all of them. Rules of configs take minutes for the
  // whole product under a sanitizer.
  const size_t share = some_cases() ? 101 : 1;
  for (size_t number = 0;; ++number) {
    LayoutCase layout(choice);
    if (number % share == 0 && layout.possible()) cases.push_back(std::move(layout));
    size_t axis = axes.size();
    while (axis > 0 && ++choice[axis - 1] == axes[axis - 1].values.size()) choice[--axis] = 0;
    if (axis == 0) return cases;
  }
}

std::vector<size_t> covering(const std::vector<std::vector<size_t>>& choices) {
  // Only a few of some hundred thousand choices have a pair that earlier ones lack.
  std::set<Pair> uncovered;
  std::vector<bool> seen;
  for (const std::vector<size_t>& choice : choices) {
    for (const Pair& pair : pairs_of(choice)) {
      const size_t number = ((pair[0] * 16 + pair[2]) * 64 + pair[1]) * 64 + pair[3];
      if (number >= seen.size()) seen.resize(number + 1, false);
      if (!seen[number]) uncovered.insert(pair);
      seen[number] = true;
    }
  }
  std::mt19937_64 random(1);
  std::vector<size_t> chosen;
  while (!uncovered.empty()) {
    const Pair wanted = *uncovered.begin();
    std::vector<size_t> candidates;
    for (size_t i = 0; i < choices.size(); ++i) {
      if (contains(choices[i], wanted)) candidates.push_back(i);
    }
    constexpr size_t num_tried = 400;
    size_t best = candidates.front();
    int64_t best_covered = 0;
    for (size_t i = 0; i < num_tried; ++i) {
      const size_t candidate = candidates[random() % candidates.size()];
      int64_t covered = 0;
      for (const Pair& pair : pairs_of(choices[candidate])) covered += uncovered.contains(pair) ? 1 : 0;
      if (covered > best_covered) {
        best_covered = covered;
        best = candidate;
      }
    }
    for (const Pair& pair : pairs_of(choices[best])) uncovered.erase(pair);
    chosen.push_back(best);
  }
  return chosen;
}

std::vector<LayoutCase> covering(const std::vector<LayoutCase>& cases) {
  std::vector<std::vector<size_t>> choices;
  for (const LayoutCase& layout : cases) choices.push_back(layout.choice());
  std::vector<LayoutCase> chosen;
  for (const size_t index : covering(choices)) chosen.push_back(cases[index]);
  return chosen;
}

bool Difference::small() const {
  return torn.empty() && first_moment < 2e-5 && weight < 2e-5 && std::abs(loss) < 1e-5 && std::abs(norm) < 1e-5;
}

Difference difference(const ModelSpec& spec, const Outcome& one, const Outcome& many) {
  Difference result;
  for (const TensorSpec& tensor : spec.tensors) {
    const auto compare_kind = [&](const std::string& kind, double& worst, std::string& where) {
      compare(tensor, one.state.at(kind + tensor.name), many.state.at(kind + tensor.name), worst, where);
    };
    if (tensor.follows_loads) {
      // No gradient: the moments are 0.
    } else if (one.state.contains("exp_avg_sq_row/" + tensor.name)) {
      for (const char* kind : {"exp_avg_sq_row/", "exp_avg_sq_col/"}) {
        const GlobalState &a = one.state, &b = many.state;
        const double distance = relative_distance(b.at(kind + tensor.name), a.at(kind + tensor.name));
        if (std::isnan(result.first_moment) || distance <= result.first_moment) continue;
        result.first_moment = distance;
        result.moment_of = kind + tensor.name;
      }
    } else {
      const bool momentum = one.state.contains("momentum/" + tensor.name);
      const bool first = momentum || one.state.contains("exp_avg/" + tensor.name);
      compare_kind(momentum ? "momentum/" : first ? "exp_avg/" : "exp_avg_sq/", result.first_moment, result.moment_of);
    }
    compare_kind("weight/", result.weight, result.weight_of);
  }
  result.loss = many.losses[0] / one.losses[0] - 1;
  result.norm = many.norms[0] / one.norms[0] - 1;
  result.torn = many.torn;
  return result;
}

Difference compare_with_one_rank(const LayoutCase& layout, const Wrapping& wrapping) {
  // Starting states and one-rank results are computed once per model and shared by its layouts.
  static std::map<std::string, GlobalState> starts;
  static std::map<std::string, Outcome> ones;
  const std::string start_key = show_config(layout.config_of_start());
  if (!starts.contains(start_key)) starts[start_key] = train_on_ranks(layout.config_of_start(), 1, 10).state;
  const GlobalState& start = starts.at(start_key);
  const RunConfig config_of_one = layout.config_of_one_rank();
  const std::string one_key = show_config(config_of_one);
  if (!ones.contains(one_key)) ones[one_key] = train_on_ranks(config_of_one, 1, 1, &start, first_compared_sample);
  const Outcome many = train_on_ranks(layout.config(), layout.world_size(), 1, &start, first_compared_sample, wrapping);
  return difference(make_spec(config_of_one.model), ones.at(one_key), many);
}

}  // namespace gptrain::testing
