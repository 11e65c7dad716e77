// The search for layouts: bounds and estimates compared with whole plans, and results.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <iterator>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.h"
#include "catch.h"
#include "config/load.h"
#include "fit/plan_world.h"
#include "planner/layout_estimate.h"
#include "planner/layouts.h"
#include "planner/search.h"

namespace gptrain::test_search {
namespace {

RunConfig model(int64_t hidden, int64_t layers, int64_t global, const std::string& more = "",
                const std::string& precision = "bf16") {
  return parse_config(
      fmt::format(R"({{"model": {{"num_layers": {}, "hidden_size": {}, "num_heads": {}, "vocab_size": 51200,
                                  "sequence_length": 1024{}}}, "data": {{"train": [{{"path": "data"}}]}},
                       "batch": {{"global": {}}}, "precision": {{"compute": "{}"}}, "optimizer": {{"lr": 1e-4}},
                       "run": {{"steps": 1000, "out": "runs/searched"}}}})",
                  layers, hidden, hidden / 128, more, global, precision),
      {}, "the test's config");
}

Machine a100() { return {find_device("a100-80g"), find_cluster("dgx-a100")}; }
Machine h100_pcie() { return {find_device("h100-pcie"), find_cluster("pcie5")}; }

std::vector<RunLayout> layouts_of(const RunConfig& config, int64_t gpus) {
  std::vector<RunLayout> all;
  for (const LayoutGroup& group : layout_groups(config, gpus, 8))
    for_each_layout(config, group, [&](const RunLayout& layout) { all.push_back(layout); });
  return all;
}

// Returns `count` of them, spread by a walk whose stride is coprime to their number.
std::vector<RunLayout> some_of(const std::vector<RunLayout>& all, size_t count) {
  size_t stride = 7919;
  while (std::gcd(stride, all.size()) > 1) ++stride;
  std::vector<RunLayout> some;
  for (size_t i = 0; i < std::min(count, all.size()); ++i) some.push_back(all[i * stride % all.size()]);
  return some;
}

std::string text_of(const RunLayout& layout) {
  std::string text;
  for (const auto& [key, value] : layout_keys(layout)) text += key + " " + value + ", ";
  return text + fmt::format("data {}", layout.data);
}

struct Case {
  const char* name;
  RunConfig config;
  Machine machine;
  int64_t gpus;
  size_t count;
};

std::vector<Case> cases() {
  return {
      {.name = "2B on 16 A100", .config = model(2560, 24, 64), .machine = a100(), .gpus = 16, .count = 40},
      {.name = "2B with windows in some layers",
       .config = model(2560, 24, 64, R"(, "attention_pattern": ["dense", "band:64", "band:64"])"),
       .machine = a100(),
       .gpus = 16,
       .count = 20},
      {.name = "2B with a tied head off on 12 PCIe",
       .config = model(2560, 26, 48, R"(, "tied_head": false)"),
       .machine = h100_pcie(),
       .gpus = 12,
       .count = 50},
      {.name = "7B on 64 A100",
       .config = model(
           4096, 32, 256,
           R"(, "tied_head": false, "positions": "rope", "norm": "rmsnorm", "activation": "swiglu", "bias": false)"),
       .machine = a100(),
       .gpus = 64,
       .count = 50},
      {.name = "350M on one", .config = model(1024, 24, 32), .machine = a100(), .gpus = 1, .count = 30},
      {.name = "2B, bf16 gradients",
       .config = model(2560, 24, 64, "", R"(bf16-pure", "gradients": "bf16)"),
       .machine = a100(),
       .gpus = 16,
       .count = 30}};
}

