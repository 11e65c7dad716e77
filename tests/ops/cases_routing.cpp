// Cases of a router's choice by biases, in groups of experts and with a capacity, of the vectors that follow loads, and
// of the ops that jitter a router's input and gate shared experts.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <numeric>

#include "expert_rows.h"
#include "harness.h"
#include "reference.h"

namespace gptrain::ops_test::cases_routing {
namespace {

struct Choice {
  RouterRule rule;
  int64_t rows, experts, k;
  bool with_bias = false, with_excess = false;
};

constexpr RouterScore softmax = RouterScore::softmax, sigmoid = RouterScore::sigmoid;
constexpr DropRule by_weight = DropRule::probability, by_position = DropRule::position;

std::vector<Choice> choices() {
  return {
      {.rule = {.balanced_rows = 7}, .rows = 21, .experts = 9, .k = 2, .with_bias = true},
      {.rule = {.score = sigmoid, .balanced_rows = 5, .groups = 3, .group_top_k = 1},
       .rows = 10,
       .experts = 15,
       .k = 3,
       .with_bias = true,
       .with_excess = true},
      {.rule = {.renormalise = false, .balanced_rows = 13, .groups = 4, .group_top_k = 2},
       .rows = 13,
       .experts = 12,
       .k = 4},
      {.rule = {.balanced_rows = 6, .capacity = 3, .capacity_rows = 6}, .rows = 18, .experts = 5, .k = 2},
      {.rule = {.score = sigmoid, .scale = 1.5, .balanced_rows = 17, .capacity = 1, .capacity_rows = 17},
       .rows = 17,
       .experts = 4,
       .k = 3,
       .with_bias = true},
      {.rule = {.balanced_rows = 4, .capacity = 5, .capacity_rows = 20, .drop = by_position},
       .rows = 20,
       .experts = 3,
       .k = 2,
       .with_bias = false,
       .with_excess = true},
  };
}

std::string name_of(const Choice& choice) {
  const RouterRule& rule = choice.rule;
  return fmt::format("{} N={} E={} k={} groups={}/{} capacity={}/{} {}{}{}", router_score_names[rule.score],
                     choice.rows, choice.experts, choice.k, rule.group_top_k, rule.groups, rule.capacity,
                     rule.capacity_rows, drop_rule_names[rule.drop], choice.with_bias ? " bias" : "",
                     choice.with_excess ? " excess" : "");
}

// A router in double: first the choice, then the copies that experts keep.
struct Reference {
  const Choice& choice;
  std::vector<double> logits, bias, excess;
  std::vector<int64_t> experts;      // [N, k]
  std::vector<bool> kept;            // [N, k]
  std::vector<int64_t> slots, rows;  // [N, k], -1: dropped; by slot

  Reference(const Choice& of, Trial& trial) : choice(of), bias(size(of)), excess(size(of)) {
    for (int64_t i = 0; i < of.rows * of.experts; ++i) logits.push_back(2 * trial.random.normal());
    for (double& value : bias) value = of.with_bias ? 0.3 * trial.random.normal() : 0;
    for (double& value : excess) value = of.with_excess ? trial.random.normal() : 0;
    for (std::vector<double>* values : {&logits, &bias, &excess}) *values = rounded(std::move(*values), DType::f32);
    for (int64_t row = 0; row < of.rows; ++row) choose(row);
    keep();
    place();
  }

