// Checks that every schedule and number of stages of a pipeline gives the bits of one stage on the same tensor and data
// ranks; with a tied head on two stages, up to the rounding of its gradient sum.
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.h"
#include "catch.h"
#include "layouts.h"
#include "model_fixture.h"
#include "some_cases.h"

namespace test_pipelines {

using namespace gptrain;
using namespace gptrain::testing;

namespace {

using Overrides = std::vector<std::string>;

constexpr int64_t num_layers = 12;  // one for each chunk of the largest pipeline
constexpr int64_t max_ranks = 8;
constexpr int64_t first_compared_sample = 1000;

struct Pipeline {
  std::string schedule;
  int64_t stages = 1, chunks = 1;
};

std::vector<Pipeline> make_pipelines() {
  std::vector<Pipeline> pipelines;
  for (const PipelineSchedule& schedule : pipeline_schedules()) {
    for (const int64_t stages : {2, 3, 4}) {
      for (const int64_t chunks : {1, 2, 3}) {
        if (chunks < schedule.least_chunks || (schedule.most_chunks > 0 && chunks > schedule.most_chunks)) continue;
        if (schedule.name == "interleaved" && chunks == 1) continue;  // equals 1F1B, and is refused
        pipelines.push_back({std::string(schedule.name), stages, chunks});
      }
    }
  }
  return pipelines;
}

struct Value {
  std::string label;
  Overrides overrides;
};

struct Mesh {
  std::string label;
  int64_t tensor, data;
  Overrides overrides;
  RankOrder order = RankOrder::tensor_data_pipeline;
};

const std::vector<Pipeline> pipelines = make_pipelines();
const std::vector<Value> models = {{"gpt2", {"model.tied_head=false"}},
                                   {"gpt2 tied", {"model.tied_head=true"}},
                                   {"llama", {"model.tied_head=false"}},
                                   {"llama tied", {"model.tied_head=true"}}};
const std::vector<Mesh> meshes = {
    {.label = "alone", .tensor = 1, .data = 1, .overrides = {}},
    {.label = "tensor", .tensor = 2, .data = 1, .overrides = {"parallel.tensor=2"}},
    {.label = "sequence", .tensor = 2, .data = 1, .overrides = {"parallel.tensor=2", "parallel.sequence=true"}},
    {.label = "data", .tensor = 1, .data = 2, .overrides = {}},
    {.label = "tensor data", .tensor = 2, .data = 2, .overrides = {"parallel.tensor=2"}},
    {.label = "data, stages first", .tensor = 1, .data = 2, .overrides = {}, .order = RankOrder::tensor_pipeline_data},
    {.label = "tensor data, stages first",
     .tensor = 2,
     .data = 2,
     .overrides = {"parallel.tensor=2", "parallel.sequence=true"},
     .order = RankOrder::tensor_pipeline_data}};
const std::vector<int64_t> micro_batches = {1, 2, 3, 5, 8};
const std::vector<Value> recomputes = {{"none", {}},
                                       {"selective", {"memory.recompute=selective"}},
                                       {"ffn", {"memory.recompute=ffn"}},
                                       {"block", {"memory.recompute=block"}},
                                       {"every_nth", {"memory.recompute=every_nth", "memory.recompute_interval=2"}}};
const std::vector<Value> precisions = {{"fp32", {"precision.compute=fp32"}},
                                       {"bf16", {"precision.compute=bf16"}},
                                       {"pure", {"precision.compute=bf16-pure"}}};
const std::vector<Value> extras = {{"plain", {}},
                                   {"dropout", {"model.dropout=0.1"}},
                                   {"documents", {"data.mask_documents=true"}},
                                   {"narrow sums", {"precision.reduce=bf16"}}};
const std::vector<std::string> placements = {"even", "first empty", "last empty"};

// One value of each axis.
class Case {
 public:
  enum Axis : size_t { pipeline, model, mesh, zero, accumulation, recompute, precision, extra, placement, count };

  static std::vector<size_t> sizes() {
    return {pipelines.size(),  models.size(), meshes.size(),    4, micro_batches.size(), recomputes.size(),
            precisions.size(), extras.size(), placements.size()};
  }