TEST_CASE("bounds of memory and time stay below whole plans, and estimates within their errors") {
  double sum = 0;
  int count = 0, near = 0, near_memory = 0;
  for (const Case& test : cases()) {
    LayoutEstimator estimator(test.config, test.machine,
                              planned_target(test.machine, test.config.run.threads, test.gpus));
    for (const RunLayout& layout : some_of(layouts_of(test.config, test.gpus), test.count)) {
      INFO(test.name << ": " << text_of(layout));
      const LayoutResult exact = predict_layout(checked_layout(test.config, layout), test.machine, layout, 0);
      const LeastBytes least = estimator.least_bytes(layout, INT64_MAX);
      CHECK(least.bytes <= exact.peak_bytes);
      near_memory += static_cast<double>(least.bytes) > 0.7 * static_cast<double>(exact.peak_bytes) ? 1 : 0;
      const LayoutResult estimate = estimator.estimate(layout);
      CHECK(estimator.least_seconds(layout) <= estimate.step_seconds * (1 + 1e-9));
      const double error = estimate.step_seconds / exact.step_seconds - 1;
      CHECK(std::abs(error) < largest_estimate_error);
      sum += std::abs(error);
      near += std::abs(error) < estimate_error ? 1 : 0;
      ++count;
    }
  }
  INFO(count << ", near " << near << ", memory near " << near_memory << ", mean error " << sum / count);
  CHECK(count == 220);
  CHECK(sum / count < 0.02);
  CHECK(near >= 0.98 * count);
  CHECK(near_memory >= 0.93 * count);
}

TEST_CASE("estimates hold for layers whose FFNs differ") {
  const RunConfig usual = model(2560, 24, 64);
  RunConfig config = usual;
  config.model.ffn_pattern = {{10240}, {2560}, {5120}};
  LayoutEstimator estimator(config, a100(), planned_target(a100(), config.run.threads, 16));
  for (const RunLayout& layout : some_of(layouts_of(config, 16), 16)) {
    if (layout.is_balanced) continue;  // the usual model's layers are balanced otherwise
    INFO(text_of(layout));
    RunConfig checked = checked_layout(usual, layout);
    checked.model.ffn_pattern = config.model.ffn_pattern;
    const LayoutResult exact = predict_layout(checked, a100(), layout, 0);
    CHECK(estimator.least_bytes(layout, INT64_MAX).bytes <= exact.peak_bytes);
    const LayoutResult estimate = estimator.estimate(layout);
    CHECK(estimator.least_seconds(layout) <= estimate.step_seconds * (1 + 1e-9));
    CHECK(std::abs(estimate.step_seconds / exact.step_seconds - 1) < largest_estimate_error);
  }
}

TEST_CASE("searches spread experts over ranks, with bounds and estimates as good") {
  const RunConfig config =
      model(1024, 8, 32, R"(, "bias": false, "moe": {"experts": 8, "top_k": 2, "first": 1, "ffn_hidden_size": 2048})");
  const std::vector<RunLayout> all = layouts_of(config, 16);
  std::vector<RunLayout> spread;
  std::copy_if(all.begin(), all.end(), std::back_inserter(spread), [](const RunLayout& l) { return l.expert > 1; });
  CHECK(std::any_of(spread.begin(), spread.end(), [](const RunLayout& l) { return l.expert_tensor > 1; }));
  CHECK(std::any_of(spread.begin(), spread.end(), [](const RunLayout& l) { return l.expert > l.data; }));
  LayoutEstimator estimator(config, a100(), planned_target(a100(), config.run.threads, 16));
  double sum = 0;
  int near_memory = 0;
  const std::vector<RunLayout> some = some_of(spread, 24);
  for (const RunLayout& layout : some) {
    INFO(text_of(layout));
    const LayoutResult exact = predict_layout(checked_layout(config, layout), a100(), layout, 0);
    const LeastBytes least = estimator.least_bytes(layout, INT64_MAX);
    CHECK(least.bytes <= exact.peak_bytes);
    near_memory += least.bytes > exact.peak_bytes / 2 ? 1 : 0;
    const LayoutResult estimate = estimator.estimate(layout);
    CHECK(estimator.least_seconds(layout) <= estimate.step_seconds * (1 + 1e-9));
    const double error = std::abs(estimate.step_seconds / exact.step_seconds - 1);
    CHECK(error < largest_estimate_error);
    sum += error / static_cast<double>(some.size());
  }
  INFO(sum << ", memory near " << near_memory);
  CHECK(sum < 0.05);
  CHECK(near_memory >= 22);
}