  double logit(int64_t row, int64_t e) const { return logits[static_cast<size_t>(row * choice.experts + e)]; }
  double sum(int64_t row) const {
    double total = 0;
    for (int64_t e = 0; e < choice.experts; ++e)
      total += choice.rule.score == softmax ? std::exp(logit(row, e)) : score(row, e);
    return total;
  }
  double score(int64_t row, int64_t e) const {
    return choice.rule.score == softmax ? std::exp(logit(row, e)) / sum(row) : 1 / (1 + std::exp(-logit(row, e)));
  }
  double share(int64_t row, int64_t e) const {
    return choice.rule.score == softmax ? score(row, e) : score(row, e) / sum(row);
  }
  double weight(int64_t copy) const {
    const int64_t row = copy / choice.k;
    double all = choice.rule.score == softmax ? 0 : 1e-20;
    for (int64_t j = 0; j < choice.k; ++j) all += score(row, expert(row * choice.k + j));
    return choice.rule.scale * score(row, expert(copy)) / (choice.rule.renormalise ? all : 1);
  }
  int64_t expert(int64_t copy) const { return experts[static_cast<size_t>(copy)]; }
  // The balance loss of a run of rows.
  double balance(int64_t run) const {
    const int64_t length = choice.rule.balanced_rows;
    double total = 0;
    for (int64_t e = 0; e < choice.experts; ++e) {
      double chosen = 0, shares = 0;
      for (int64_t row = run * length; row < (run + 1) * length; ++row) {
        shares += share(row, e) / static_cast<double>(length);
        for (int64_t j = 0; j < choice.k; ++j) chosen += expert(row * choice.k + j) == e ? 1 : 0;
      }
      const double load =
          static_cast<double>(choice.experts) * chosen / static_cast<double>(length * choice.k);  // E f_e
      total += shares * (choice.with_excess ? 1 + excess[static_cast<size_t>(e)] : load);
    }
    return total;
  }