  explicit Case(std::vector<size_t> choice) : choice_(std::move(choice)) {}

  const std::vector<size_t>& choice() const { return choice_; }
  const Pipeline& shape() const { return pipelines[choice_[pipeline]]; }
  const Mesh& ranks() const { return meshes[choice_[mesh]]; }
  int64_t world_size() const { return ranks().tensor * ranks().data * shape().stages; }
  bool tied() const { return models[choice_[model]].label.ends_with("tied"); }
  bool starts_trained() const { return precisions[choice_[precision]].label != "pure"; }

  std::string name() const {
    return fmt::format("{} {}x{} {}, {}, ZeRO {}, {} micro-batches, recompute {}, {}, {}, {}", shape().schedule,
                       shape().stages, shape().chunks, models[choice_[model]].label, ranks().label, choice_[zero],
                       micro_batches[choice_[accumulation]], recomputes[choice_[recompute]].label,
                       precisions[choice_[precision]].label, extras[choice_[extra]].label,
                       placements[choice_[placement]]);
  }

  bool possible() const {
    if (world_size() > max_ranks || (ranks().data == 1 && choice_[zero] > 0)) return false;
    // A weight that rounds the other way could not be distinguished from a fault.
    if (tied() && precisions[choice_[precision]].label != "fp32") return false;
    if (extras[choice_[extra]].label == "narrow sums" &&
        (ranks().data == 1 || precisions[choice_[precision]].label == "fp32"))
      return false;
    return true;
  }

  RunConfig config() const {
    Overrides overrides = of_mesh();
    append(overrides,
           {fmt::format("parallel.pipeline={}", shape().stages), "parallel.pipeline_schedule=" + shape().schedule,
            fmt::format("parallel.rank_order={}", rank_order_names[static_cast<size_t>(ranks().order)])});
    if (shape().chunks > 1) overrides.push_back(fmt::format("parallel.virtual_stages={}", shape().chunks));
    if (choice_[placement] > 0)
      overrides.push_back(fmt::format("parallel.layers_per_stage=[{}]", fmt::join(uneven_layers(), ",")));
    append(overrides, recomputes[choice_[recompute]].overrides);
    return make(overrides, world_size(), ranks().data * micro_batches[choice_[accumulation]]);
  }

  // Returns the same case with one stage.
  RunConfig config_of_one_stage() const {
    return make(of_mesh(), ranks().tensor * ranks().data, ranks().data * micro_batches[choice_[accumulation]]);
  }

  // Returns the model on one rank, for the steps before the comparison.
  RunConfig config_of_start() const { return make(of_model(), 1, 4); }

 private:
  static void append(Overrides& to, const Overrides& more) { to.insert(to.end(), more.begin(), more.end()); }

  // The first or the last chunk has no layers; the chunk beside it has the others' surplus.
  std::vector<int64_t> uneven_layers() const {
    std::vector<int64_t> layers(static_cast<size_t>(shape().stages * shape().chunks), 1);
    const bool first = placements[choice_[placement]] == "first empty";
    (first ? layers.front() : layers.back()) = 0;
    (first ? layers[1] : layers[layers.size() - 2]) += num_layers - std::reduce(layers.begin(), layers.end());
    return layers;
  }

  Overrides of_model() const {
    Overrides overrides = models[choice_[model]].overrides;
    if (choice_[extra] < 3) append(overrides, extras[choice_[extra]].overrides);
    return overrides;
  }
  Overrides of_mesh() const {
    Overrides overrides = of_model();
    append(overrides, ranks().overrides);
    if (choice_[extra] == 3) append(overrides, extras[choice_[extra]].overrides);
    append(overrides, precisions[choice_[precision]].overrides);
    overrides.push_back(fmt::format("parallel.zero={}", choice_[zero]));
    return overrides;
  }