TEST_CASE("a search spreads experts that do not fit on each rank") {
  const RunConfig config =
      model(2048, 16, 16, R"(, "bias": false, "moe": {"experts": 16, "top_k": 2, "ffn_hidden_size": 8192})");
  SearchOptions options{.gpus = 16};
  const LayoutSearch found = search_layouts(config, a100(), options);
  REQUIRE(!found.best.empty());
  CHECK(found.best.front().layout.expert > 1);
  options.held = {"parallel.expert=1"};
  const LayoutSearch whole = search_layouts(config, a100(), options);
  CHECK((whole.best.empty() || whole.best.front().step_seconds > found.best.front().step_seconds));
}

TEST_CASE("searches share long sequences over ranks, with bounds and estimates as good") {
  const auto shares = [](const RunConfig& config) {
    const std::vector<LayoutGroup> groups = layout_groups(config, 16, 8);
    return std::any_of(groups.begin(), groups.end(), [](const LayoutGroup& group) { return group.context > 1; });
  };
  RunConfig config = model(2560, 24, 16);
  CHECK(!shares(config));
  config.parallel.context = 2;
  CHECK(shares(config));
  config.parallel.context = 1;
  config.model.sequence_length = 16384;
  CHECK(shares(config));
  // Where heads divide, rings are tried between nodes only.
  RunConfig divisible = config;
  divisible.model.num_heads = divisible.model.num_kv_heads = 16;
  const auto tries = [&](ContextMethod method, bool between_nodes) {
    const std::vector<LayoutGroup> groups = layout_groups(divisible, 16, 8);
    return std::any_of(groups.begin(), groups.end(), [&](const LayoutGroup& group) {
      return group.context_method == method && (group.tensor * group.context > 8) == between_nodes;
    });
  };
  CHECK((tries(ContextMethod::heads, false) && tries(ContextMethod::heads, true)));
  CHECK((!tries(ContextMethod::ring, false) && tries(ContextMethod::ring, true)));
  const Machine machine = a100();
  LayoutEstimator estimator(config, machine, planned_target(machine, config.run.threads, 16));
  std::vector<RunLayout> all = layouts_of(config, 16);
  std::erase_if(all, [](const RunLayout& layout) { return layout.context == 1; });
  for (const RunLayout& layout : some_of(all, 12)) {
    INFO(text_of(layout));
    const LayoutResult exact = predict_layout(checked_layout(config, layout), machine, layout, 0);
    CHECK(estimator.least_bytes(layout, INT64_MAX).bytes <= exact.peak_bytes);
    const LayoutResult estimate = estimator.estimate(layout);
    CHECK(std::abs(estimate.step_seconds / exact.step_seconds - 1) < largest_estimate_error);
    constexpr auto lane = static_cast<size_t>(LaneKind::context);
    CHECK(exact.exposed_seconds[lane] > 0);
    CHECK(std::abs(estimate.exposed_seconds[lane] / exact.exposed_seconds[lane] - 1) < largest_estimate_error);
  }
}

TEST_CASE("bounds and estimates of what is offloaded are as good") {
  const Case test{.name = "2B on 16 A100", .config = model(2560, 24, 64), .machine = a100(), .gpus = 16, .count = 120};
  LayoutEstimator estimator(test.config, test.machine,
                            planned_target(test.machine, test.config.run.threads, test.gpus));
  double sum = 0;
  int count = 0, near = 0, waiting = 0;
  for (RunLayout layout : some_of(layouts_of(test.config, test.gpus), test.count)) {
    if (layout.recompute == RecomputeKind::every_nth) continue;
    layout.offload = ++count % 2 == 0 ? offload::all : offload::hidden;
    INFO(text_of(layout));
    const LayoutResult exact = predict_layout(checked_layout(test.config, layout), test.machine, layout, 0);
    CHECK(estimator.least_bytes(layout, INT64_MAX).bytes <= exact.peak_bytes);
    const LayoutResult estimate = estimator.estimate(layout);
    CHECK(estimator.least_seconds(layout) <= estimate.step_seconds * (1 + 1e-9));
    const double error = estimate.step_seconds / exact.step_seconds - 1;
    CHECK(std::abs(error) < 1.5 * largest_estimate_error);
    sum += std::abs(error);
    near += std::abs(error) < estimate_error ? 1 : 0;
    waiting += exact.exposed_seconds[copy_lane] > 0.1 * exact.step_seconds ? 1 : 0;
  }
  INFO(count << ", near " << near << ", " << waiting << " wait for copies, mean error " << sum / count);
  CHECK(near >= 0.95 * count);
  CHECK(count > 50);
  CHECK(waiting > 10);
  CHECK(sum / count < 0.06);
}