 private:
  static size_t size(const Choice& of) { return static_cast<size_t>(of.experts); }
  void choose(int64_t row) {
    const int64_t groups = choice.rule.groups, size = choice.experts / groups;
    const auto key = [&](int64_t e) { return score(row, e) + bias[static_cast<size_t>(e)]; };
    const auto sorted = [](std::vector<int64_t> all, const auto& value) {
      std::stable_sort(all.begin(), all.end(), [&](int64_t a, int64_t b) { return value(a) > value(b); });
      return all;
    };
    const auto experts_of = [&](int64_t group) {
      std::vector<int64_t> all(static_cast<size_t>(size));
      std::iota(all.begin(), all.end(), group * size);
      return sorted(all, key);
    };
    std::vector<int64_t> order(static_cast<size_t>(groups)), allowed;
    std::iota(order.begin(), order.end(), 0);
    order = sorted(order, [&](int64_t group) {
      double total = 0;
      for (int64_t j = 0; j < choice.k / choice.rule.group_top_k; ++j)
        total += key(experts_of(group)[static_cast<size_t>(j)]);
      return total;
    });
    for (int64_t g = 0; g < choice.rule.group_top_k; ++g)
      for (const int64_t e : experts_of(order[static_cast<size_t>(g)])) allowed.push_back(e);
    std::sort(allowed.begin(), allowed.end());
    allowed = sorted(allowed, key);
    experts.insert(experts.end(), allowed.begin(), allowed.begin() + choice.k);
  }
  void keep() {
    kept.assign(experts.size(), true);
    const RouterRule& rule = choice.rule;
    for (int64_t first = 0; rule.capacity > 0 && first < choice.rows; first += rule.capacity_rows) {
      for (int64_t e = 0; e < choice.experts; ++e) {
        std::vector<int64_t> copies;
        for (int64_t copy = first * choice.k; copy < (first + rule.capacity_rows) * choice.k; ++copy)
          if (expert(copy) == e) copies.push_back(copy);
        if (rule.drop == by_weight)
          std::stable_sort(copies.begin(), copies.end(), [&](int64_t a, int64_t b) { return weight(a) > weight(b); });
        for (int64_t i = rule.capacity; i < std::ssize(copies); ++i)
          kept[static_cast<size_t>(copies[static_cast<size_t>(i)])] = false;
      }
    }
  }
  void place() {
    slots.assign(experts.size(), -1);
    for (int64_t e = 0; e < choice.experts; ++e) {
      for (size_t i = 0; i < experts.size(); ++i) {
        if (experts[i] != e || !kept[i]) continue;
        slots[i] = std::ssize(rows);
        rows.push_back(static_cast<int64_t>(i) / choice.k);
      }
    }
  }
};

std::vector<double> numbers(const std::vector<int64_t>& integers) { return {integers.begin(), integers.end()}; }

void check_choice(Trial& trial, const Choice& choice) {
  const Reference reference(choice, trial);
  const int64_t n = choice.rows, e = choice.experts, k = choice.k, used = std::ssize(reference.rows);
  Operand& experts = trial.output(DType::i32, n, k);
  Operand& slots = trial.output(DType::i32, n, k, 1);
  Operand& rows = trial.output(DType::i32, 1, n * k);
  Operand& weights = trial.output(DType::f32, 1, n * k);
  Operand& offsets = trial.output(DType::i32, 1, e + 1);
  Operand& statistics = trial.in_out(DType::f64, 1, num_routing_sums(e));
  const std::vector<double> before = statistics.values();
  const auto vector = [&](bool given, const std::vector<double>& values) {
    return given ? trial.input(DType::f32, 1, e, values).matrix() : Matrix{};
  };
  trial.run(RouteTokens{.rule = choice.rule,
                        .logits = trial.input(DType::f32, n, e, reference.logits, 2).matrix(),
                        .experts = experts.matrix(),
                        .slots = slots.matrix(),
                        .rows = rows.matrix(),
                        .weights = weights.matrix(),
                        .offsets = offsets.matrix(),
                        .bias = vector(choice.with_bias, reference.bias),
                        .excess = vector(choice.with_excess, reference.excess),
                        .statistics = statistics.matrix()});
  trial.expect_equal("experts", experts, numbers(reference.experts));
  trial.expect_equal("slots", slots, numbers(reference.slots));
  trial.expect_true(offsets.at(0, e) == static_cast<double>(used), "offsets end after the copies that are kept");
  std::vector<double> sums(static_cast<size_t>(num_routing_sums(e)));
  for (int64_t copy = 0; copy < n * k; ++copy) {
    sums[static_cast<size_t>(reference.expert(copy))] += 1;
    const int64_t slot = reference.slots[static_cast<size_t>(copy)];
    if (slot < 0) continue;
    trial.expect_true(rows.at(0, slot) == static_cast<double>(copy / k), "rows");
    trial.expect_true(std::abs(weights.at(0, slot) - reference.weight(copy)) <= 3e-6, "weights");
  }
  for (int64_t run = 0; run < n / choice.rule.balanced_rows; ++run)
    sums[static_cast<size_t>(e)] += reference.balance(run);
  for (int64_t i = 0; i <= e; ++i) {
    const double added = statistics.at(0, i) - before[static_cast<size_t>(i)];
    trial.expect_true(std::abs(added - sums[static_cast<size_t>(i)]) <= 1e-5 * static_cast<double>(n), "statistics");
  }
  trial.expect_true(std::abs(statistics.at(0, e + 3) - before.back() - static_cast<double>(n * k - used)) < 1e-9,
                    "dropped copies are counted");
}

// Compares with the numeric gradient, in double, of all losses for the copies that are kept.
void check_gradient(Trial& trial, const Choice& choice) {
  Reference reference(choice, trial);
  const int64_t n = choice.rows, e = choice.experts, k = choice.k;
  StepState state;
  state.loss_scale.value = 2;
  constexpr double balance_factor = 0.6;
  const Operand& d_weights = trial.input(DType::f32, 1, n * k);
  Operand& d_logits = trial.output(DType::f32, n, e, 1);
  trial.run(RouteTokensBackward{
      .rule = choice.rule,
      .balance_factor = balance_factor,
      .z_factor = 0,
      .state = Trial::pointer<const StepState>(trial.in_out_value(state)),
      .logits = trial.input(DType::f32, n, e, reference.logits).matrix(),
      .experts = trial.input(DType::i32, n, k, numbers(reference.experts)).matrix(),
      .slots = trial.input(DType::i32, n, k, numbers(reference.slots)).matrix(),
      .excess = choice.with_excess ? trial.input(DType::f32, 1, e, reference.excess).matrix() : Matrix{},
      .d_weights = d_weights.matrix(),
      .d_logits = d_logits.matrix()});
  const auto loss = [&](int64_t row) {
    double total = 2 * balance_factor * reference.balance(row / choice.rule.balanced_rows);
    for (int64_t copy = row * k; copy < (row + 1) * k; ++copy) {
      const int64_t slot = reference.slots[static_cast<size_t>(copy)];
      if (slot >= 0) total += d_weights.at(0, slot) * reference.weight(copy);
    }
    return total;
  };
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t i = 0; i < e; ++i) {
      double& moved = reference.logits[static_cast<size_t>(row * e + i)];
      constexpr double step = 1e-5;
      moved += step;
      const double above = loss(row);
      moved -= 2 * step;
      const double below = loss(row);
      moved += step;
      trial.expect_true(std::abs(d_logits.at(row, i) - (above - below) / (2 * step)) < 1e-5, "d_logits");
    }
  }
}