  // Uses the eps of layouts.cpp.
  RunConfig make(Overrides overrides, int64_t ranks, int64_t samples) const {
    const Overrides sizes = {fmt::format("model.num_layers={}", num_layers),
                             "model.num_heads=4",
                             "model.num_kv_heads=2",
                             "model.hidden_size=24",
                             "model.ffn_hidden_size=28",
                             "model.sequence_length=10",
                             "model.vocab_size=61",
                             "memory.loss_chunk_tokens=7",
                             "optimizer.eps=1e-3",
                             "batch.micro=1",
                             fmt::format("batch.global={}", samples)};
    overrides.insert(overrides.begin(), sizes.begin(), sizes.end());
    return small_config(models[choice_[model]].label.starts_with("gpt2") ? Family::gpt2 : Family::llama, overrides,
                        ranks);
  }

  std::vector<size_t> choice_;  // index of the chosen value, by axis
};

std::vector<std::vector<size_t>> possible_choices() {
  const std::vector<size_t> sizes = Case::sizes();
  std::vector<std::vector<size_t>> choices;
  std::vector<size_t> choice(sizes.size(), 0);
  // The number of values of no axis is a multiple of the share, so that each value is in it.
  const size_t share = some_cases() ? 101 : 1;
  for (size_t number = 0;; ++number) {
    if (number % share == 0 && Case(choice).possible()) choices.push_back(choice);
    size_t axis = sizes.size();
    while (axis > 0 && ++choice[axis - 1] == sizes[axis - 1]) choice[--axis] = 0;
    if (axis == 0) return choices;
  }
}

// Returns the first difference in bits; empty if there is none.
std::string different(const Outcome& a, const Outcome& b) {
  if (a.torn + b.torn != "") return "torn: " + a.torn + b.torn;
  for (const auto& [name, values] : a.state) {
    if (std::memcmp(values.data(), b.state.at(name).data(), values.size() * sizeof(float)) != 0) return name;
  }
  if (a.losses != b.losses) return "losses";
  return a.norms == b.norms ? "" : "norms";
}

// Trains the one-stage reference once for all pipelines that share it.
const Outcome& one_stage_of(const Case& c, const GlobalState* start, int steps) {
  static std::map<std::string, Outcome> known;
  const RunConfig config = c.config_of_one_stage();
  const std::string key = fmt::format("{} {} {}", steps, start != nullptr, show_config(config));
  if (!known.contains(key)) {
    known[key] =
        train_on_ranks(config, c.ranks().tensor * c.ranks().data, steps, start, start ? first_compared_sample : 0);
  }
  return known.at(key);
}

const GlobalState& start_of(const Case& c) {
  static std::map<std::string, GlobalState> known;
  const RunConfig config = c.config_of_start();
  const std::string key = show_config(config);
  if (!known.contains(key)) known[key] = train_on_ranks(config, 1, 10).state;
  return known.at(key);
}

void compare(const Case& c) {
  INFO(c.name());
  const GlobalState* const start = c.starts_trained() ? &start_of(c) : nullptr;
  const int steps = c.tied() ? 1 : 2;
  const Outcome& one = one_stage_of(c, start, steps);
  const Outcome many =
      train_on_ranks(c.config(), c.world_size(), steps, start, start != nullptr ? first_compared_sample : 0);
  if (!c.tied()) {
    CHECK(different(one, many) == "");
    return;
  }
  const Difference d = difference(make_spec(c.config().model), one, many);
  INFO("moment " << d.first_moment << " of " << d.moment_of << ", weight " << d.weight << " of " << d.weight_of
                 << ", loss " << d.loss << ", norm " << d.norm << ", torn " << d.torn);
  CHECK(d.small());
  CHECK(d.loss == 0);
}

}  // namespace

TEST_CASE("pipelines of a covering set give the bits of one stage") {
  const std::vector<std::vector<size_t>> choices = possible_choices();
  const std::vector<size_t> chosen = covering(choices);
  CHECK(chosen.size() <= 150);
  fmt::print("{} of {} pipelines\n", chosen.size(), choices.size());
  for (const size_t index : chosen) compare(Case(choices[index]));
}

// Runs all pipelines, models, meshes, ZeRO stages and micro-batches, each with one value of the other axes.
// LAYOUTS_PART=I/N runs every N-th case from number I on.
TEST_CASE("all pipelines give the bits of one stage", "[.full]") {
  size_t part = 0, parts = 1;
  if (const char* text = std::getenv("LAYOUTS_PART"))
    REQUIRE((std::sscanf(text, "%zu/%zu", &part, &parts) == 2 && part < parts));
  std::map<std::vector<size_t>, std::vector<std::vector<size_t>>> groups;
  for (const std::vector<size_t>& choice : possible_choices())
    groups[{choice.begin(), choice.begin() + Case::recompute}].push_back(choice);
  size_t number = 0;
  for (const auto& [mesh, choices] : groups) {
    const size_t i = number++;
    if (i % parts == part) compare(Case(choices[i * 7 % choices.size()]));
  }
  fmt::print("{} pipelines\n", (number + parts - 1 - part) / parts);
}

TEST_CASE("FP8 linears over pipelines give the bits of one stage") {
  const auto train = [](const Overrides& more, int64_t ranks) {
    Overrides overrides = {
        "model.num_layers=6",       "model.num_heads=4",     "model.hidden_size=64", "model.ffn_hidden_size=64",
        "model.sequence_length=16", "batch.global=3",        "batch.micro=1",        "run.device=auto",
        "precision.compute=bf16",   "precision.linears=fp8", "model.dropout=0.1"};
    overrides.insert(overrides.end(), more.begin(), more.end());
    return train_on_ranks(small_config(Family::llama, overrides, ranks), ranks, 2);
  };
  for (const Overrides& mesh : {Overrides{}, {"parallel.tensor=2"}, {"parallel.tensor=2", "parallel.sequence=true"}}) {
    const int64_t ranks = mesh.empty() ? 1 : 2;
    const Outcome one = train(mesh, ranks);
    for (const Pipeline& pipeline : pipelines) {
      if (pipeline.stages != (pipeline.chunks == 1 ? 3 : 2)) continue;
      Overrides overrides = mesh;
      overrides.push_back(fmt::format("parallel.pipeline={}", pipeline.stages));
      overrides.push_back("parallel.pipeline_schedule=" + pipeline.schedule);
      if (pipeline.chunks > 1) overrides.push_back(fmt::format("parallel.virtual_stages={}", pipeline.chunks));
      INFO(pipeline.schedule << " " << pipeline.stages << "x" << pipeline.chunks << " on " << ranks << " tensor ranks");
      CHECK(different(one, train(overrides, ranks * pipeline.stages)) == "");
    }
  }
}

TEST_CASE("a validation through a pipeline finds the loss of one stage on every rank") {
  const auto validate = [](const Case& c, bool staged) {
    const RunConfig config = staged ? c.config() : c.config_of_one_stage();
    const int64_t ranks = staged ? c.world_size() : c.ranks().tensor * c.ranks().data;
    std::vector<std::vector<double>> sums(static_cast<size_t>(ranks));
    on_ranks(config, ranks, nullptr, {}, [&](RankContext& rank) {
      std::vector<double>& own = sums[static_cast<size_t>(rank.groups.rank())];
      RandomBatches training(config, 0, rank.groups.sample_rank(), rank.groups.num_sample_ranks());
      RandomBatches validation(config, 500, rank.groups.sample_rank(), rank.groups.num_sample_ranks());
      own.push_back(rank.step.evaluate(3, validation));
      own.push_back(rank.step.run(1e-3, training).loss);
      own.push_back(rank.step.evaluate(1, validation));
    });
    for (const std::vector<double>& sum : sums) CHECK(sum == sums.front());
    return sums.front();
  };
  for (size_t i = 0; i < pipelines.size(); ++i) {
    for (const size_t mesh : {3, 1}) {
      const Case c({i, 2 * (i % 2), mesh, mesh == 3 ? i % 4 : 0, 2, 0, i % 2, 1, i % 3});
      if (c.world_size() > max_ranks) continue;
      INFO(c.name());
      CHECK(validate(c, true) == validate(c, false));
    }
  }
}

}  // namespace test_pipelines