// Offloads as much as a device's memory requires.
TEST_CASE("bounds and estimates of what is made to fit by copies and recomputation are as good") {
  const RunConfig config = model(2560, 24, 64);
  double sum = 0;
  int count = 0, near = 0;
  for (const double memory_bytes : {5e9, 8e9, 12e9, 20e9}) {
    Machine machine = a100();
    machine.device.memory_bytes = memory_bytes + static_cast<double>(outside_plans_bytes);
    const int64_t device_bytes = planned_target(machine, config.run.threads, 16).bytes_of_rank();
    LayoutEstimator estimator(config, machine, planned_target(machine, config.run.threads, 16));
    for (RunLayout layout : some_of(layouts_of(config, 16), 250)) {
      if (layout.recompute != RecomputeKind::block) continue;
      const auto fits = [&](RecomputeKind recompute, OffloadChoice offloaded) {
        layout.recompute = recompute;
        layout.offload = offloaded;
        return estimator.least_bytes(layout, INT64_MAX).bytes <= device_bytes;
      };
      if (fits(RecomputeKind::none, offload::none) || !fits(RecomputeKind::optimal, offload::optimal)) continue;
      INFO(memory_bytes << ": " << text_of(layout));
      const LayoutResult exact = predict_layout(checked_layout(config, layout), machine, layout, 0);
      CHECK(estimator.least_bytes(layout, INT64_MAX).bytes <= exact.peak_bytes);
      const LayoutResult estimate = estimator.estimate(layout);
      CHECK(estimator.least_seconds(layout) <= estimate.step_seconds * (1 + 1e-9));
      if (exact.peak_bytes > device_bytes) continue;  // the bound is too low for it: its plan is the smallest
      const double error = estimate.step_seconds / exact.step_seconds - 1;
      CHECK(std::abs(error) < largest_estimate_error);
      sum += std::abs(error);
      near += std::abs(error) < estimate_error ? 1 : 0;
      ++count;
    }
  }
  INFO(count << ", near " << near << ", mean error " << sum / count);
  CHECK(count > 50);
  CHECK(near >= 0.9 * count);
  CHECK(sum / count < 0.06);
}

TEST_CASE("bounds hold for layouts whose activations have a budget") {
  RunConfig config = model(2560, 24, 64);
  config.memory.recompute = RecomputeKind::optimal;
  config.memory.activation_budget = 1'500'000'000;
  LayoutEstimator estimator(config, a100(), planned_target(a100(), config.run.threads, 16));
  int count = 0, near = 0;
  for (RunLayout layout : some_of(layouts_of(config, 16), 150)) {
    if (layout.recompute != RecomputeKind::block) continue;
    layout.recompute = RecomputeKind::optimal;
    INFO(text_of(layout));
    try {
      const LayoutResult exact = predict_layout(checked_layout(config, layout), a100(), layout, 0);
      CHECK(estimator.record_bytes(layout) <= config.memory.activation_budget);
      CHECK(estimator.least_bytes(layout, INT64_MAX).bytes <= exact.peak_bytes);
      near += std::abs(estimator.estimate(layout).step_seconds / exact.step_seconds - 1) < estimate_error ? 1 : 0;
      ++count;
    } catch (const Error&) {  // below the needs of every plan
    }
  }
  INFO(count << ", near " << near);
  CHECK(count > 10);
  CHECK(near > 0.7 * count);
}