void check_limits(Trial& trial) {
  RouteTokens op{.rule = {.balanced_rows = 4},
                 .logits = trial.input(DType::f32, 4, 6).matrix(),
                 .experts = trial.output(DType::i32, 4, 2).matrix(),
                 .slots = trial.output(DType::i32, 4, 2).matrix(),
                 .rows = trial.output(DType::i32, 1, 8).matrix(),
                 .weights = trial.output(DType::f32, 1, 8).matrix(),
                 .offsets = trial.output(DType::i32, 1, 7).matrix()};
  op.rule.groups = 4;
  trial.expect_rejected(op, "groups of one and a half experts");
  op.rule = {.balanced_rows = 4, .groups = 6, .group_top_k = 1};
  trial.expect_rejected(op, "two experts of a group of one");
  op.rule = {.balanced_rows = 4, .capacity = 2, .capacity_rows = 3};
  trial.expect_rejected(op, "rows beside runs with a capacity");
}

void check_jitter(Trial& trial, DType dtype, bool in_place) {
  constexpr int64_t sequences = 3, length = 5, cols = 13;
  constexpr double eps = 0.25;
  const std::vector<int64_t> ids = {4, int64_t{7} << 33, 2};
  const Operand& x = trial.input(dtype, sequences * length, cols, 1, 3);
  Operand& y = in_place ? trial.in_out(DType::f32, sequences * length, cols) : trial.output(DType::f32, 15, cols, 1);
  const std::vector<double> before = in_place ? y.values() : x.values();
  const PhiloxKey key{3, 9};
  trial.run(
      JitterRows{.dropout = {.p = eps, .key = key, .sample_ids = Trial::pointer<const int64_t>(trial.input_array(ids))},
                 .token_rows = TokenRows::whole(length),
                 .x = in_place ? y.matrix() : x.matrix(),
                 .y = y.matrix()});
  std::vector<double> expected;
  double least = 2, most = 0;
  for (int64_t row = 0; row < sequences * length; ++row) {
    const auto sample = static_cast<uint64_t>(ids[static_cast<size_t>(row / length)]);
    for (int64_t col = 0; col < cols; ++col) {
      const auto words = philox(key, {static_cast<uint32_t>(col / 4), static_cast<uint32_t>(row % length),
                                      static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32)});
      const double factor =
          1 - eps + 2 * eps * static_cast<double>(uniform_open_closed(words[static_cast<size_t>(col % 4)]));
      least = std::min(least, factor);
      most = std::max(most, factor);
      expected.push_back(factor * before[static_cast<size_t>(row * cols + col)]);
    }
  }
  trial.expect_near("y", y, expected, 0x1p-20);
  trial.expect_true(least > 0.75 && least < 0.8 && most > 1.2 && most <= 1.25, "factors fill the range");
}

