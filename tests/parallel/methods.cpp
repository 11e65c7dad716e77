#include "methods.h"

#include <algorithm>
#include <fmt/format.h>
#include <random>

#include "base/error.h"
#include "fit/recompute_plan.h"
#include "model_fixture.h"

namespace gptrain::testing {
namespace {

struct MethodValue {
  std::string label;
  Overrides overrides;
  int64_t num_ranks = 1;  // ranks of a layout
};

struct MethodAxis {
  std::string name;
  std::vector<MethodValue> values;  // the first value is the default
};

std::vector<MethodValue> of_key(const std::string& key, const std::vector<std::string>& values) {
  std::vector<MethodValue> result;
  for (const std::string& value : values)
    result.push_back({value, value == values.front() ? Overrides{} : Overrides{fmt::format("{}={}", key, value)}});
  return result;
}

MethodValue in_stages(int64_t stages, const std::string& schedule, int64_t chunks, Overrides overrides, int64_t ranks) {
  overrides.insert(overrides.end(),
                   {fmt::format("parallel.pipeline={}", stages), "parallel.pipeline_schedule=" + schedule});
  if (chunks > 1) overrides.push_back(fmt::format("parallel.virtual_stages={}", chunks));
  return {schedule, std::move(overrides), ranks};
}

const std::vector<MethodAxis>& method_axes() {
  static const std::vector<MethodAxis> all = {
      {"model",
       {{"gpt2", {}},
        {"gpt2 gelu", {"model.activation=gelu"}},
        {"llama", {}},
        {"llama biased", {"model.bias=true", "model.tied_head=true"}}}},
      {"layout",
       {{"alone", {}},
        {"data", {"parallel.zero=0"}, 2},
        {"zero 1", {"parallel.zero=1"}, 2},
        {"zero 2", {"parallel.zero=2"}, 2},
        {"zero 3", {"parallel.zero=3"}, 2},
        {"tensor", {"parallel.tensor=2"}, 2},
        {"sequence", {"parallel.tensor=2", "parallel.sequence=true", "parallel.zero=3"}, 4},
        in_stages(2, "1f1b", 1, {"parallel.zero=1"}, 4),
        in_stages(2, "gpipe", 1, {}, 2),
        in_stages(2, "varuna", 1, {"parallel.zero=2"}, 4),
        in_stages(3, "interleaved", 2, {}, 3),
        in_stages(2, "zero-bubble", 1, {"parallel.tensor=2"}, 4),
        in_stages(2, "zero-bubble-v", 2, {"parallel.zero=3"}, 4)}},
      {"precision",
       {{"fp32", {}},
        {"fp32, weight gradients bf16", {"precision.weight_gradients=bf16"}},
        {"bf16", {"precision.compute=bf16"}},
        {"bf16, residual fp32", {"precision.compute=bf16", "precision.residual=fp32"}},
        {"bf16, fp8", {"precision.compute=bf16", "precision.linears=fp8", "run.device=auto"}},
        {"bf16, weight gradients fp8", {"precision.compute=bf16", "precision.weight_gradients=fp8", "run.device=auto"}},
        {"pure", {"precision.compute=bf16-pure"}},
        {"pure, gradients bf16", {"precision.compute=bf16-pure", "precision.gradients=bf16"}}}},
      {"reduce", of_key("precision.reduce", {"fp32", "bf16"})},
      {"optimizer",
       of_key("optimizer.type", {"adamw", "adamw-8bit", "sgd", "lion", "lamb", "lars", "muon", "adafactor"})},
      {"recompute",
       {{"none", {}},
        {"block", {"memory.recompute=block"}},
        {"every_nth", {"memory.recompute=every_nth", "memory.recompute_interval=2"}},
        {"selective", {"memory.recompute=selective"}},
        {"ffn", {"memory.recompute=ffn"}},
        {"ffn, offloaded", {"memory.recompute=ffn", "memory.offload_activations=all"}},
        {"optimal", {"memory.recompute=optimal"}},
        {"all offloaded", {"memory.offload_activations=all"}},
        {"one offloaded", {"memory.offload_activations=1"}},
        {"hidden", {"memory.offload_activations=hidden"}},
        {"block, offloaded", {"memory.recompute=block", "memory.offload_activations=all"}},
        {"selective, offloaded", {"memory.recompute=selective", "memory.offload_activations=all"}},
        {"both optimal", {"memory.recompute=optimal", "memory.offload_activations=optimal"}}}},
      {"activation bits", of_key("memory.activation_bits", {"16", "4", "3", "2"})},
      {"saved inputs", of_key("memory.saved_inputs", {"16", "8"})},
      {"projection",
       {{"none", {}},
        {"gauss", {R"(memory.linear_projection={"kind":"gauss","share":0.4})"}},
        {"rademacher", {R"(memory.linear_projection={"kind":"rademacher","share":0.2,"sites":["ffn_in"]})"}},
        {"dct", {R"(memory.linear_projection={"kind":"dct","share":0.3})"}},
        {"rows", {R"(memory.linear_projection={"kind":"rows","share":0.25,"sites":["qkv","ffn_out"]})"}}}},
      {"beside",
       {{"nothing", {}},
        {"dropout", {"model.dropout=0.1"}},
        {"ema", {"optimizer.ema=0.9"}},
        {"mup", {"model.mup=32"}},
        {"documents", {"data.mask_documents=true"}},
        {"patterns", {R"(model.attention_pattern=["dense","band:7","fixed:6,2/2"])"}}}},
  };
  return all;
}

size_t method_axis(const std::string& name) {
  const auto found = std::find_if(method_axes().begin(), method_axes().end(),
                                  [&](const MethodAxis& axis) { return axis.name == name; });
  return static_cast<size_t>(found - method_axes().begin());
}

// Sizes that suit FP8 on two tensor ranks and blocks of 8-bit moments.
const Overrides method_sizes = {
    "model.num_layers=6",   "model.hidden_size=64",     "model.num_heads=4", "model.ffn_hidden_size=160",
    "model.vocab_size=101", "model.sequence_length=24", "batch.micro=2"};
constexpr int64_t micro_batches = 3;

// Draws choices for every pair of values. Other axes have their default half of the time, as rules allow few
// combinations.
std::vector<std::vector<size_t>> possible_choices() {
  constexpr int tries = 60, wanted = 6;
  std::mt19937_64 random(1);
  std::vector<std::vector<size_t>> choices;
  const auto add = [&](size_t a, size_t of_a, size_t b, size_t of_b) {
    int found = 0;
    for (int i = 0; i < tries && found < wanted; ++i) {
      std::vector<size_t> choice(method_axes().size(), 0);
      for (size_t axis = 0; axis < choice.size(); ++axis)
        if (i + 1 < tries && random() % 2 == 0) choice[axis] = random() % method_axes()[axis].values.size();
      choice[a] = of_a;
      choice[b] = of_b;
      if (!MethodCase(choice).possible()) continue;
      choices.push_back(choice);
      ++found;
    }
  };
  for (size_t a = 0; a < method_axes().size(); ++a)
    for (size_t b = a + 1; b < method_axes().size(); ++b)
      for (size_t of_a = 0; of_a < method_axes()[a].values.size(); ++of_a)
        for (size_t of_b = 0; of_b < method_axes()[b].values.size(); ++of_b) add(a, of_a, b, of_b);
  return choices;
}

}  // namespace

std::string MethodCase::name() const {
  std::string name;
  for (size_t axis = 0; axis < choice_.size(); ++axis) {
    if (axis < 2 || choice_[axis] > 0)
      name += (axis == 0 ? "" : ", ") + method_axes()[axis].values[choice_[axis]].label;
  }
  return name;
}

int64_t MethodCase::world_size() const {
  const size_t layout = method_axis("layout");
  return method_axes()[layout].values[choice_[layout]].num_ranks;
}

RunConfig MethodCase::parsed(bool keeps_all) const {
  Overrides overrides = method_sizes;
  for (size_t axis = 0; axis < choice_.size(); ++axis) {
    if (keeps_all && axis == method_axis("recompute")) continue;
    const Overrides& more = method_axes()[axis].values[choice_[axis]].overrides;
    overrides.insert(overrides.end(), more.begin(), more.end());
  }
  overrides.push_back(fmt::format("batch.accumulation={}", micro_batches));
  overrides.push_back("batch.global=null");
  const bool gpt2 = method_axes().front().values[choice_.front()].label.starts_with("gpt2");
  return small_config(gpt2 ? Family::gpt2 : Family::llama, overrides, world_size());
}

bool MethodCase::possible() const {
  try {
    parsed(false);
  } catch (const Error& error) {
    if (error.code() != ExitCode::usage) throw;
    return false;
  }
  return true;
}

MethodCase MethodCase::on_next_layout() const {
  const size_t layout = method_axis("layout");
  MethodCase next = *this;
  do {
    next.choice_[layout] = (next.choice_[layout] + 1) % method_axes()[layout].values.size();
  } while (!next.possible());
  return next;
}

RunConfig MethodCase::config(const Target& target) const {
  RunConfig config = parsed(false);
  if (config.memory.recompute != RecomputeKind::optimal) return config;
  int64_t least = 0, most = 0;
  for (int32_t stage = 0; stage < config.parallel.pipeline; ++stage) {
    const RecomputePlanner planner({config, target, world_size()}, stage);
    least = std::max(least, planner.least().bytes);
    most = std::max(most, planner.fixed({.recompute = RecomputeKind::none}).bytes);
  }
  config.memory.activation_budget = least + (most - least) / 3;
  return config;
}

RunConfig MethodCase::config_that_keeps_all() const { return parsed(true); }

bool MethodCase::has_bits_of_keeping_all(const Target& target) const {
  const RunConfig config = parsed(false);
  return target.kind != Target::Kind::gpu || config.memory.recompute != RecomputeKind::selective ||
         config.precision.compute == DType::f32 || config.model.activation != ActivationKind::gelu_tanh;
}

std::vector<MethodCase> method_cases() {
  const std::vector<std::vector<size_t>> choices = possible_choices();
  std::vector<MethodCase> cases;
  for (const size_t index : covering(choices)) cases.emplace_back(choices[index]);
  return cases;
}

}  // namespace gptrain::testing