TEST_CASE("a search offloads what hides behind compute, where that is enough to fit") {
  const RunConfig config = model(2560, 32, 8, R"(, "activation": "gelu")");
  Machine machine = a100();
  machine.device.memory_bytes = 53.2e9;  // 18 bytes per parameter are 47.8e9
  SearchOptions options{.gpus = 1, .top = 3, .held = {"batch.micro=2"}};
  RunConfig own = config;
  own.batch.micro = 2;
  const LayoutSearch found = search_layouts(own, machine, options);
  REQUIRE(!found.best.empty());
  const LayoutResult& best = found.best.front();
  INFO(text_of(best.layout));
  CHECK(best.layout.offload == offload::hidden);
  CHECK(best.layout.recompute == RecomputeKind::none);
  CHECK(best.peak_bytes <= found.device_bytes);
  RunLayout other = best.layout;
  other.offload = offload::none;
  const LayoutResult without_recompute = predict_layout(checked_layout(config, other), machine, other, 0);
  CHECK(without_recompute.peak_bytes > found.device_bytes);
  CHECK(best.step_seconds < 1.01 * without_recompute.step_seconds);
}

TEST_CASE("estimates have both passes of an optimizer that looks at whole tensors first") {
  // Few tokens, so that updates are a large part of a step.
  for (const char* const type : {"lamb", "adafactor", "adamw"}) {
    Json text = Json::parse(show_config(model(2560, 12, 8)));
    text["optimizer"] = {{"type", type}, {"lr", 1e-4}};
    const RunConfig config =
        parse_config(text.dump(), std::vector<std::string>{"model.sequence_length=64"}, "the test's config");
    LayoutEstimator estimator(config, a100(), planned_target(a100(), config.run.threads, 4));
    double sum = 0;
    int count = 0;
    for (const RunLayout& layout : some_of(layouts_of(config, 4), 40)) {
      const LayoutResult exact = predict_layout(checked_layout(config, layout), a100(), layout, 0);
      sum += estimator.estimate(layout).step_seconds / exact.step_seconds - 1;
      ++count;
    }
    INFO(type << ": mean error " << sum / count);
    CHECK(count == 40);
    CHECK(std::abs(sum / count) < 0.07);
  }
}

TEST_CASE("FFNs run again in layouts that are tried only if attention takes longer or the config asks for it") {
  const auto tries = [](const RunConfig& config) {
    const std::vector<RunLayout> all = layouts_of(config, 2);
    return std::any_of(all.begin(), all.end(),
                       [](const RunLayout& layout) { return layout.recompute == RecomputeKind::ffn; });
  };
  RunConfig config = model(1024, 4, 2);
  CHECK(!tries(config));
  config.memory.recompute = RecomputeKind::ffn;
  CHECK(tries(config));
  config.memory.recompute = RecomputeKind::none;
  // Half as fast as products, attention over T tokens, T / 2 of which a token sees, takes the time of 2 T h
  // multiply-adds a token, and the first product of the FFN 4 h^2.
  config.model.sequence_length = 2048;
  CHECK(!tries(config));
  config.model.sequence_length = 2049;
  CHECK(tries(config));
  config.model.attention_pattern = {{.kind = AttentionKind::band, .width = 64}};
  CHECK(!tries(config));
}

TEST_CASE("the time and memory of running FFNs again are estimated as those of other recomputation") {
  RunConfig config = model(1024, 8, 2);
  config.model.sequence_length = 65536;
  const Machine machine = a100();
  LayoutEstimator estimator(config, machine, planned_target(machine, config.run.threads, 1));
  RunLayout layout = layout_of(config, 1);
  std::map<RecomputeKind, LayoutResult> exact;
  for (const RecomputeKind kind : {RecomputeKind::selective, RecomputeKind::ffn, RecomputeKind::block}) {
    layout.recompute = kind;
    const LayoutResult& whole = exact[kind] = predict_layout(checked_layout(config, layout), machine, layout, 0);
    INFO(text_of(layout));
    CHECK(estimator.least_bytes(layout, INT64_MAX).bytes <= whole.peak_bytes);
    CHECK(std::abs(estimator.estimate(layout).step_seconds / whole.step_seconds - 1) < largest_estimate_error);
  }
  const LayoutResult& ffn = exact[RecomputeKind::ffn];
  CHECK(ffn.step_seconds < 0.95 * exact[RecomputeKind::selective].step_seconds);
  CHECK(ffn.peak_bytes < exact[RecomputeKind::selective].peak_bytes);
  CHECK(ffn.peak_bytes > exact[RecomputeKind::block].peak_bytes);
}