void check_gate(Trial& trial) {
  constexpr int64_t n = 19;
  const Operand& logits = trial.input(DType::f32, n, 1, 3);
  Operand& weights = trial.output(DType::f32, 1, n);
  Operand& offsets = trial.output(DType::i32, 1, 2);
  trial.run(GateRows{.logits = logits.matrix(), .weights = weights.matrix(), .offsets = offsets.matrix()});
  const Operand& d_weights = trial.input(DType::f32, 1, n);
  Operand& d_logits = trial.output(DType::f32, n, 1);
  trial.run(
      GateRowsBackward{.weights = weights.matrix(), .d_weights = d_weights.matrix(), .d_logits = d_logits.matrix()});
  std::vector<double> gates, gradients;
  for (int64_t row = 0; row < n; ++row) {
    gates.push_back(1 / (1 + std::exp(-logits.at(row, 0))));
    gradients.push_back(d_weights.at(0, row) * gates.back() * (1 - gates.back()));
  }
  trial.expect_near("weights", weights, gates, 0x1p-21);
  trial.expect_near("d_logits", d_logits, gradients, 0x1p-20);
  trial.expect_equal("offsets", offsets, {0, n});
}

// Two layers of three and of four experts, of whose vectors the range holds parts.
void check_balance(Trial& trial, bool skip) {
  const std::vector<double> routed = {5, 1, 3, -1, -1, -1, -1, 8, 0, 4, 4, -1, -1, -1, -1};
  const std::vector<BalanceSegment> segments = {
      {.offset = 1, .count = 2, .first = 1, .experts = 3, .first_routed = 0, .is_excess = 0},
      {.offset = 4, .count = 4, .first = 0, .experts = 4, .first_routed = 7, .is_excess = 1},
      {.offset = 9, .count = 4, .first = 0, .experts = 4, .first_routed = 7, .is_excess = 0}};
  Operand& values = trial.in_out(DType::f32, 1, 14);
  std::vector<double> expected = values.values();
  StepState state;
  state.skip = skip ? 1 : 0;
  trial.run(BalanceRouters{.segments = Trial::pointer<const BalanceSegment>(trial.input_array(segments)),
                           .num_segments = 3,
                           .rate = 0.5,
                           .state = Trial::pointer<const StepState>(trial.in_out_value(state)),
                           .routed = trial.input(DType::f64, 1, 15, routed).matrix(),
                           .values = values.matrix()});
  if (!skip) {
    expected[1] += 0.5;  // expert 1 has 1 token, the mean is 3; expert 2 has the mean
    const std::vector<double> excess = {1, -1, 0, 0}, change = {-0.5, 0.5, 0, 0};
    for (size_t i = 0; i < 4; ++i) {
      expected[4 + i] = excess[i];
      expected[9 + i] += change[i];
    }
  }
  trial.expect_near("values", values, expected, 0x1p-22);
}

void check_zeros(Trial& trial, DType dtype) {
  Operand& to = trial.output(dtype, 1, 37);
  trial.run(WriteZeros{to.matrix()});
  trial.expect_equal("to", to, std::vector<double>(37));
}