TEST_CASE("a search finds what is best of all layouts by whole plans") {
  const RunConfig config = model(1024, 8, 8);
  const Machine machine = a100();
  const LayoutSearch found = search_layouts(config, machine, {.gpus = 2, .top = 10});
  REQUIRE(!found.best.empty());
  double least = INFINITY;
  for (const RunLayout& layout : layouts_of(config, 2))
    least = std::min(least, predict_layout(checked_layout(config, layout), machine, layout, 0).step_seconds);
  const LayoutResult& best = found.best.front();
  CHECK(best.is_exact);
  INFO(text_of(best.layout));
  CHECK(best.step_seconds <= least * 1.01);
}

TEST_CASE("the smallest peaks of a search are those of all layouts by whole plans, however many are asked for") {
  const RunConfig config = model(512, 4, 4);
  Machine machine = a100();
  machine.cluster.gpus_per_node = 2;  // so that both orders of ranks are tried
  const Target target = planned_target(machine, config.run.threads, 4);
  std::vector<int64_t> peaks;
  for (const LayoutGroup& group : layout_groups(config, 4, 2)) {
    for_each_layout(config, group, [&](const RunLayout& layout) {
      peaks.push_back(plan_world({checked_layout(config, layout), target, 4}).largest.arenas.total());
    });
  }
  std::sort(peaks.begin(), peaks.end());
  INFO(peaks.size() << " layouts");
  std::vector<RunLayout> winners;
  for (const int64_t top : {1, 10, 150}) {
    const LayoutSearch found = search_layouts(config, machine, {.gpus = 4, .objective = Objective::memory, .top = top});
    REQUIRE(std::ssize(found.best) == top);
    for (size_t i = 0; i < found.best.size(); ++i) {
      CHECK(found.best[i].is_peak_exact);
      CHECK(found.best[i].peak_bytes == peaks[i]);
    }
    CHECK(found.num_within_error == 0);
    CHECK(found.best.front().is_exact);
    winners.push_back(found.best.front().layout);
    for (const LostClass& lost : found.lost)
      if (lost.fits) CHECK(lost.best.peak_bytes >= peaks.front());
  }
  CHECK(winners[1] == winners[0]);
  CHECK(winners[2] == winners[0]);
}

TEST_CASE("how many layouts do not fit by their bound is a matter of the config") {
  const RunConfig config = model(6144, 36, 64);
  const LayoutSearch one = search_layouts(config, a100(), {.gpus = 4, .top = 1});
  const LayoutSearch many = search_layouts(config, a100(), {.gpus = 4, .objective = Objective::memory, .top = 60});
  CHECK(one.num_too_large > 0);
  CHECK(one.num_too_large == many.num_too_large);
}

TEST_CASE("keys that are held keep the config's value") {
  RunConfig config = model(1024, 8, 16);
  config.parallel.tensor = 2;
  config.batch.micro = 4;
  config.memory.recompute = RecomputeKind::selective;
  SearchOptions options{.gpus = 4, .held = {"parallel.tensor=2", "batch.micro=4", "memory.recompute=selective"}};
  const LayoutSearch found = search_layouts(config, a100(), options);
  REQUIRE(!found.best.empty());
  CHECK(found.held == options.held);
  for (const LayoutResult& result : found.best) {
    CHECK(result.layout.tensor == 2);
    CHECK(result.layout.micro == 4);
    CHECK(result.layout.recompute == RecomputeKind::selective);
  }
  for (const LostClass& lost : found.lost)
    CHECK((lost.key != "parallel.tensor" && lost.key != "batch.micro" && lost.key != "memory.recompute"));
  config.batch.micro = 3;
  std::string refusal;
  try {
    search_layouts(config, a100(), options);
  } catch (const Error& error) {
    refusal = error.what();
  }
  CHECK(refusal.find("with parallel.tensor=2, batch.micro=4, memory.recompute=selective divides batch.global") !=
        std::string::npos);
}

TEST_CASE("what takes too much memory is cut, and the least that is missing is named") {
  const RunConfig config = model(8192, 48, 8);  // 39B parameters
  const LayoutSearch found = search_layouts(config, a100(), {.gpus = 2});
  CHECK(found.best.empty());
  CHECK(found.num_too_large >= found.num_layouts);
  CHECK(found.least_missing_bytes > 0);
  const LayoutResult least =
      predict_layout(checked_layout(config, found.least_missing), a100(), found.least_missing, 0);
  CHECK(least.peak_bytes == found.device_bytes + found.least_missing_bytes);
  CHECK(found.least_missing_is_exact);
  RunLayout without_recompute = found.least_missing;
  without_recompute.recompute = RecomputeKind::none;
  CHECK(predict_layout(checked_layout(config, without_recompute), a100(), without_recompute, 0).peak_bytes >=
        least.peak_bytes);
}

TEST_CASE("lost classes have another value than the best layout, and are slower or do not fit") {
  const LayoutSearch found = search_layouts(model(6144, 36, 64), a100(), {.gpus = 4, .top = 3});
  REQUIRE(!found.best.empty());
  const auto best = layout_keys(found.best.front().layout);
  REQUIRE(!found.lost.empty());
  bool too_large = false;
  for (const LostClass& lost : found.lost) {
    const auto own = std::find_if(best.begin(), best.end(), [&](const auto& pair) { return pair.first == lost.key; });
    REQUIRE(own != best.end());
    CHECK(own->second != lost.value);
    if (lost.fits) {
      CHECK(lost.best.step_seconds > found.best.front().step_seconds * (1 - estimate_error));
    } else {
      CHECK(lost.missing_bytes > 0);
      too_large = true;
    }
  }
  CHECK(too_large);
}

TEST_CASE("the cheapest layout takes fewer devices where they cost less than they save") {
  const RunConfig config = model(1024, 8, 16);
  const LayoutSearch all = search_layouts(config, h100_pcie(), {.gpus = 16, .price = 2, .top = 3});
  const LayoutSearch cheap =
      search_layouts(config, h100_pcie(), {.gpus = 16, .objective = Objective::cost, .price = 2, .top = 3});
  REQUIRE(!cheap.best.empty());
  CHECK(cheap.best.front().layout.world_size() < 16);
  CHECK(cheap.best.front().cost < all.best.front().cost);
  CHECK(all.best.front().cost == Approx(2 * all.best.front().gpu_hours / all.best.front().goodput));
}

TEST_CASE("a search has as much copied and run again as it takes to fit, where keeping all does not fit") {
  const RunConfig config = model(2560, 32, 8, R"(, "activation": "gelu")");
  Machine machine = a100();
  machine.device.memory_bytes = 49.5e9;  // 18 bytes per parameter are 47.8e9
  const LayoutSearch found = search_layouts(config, machine, {.gpus = 1, .top = 3});
  REQUIRE(!found.best.empty());
  const LayoutResult& best = found.best.front();
  INFO(text_of(best.layout));
  CHECK(best.layout.recompute == RecomputeKind::optimal);
  CHECK(best.peak_bytes <= found.device_bytes);
  CHECK(best.layout.offload == offload::optimal);
  RunLayout other = best.layout;
  other.offload = offload::none;
  CHECK(best.step_seconds < predict_layout(checked_layout(config, other), machine, other, 0).step_seconds);
  other.recompute = RecomputeKind::none;
  CHECK(predict_layout(checked_layout(config, other), machine, other, 0).peak_bytes > found.device_bytes);
  for (const auto& [kind, interval] :
       {std::pair(RecomputeKind::selective, 0), std::pair(RecomputeKind::block, 0),
        std::pair(RecomputeKind::every_nth, 2), std::pair(RecomputeKind::every_nth, 4)}) {
    other.recompute = kind;
    other.recompute_interval = interval;
    const LayoutResult result = predict_layout(checked_layout(config, other), machine, other, 0);
    if (result.peak_bytes <= found.device_bytes) CHECK(best.step_seconds <= result.step_seconds);
  }
}

TEST_CASE("layouts that the config's rules allow are read back as they were") {
  const RunConfig config = model(2560, 24, 64);
  for (const RunLayout& layout : some_of(layouts_of(config, 16), 200)) {
    const RunConfig checked = checked_layout(config, layout);
    RunLayout read = layout_of(checked, 16);
    INFO(text_of(layout));
    CHECK(read == layout);
    CHECK(checked.batch.global == config.batch.global);
  }
}

}  // namespace
}  // namespace gptrain::test_search