void add_benches(Suite& suite) {
  suite.add_bench<RouteTokens>("N=2048 E=64 k=4 bias, 2 of 8 groups, capacity", [=](Trial& t) {
    constexpr int64_t n = 2048, e = 64, k = 4;
    t.time(RouteTokens{.rule = {.score = sigmoid,
                                .balanced_rows = 512,
                                .groups = 8,
                                .group_top_k = 2,
                                .capacity = 40,
                                .capacity_rows = 512},
                       .logits = t.input(DType::f32, n, e).matrix(),
                       .experts = t.output(DType::i32, n, k).matrix(),
                       .slots = t.output(DType::i32, n, k).matrix(),
                       .rows = t.output(DType::i32, 1, n * k).matrix(),
                       .weights = t.output(DType::f32, 1, n * k).matrix(),
                       .offsets = t.output(DType::i32, 1, e + 1).matrix(),
                       .bias = t.input(DType::f32, 1, e, 0.1).matrix()});
  });
  suite.add_bench<JitterRows>("N=2048 h=1024", [](Trial& t) {
    constexpr int64_t n = 2048, cols = 1024;
    const std::vector<int64_t> ids = {0, 1, 2, 3};
    t.time(JitterRows{
        .dropout = {.p = 0.1, .key = {3, 9}, .sample_ids = Trial::pointer<const int64_t>(t.input_array(ids))},
        .token_rows = TokenRows::whole(512),
        .x = t.input(DType::bf16, n, cols).matrix(),
        .y = t.output(DType::f32, n, cols).matrix()});
  });
  constexpr int64_t tokens = 1 << 16;
  suite.add_bench<GateRows>("N=65536", [](Trial& t) {
    t.time(GateRows{.logits = t.input(DType::f32, tokens, 1).matrix(),
                    .weights = t.output(DType::f32, 1, tokens).matrix(),
                    .offsets = t.output(DType::i32, 1, 2).matrix()});
  });
  suite.add_bench<GateRowsBackward>("N=65536", [](Trial& t) {
    t.time(GateRowsBackward{.weights = t.input(DType::f32, 1, tokens).matrix(),
                            .d_weights = t.input(DType::f32, 1, tokens).matrix(),
                            .d_logits = t.output(DType::f32, tokens, 1).matrix()});
  });
  suite.add_bench<BalanceRouters>("E=256", [](Trial& t) {
    const std::vector<BalanceSegment> segments = {
        {.offset = 0, .count = 256, .first = 0, .experts = 256, .first_routed = 0, .is_excess = 0}};
    t.time(BalanceRouters{.segments = Trial::pointer<const BalanceSegment>(t.input_array(segments)),
                          .num_segments = 1,
                          .rate = 0.001,
                          .state = Trial::pointer<const StepState>(t.in_out_value(StepState())),
                          .routed = t.input(DType::f64, 1, 260).matrix(),
                          .values = t.in_out(DType::f32, 1, 256).matrix()});
  });
  suite.add_bench<WriteZeros>("256", [](Trial& t) { t.time(WriteZeros{t.output(DType::f32, 1, 256).matrix()}); });
}

void add_cases(Suite& suite) {
  for (const Choice& choice : choices()) {
    suite.add<RouteTokens>(name_of(choice), [=](Trial& t) { check_choice(t, choice); });
    suite.add<RouteTokensBackward>(name_of(choice), [=](Trial& t) { check_gradient(t, choice); });
  }
  suite.add<RouteTokens>("limits", check_limits);
  for (const DType dtype : {DType::f32, DType::bf16})
    suite.add<JitterRows>(std::string(dtype_name(dtype)), [=](Trial& t) { check_jitter(t, dtype, false); });
  suite.add<JitterRows>("in place", [](Trial& t) { check_jitter(t, DType::f32, true); });
  suite.add<GateRows>("N=19", check_gate);
  suite.add<GateRowsBackward>("N=19", check_gate);
  for (const bool skip : {false, true})
    suite.add<BalanceRouters>(skip ? "skipped" : "two layers", [=](Trial& t) { check_balance(t, skip); });
  for (const DType dtype : {DType::f32, DType::bf16})
    suite.add<WriteZeros>(fmt::format("37 {}", dtype_name(dtype)), [=](Trial& t) { check_zeros(t, dtype); });
  add_benches(suite);
}

const Registration registration(add_cases);

}  // namespace
}  // namespace gptrain::ops_test::cases_routing
