// Cases of a mixture's router, and of the ops that move and weigh experts' rows.
#include <algorithm>
#include <fmt/format.h>
#include <numeric>

#include "expert_rows.h"
#include "harness.h"
#include "reference.h"

namespace gptrain::ops_test::cases_experts {
namespace {

struct Routing {
  RouterRule rule;
  int64_t sequences, experts, k;
  bool ties = false;  // many equal logits

  int64_t rows() const { return sequences * rule.balanced_rows; }
};

constexpr RouterScore softmax = RouterScore::softmax, sigmoid_score = RouterScore::sigmoid;
const Routing routings[] = {
    {.rule = {.score = softmax, .balanced_rows = 5}, .sequences = 3, .experts = 7, .k = 2},
    {.rule = {.score = softmax, .renormalise = false, .balanced_rows = 1}, .sequences = 4, .experts = 1, .k = 1},
    {.rule = {.score = softmax, .renormalise = false, .scale = 2.5, .balanced_rows = 16},
     .sequences = 2,
     .experts = 33,
     .k = 4},
    {.rule = {.score = sigmoid_score, .balanced_rows = 7}, .sequences = 2, .experts = 16, .k = 3},
    {.rule = {.score = sigmoid_score, .renormalise = false, .scale = 0.5, .balanced_rows = 9},
     .sequences = 1,
     .experts = 5,
     .k = 5},
    {.rule = {.score = softmax, .balanced_rows = 8}, .sequences = 2, .experts = 6, .k = 3, .ties = true}};

std::string name_of(const Routing& routing) {
  return fmt::format("{} T={} B={} E={} k={} scale={}{}{}", router_score_names[routing.rule.score],
                     routing.rule.balanced_rows, routing.sequences, routing.experts, routing.k, routing.rule.scale,
                     routing.rule.renormalise ? " renormalised" : "", routing.ties ? " ties" : "");
}

std::vector<double> logits_of(Trial& trial, const Routing& routing) {
  std::vector<double> logits(static_cast<size_t>(routing.rows() * routing.experts));
  for (double& logit : logits)
    logit = routing.ties ? static_cast<double>(trial.random.below(3)) : 2 * trial.random.normal();
  return rounded(std::move(logits), DType::f32);
}

// A router in double.
struct Reference {
  const Routing& routing;
  std::vector<double> logits;
  std::vector<int64_t> experts, slots;  // [N, k]
  std::vector<int64_t> rows, offsets;

  Reference(const Routing& of, std::vector<double> given) : routing(of), logits(std::move(given)) { choose(); }

  double logit(int64_t row, int64_t e) const { return logits[static_cast<size_t>(row * routing.experts + e)]; }
  double log_sum(int64_t row) const {
    double sum = 0;
    for (int64_t e = 0; e < routing.experts; ++e) sum += std::exp(logit(row, e));
    return std::log(sum);
  }
  double score(int64_t row, int64_t e) const {
    return routing.rule.score == softmax ? std::exp(logit(row, e) - log_sum(row)) : 1 / (1 + std::exp(-logit(row, e)));
  }
  double share(int64_t row, int64_t e) const {
    if (routing.rule.score == softmax) return score(row, e);  // they add up to 1
    double sum = 0;
    for (int64_t i = 0; i < routing.experts; ++i) sum += score(row, i);
    return score(row, e) / sum;
  }
  int64_t expert(int64_t row, int64_t j) const { return experts[static_cast<size_t>(row * routing.k + j)]; }
  double weight(int64_t row, int64_t j) const {
    double sum = routing.rule.score == softmax ? 0 : 1e-20;
    for (int64_t i = 0; i < routing.k; ++i) sum += score(row, expert(row, i));
    return routing.rule.scale * score(row, expert(row, j)) / (routing.rule.renormalise ? sum : 1);
  }
  double balance(int64_t sequence) const {
    double sum = 0;
    const int64_t length = routing.rule.balanced_rows;
    for (int64_t e = 0; e < routing.experts; ++e) {
      double num_routed = 0, shares = 0;
      for (int64_t row = sequence * length; row < (sequence + 1) * length; ++row) {
        shares += share(row, e);
        for (int64_t j = 0; j < routing.k; ++j) num_routed += expert(row, j) == e ? 1 : 0;
      }
      sum += num_routed / static_cast<double>(length * routing.k) * shares / static_cast<double>(length);
    }
    return sum * static_cast<double>(routing.experts);
  }
  std::vector<double> statistics() const {
    std::vector<double> all(static_cast<size_t>(routing.experts));
    for (const int64_t e : experts) all[static_cast<size_t>(e)] += 1;
    double balances = 0, squares = 0, entropy = 0;
    for (int64_t i = 0; i < routing.sequences; ++i) balances += balance(i);
    for (int64_t row = 0; row < routing.rows(); ++row) {
      squares += log_sum(row) * log_sum(row);
      for (int64_t e = 0; e < routing.experts; ++e) entropy -= share(row, e) * std::log(share(row, e));
    }
    all.insert(all.end(), {balances, squares, entropy, 0});  // no copy is dropped
    return all;
  }

 private:
  void choose() {
    for (int64_t row = 0; row < routing.rows(); ++row) {
      std::vector<int64_t> order(static_cast<size_t>(routing.experts));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return logit(row, a) > logit(row, b); });
      experts.insert(experts.end(), order.begin(), order.begin() + routing.k);
    }
    slots.resize(experts.size());
    offsets.push_back(0);
    for (int64_t e = 0; e < routing.experts; ++e) {
      for (size_t i = 0; i < experts.size(); ++i) {
        if (experts[i] != e) continue;
        slots[i] = std::ssize(rows);
        rows.push_back(static_cast<int64_t>(i) / routing.k);
      }
      offsets.push_back(std::ssize(rows));
    }
  }
};

std::vector<double> numbers(const std::vector<int64_t>& integers) { return {integers.begin(), integers.end()}; }

void check_route(Trial& trial, const Routing& routing, bool with_statistics) {
  const Reference reference(routing, logits_of(trial, routing));
  const int64_t n = routing.rows(), e = routing.experts, k = routing.k;
  const Operand& logits = trial.input(DType::f32, n, e, reference.logits, 2);
  Operand& experts = trial.output(DType::i32, n, k);
  Operand& slots = trial.output(DType::i32, n, k);
  Operand& rows = trial.output(DType::i32, 1, n * k);
  Operand& weights = trial.output(DType::f32, 1, n * k);
  Operand& offsets = trial.output(DType::i32, 1, e + 1);
  Operand& statistics = trial.in_out(DType::f64, 1, num_routing_sums(e));
  const std::vector<double> before = statistics.values();
  trial.run(RouteTokens{.rule = routing.rule,
                        .logits = logits.matrix(),
                        .experts = experts.matrix(),
                        .slots = slots.matrix(),
                        .rows = rows.matrix(),
                        .weights = weights.matrix(),
                        .offsets = offsets.matrix(),
                        .statistics = with_statistics ? statistics.matrix() : Matrix{}});
  trial.expect_equal("experts", experts, numbers(reference.experts));
  trial.expect_equal("slots", slots, numbers(reference.slots));
  trial.expect_equal("rows", rows, numbers(reference.rows));
  trial.expect_equal("offsets", offsets, numbers(reference.offsets));
  std::vector<double> expected(reference.rows.size());
  for (int64_t row = 0; row < n; ++row)
    for (int64_t j = 0; j < k; ++j)
      expected[static_cast<size_t>(reference.slots[static_cast<size_t>(row * k + j)])] = reference.weight(row, j);
  trial.expect_near("weights", weights, expected, 2e-6 * routing.rule.scale);
  if (!with_statistics) return trial.expect_equal("statistics", statistics, before);
  std::vector<double> sums = reference.statistics();
  for (size_t i = 0; i < sums.size(); ++i) sums[i] += before[i];
  trial.expect_near("statistics", statistics, sums, 1e-5 * static_cast<double>(n));
}

// Compares with the numeric gradient, in double, of all losses for the experts chosen.
void check_backward(Trial& trial, const Routing& routing, double balance_factor, double z_factor) {
  Reference reference(routing, logits_of(trial, routing));
  const int64_t n = routing.rows(), e = routing.experts, k = routing.k;
  StepState state;
  state.loss_scale.value = 4;
  const Operand& logits = trial.input(DType::f32, n, e, reference.logits, 2);
  const Operand& experts = trial.input(DType::i32, n, k, numbers(reference.experts));
  const Operand& slots = trial.input(DType::i32, n, k, numbers(reference.slots));
  const Operand& d_weights = trial.input(DType::f32, 1, n * k);
  Operand& d_logits = trial.output(DType::f32, n, e, 1);
  trial.run(RouteTokensBackward{.rule = routing.rule,
                                .balance_factor = balance_factor,
                                .z_factor = z_factor,
                                .state = Trial::pointer<const StepState>(trial.in_out_value(state)),
                                .logits = logits.matrix(),
                                .experts = experts.matrix(),
                                .slots = slots.matrix(),
                                .d_weights = d_weights.matrix(),
                                .d_logits = d_logits.matrix()});
  const auto row_loss = [&](int64_t row) {
    double loss = 0;
    for (int64_t j = 0; j < k; ++j)
      loss += d_weights.at(0, reference.slots[static_cast<size_t>(row * k + j)]) * reference.weight(row, j);
    const double log_sum = reference.log_sum(row);
    return loss +
           4 * (balance_factor * reference.balance(row / routing.rule.balanced_rows) + z_factor * log_sum * log_sum);
  };
  std::vector<double> expected;
  double largest = 1;
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t i = 0; i < e; ++i) {
      double& moved = reference.logits[static_cast<size_t>(row * e + i)];
      const double at = moved;
      constexpr double step = 1e-5;
      moved = at + step;
      const double above = row_loss(row);
      moved = at - step;
      const double below = row_loss(row);
      moved = at;
      expected.push_back((above - below) / (2 * step));
      largest = std::max(largest, std::abs(expected.back()));
    }
  }
  trial.expect_near("d_logits", d_logits, expected, 3e-6 * largest);
}

// Ranks that share each sequence: with their loads added up, their statistics add up to those of whole sequences, and
// each has the gradients of its rows.
void check_shared_runs(Trial& trial, const Routing& routing) {
  const int64_t ranks = routing.rule.balanced_rows, e = routing.experts, k = routing.k, n = routing.sequences;
  const Reference reference(routing, logits_of(trial, routing));
  RouterRule rule = routing.rule;
  rule.run_ranks = ranks;
  StepState state;
  state.loss_scale.value = 4;
  const StepState* const device_state = Trial::pointer<const StepState>(trial.in_out_value(state));
  const Operand& logits = trial.input(DType::f32, routing.rows(), e, reference.logits);
  const Operand& experts = trial.input(DType::i32, routing.rows(), k, numbers(reference.experts));
  // Slots in the order of rows.
  const auto slots_of = [&](int64_t count) {
    std::vector<double> all(static_cast<size_t>(count * k));
    std::iota(all.begin(), all.end(), 0);
    return trial.input(DType::i32, count, k, all).matrix();
  };
  const Operand& d_weights = trial.input(DType::f32, 1, routing.rows() * k);
  Operand& whole = trial.output(DType::f32, routing.rows(), e);
  const auto backward = [&](const RouterRule& of, const Matrix& loads, const Matrix& d_logits) {
    return RouteTokensBackward{.rule = of,
                               .balance_factor = 0.7,
                               .z_factor = 0,
                               .state = device_state,
                               .logits = logits.matrix(),
                               .experts = experts.matrix(),
                               .slots = slots_of(routing.rows()),
                               .loads = loads,
                               .d_weights = d_weights.matrix(),
                               .d_logits = d_logits};
  };
  trial.run(backward(routing.rule, {}, whole.matrix()));
  std::vector<double> all_loads(static_cast<size_t>(n * e));
  // Each rank has one row of each sequence.
  const auto rows_of = [&](const std::vector<double>& all, int64_t cols, int64_t rank) {
    std::vector<double> own;
    for (int64_t i = 0; i < n; ++i) {
      const auto first = all.begin() + (i * ranks + rank) * cols;
      own.insert(own.end(), first, first + cols);
    }
    return own;
  };
  Operand& statistics = trial.in_out(DType::f64, 1, num_routing_sums(e), 0);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    Operand& loads = trial.output(DType::f32, n, e);
    trial.run(RouteTokens{.rule = rule,
                          .logits = trial.input(DType::f32, n, e, rows_of(reference.logits, e, rank)).matrix(),
                          .experts = trial.output(DType::i32, n, k).matrix(),
                          .slots = trial.output(DType::i32, n, k).matrix(),
                          .rows = trial.output(DType::i32, 1, n * k).matrix(),
                          .weights = trial.output(DType::f32, 1, n * k).matrix(),
                          .offsets = trial.output(DType::i32, 1, e + 1).matrix(),
                          .statistics = statistics.matrix(),
                          .loads = loads.matrix()});
    for (int64_t i = 0; i < n * e; ++i) all_loads[static_cast<size_t>(i)] += loads.at(i / e, i % e);
  }
  const Operand& summed = trial.input(DType::f32, n, e, all_loads);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const Operand& own_logits = trial.input(DType::f32, n, e, rows_of(reference.logits, e, rank));
    trial.run(AddBalance{.rule = rule,
                         .top_k = k,
                         .logits = own_logits.matrix(),
                         .loads = summed.matrix(),
                         .statistics = statistics.matrix()});
    Operand& d_logits = trial.output(DType::f32, n, e);
    RouteTokensBackward op = backward(rule, summed.matrix(), d_logits.matrix());
    op.logits = own_logits.matrix();
    op.experts = trial.input(DType::i32, n, k, rows_of(numbers(reference.experts), k, rank)).matrix();
    op.slots = slots_of(n);
    op.d_weights = trial.input(DType::f32, 1, n * k, rows_of(d_weights.values(), k, rank)).matrix();
    trial.run(op);
    trial.expect_equal("d_logits", d_logits, rows_of(whole.values(), e, rank));
  }
  trial.expect_near("statistics", statistics, reference.statistics(), 1e-5 * static_cast<double>(routing.rows()));
}

// A row of logits that are no numbers chooses experts, too, each once.
void check_nan(Trial& trial) {
  const double nan = std::nan("");
  const Operand& logits = trial.input(DType::f32, 2, 3, {nan, nan, nan, 1, nan, 2});
  Operand& experts = trial.output(DType::i32, 2, 3);
  trial.run(RouteTokens{.rule = {.balanced_rows = 2},
                        .logits = logits.matrix(),
                        .experts = experts.matrix(),
                        .slots = trial.output(DType::i32, 2, 3).matrix(),
                        .rows = trial.output(DType::i32, 1, 6).matrix(),
                        .weights = trial.output(DType::f32, 1, 6).matrix(),
                        .offsets = trial.output(DType::i32, 1, 4).matrix()});
  trial.expect_equal("experts", experts, {0, 1, 2, 2, 0, 1});
}

void check_gather(Trial& trial, DType dtype) {
  const ExpertRows rows{{3, 0, 4}, 9};
  const Operand& x = trial.input(dtype, 5, 67, 1, 3);
  Operand& y = trial.output(dtype, rows.bound, 67, 2);
  std::vector<double> from, expected;
  for (int64_t row = 0; row < rows.bound; ++row)
    from.push_back(row < rows.used() ? static_cast<double>(trial.random.below(5)) : 1e6);
  for (int64_t row = 0; row < rows.used(); ++row)
    for (int64_t col = 0; col < 67; ++col)
      expected.push_back(x.at(static_cast<int64_t>(from[static_cast<size_t>(row)]), col));
  const Operand& numbers_of_rows = trial.input(DType::i32, 1, rows.bound, from);
  trial.run(
      GatherRows{.x = x.matrix(), .rows = numbers_of_rows.matrix(), .offsets = rows.matrix(trial), .y = y.matrix()});
  trial.expect_true(used_values(trial, y, rows.used()) == expected, "rows are copies");
}

void check_combine(Trial& trial, DType dtype, bool with_router, bool with_shared) {
  constexpr int64_t n = 6, k = 3, cols = 261;
  const Operand& x = poisoned_input(trial, dtype, n * k + 2, cols, n * k, 3);
  std::vector<double> slots;
  for (int64_t i = 0; i < n * k; ++i) slots.push_back(static_cast<double>((7 * i + 5) % (n * k)));
  const Operand& slots_of_rows = trial.input(DType::i32, n, k, slots);
  const Operand& router = trial.input(DType::f32, n, cols, 1, 1);
  Operand& y = trial.in_out(dtype, n, cols, 1, 2);
  std::vector<double> expected;
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t col = 0; col < cols; ++col) {
      double sum = with_shared ? y.at(row, col) : 0;
      for (int64_t j = 0; j < k; ++j) sum += x.at(static_cast<int64_t>(slots[static_cast<size_t>(row * k + j)]), col);
      expected.push_back(sum + (with_router ? router.at(row, col) : 0));
    }
  }
  trial.run(CombineRows{.x = x.matrix(),
                        .slots = slots_of_rows.matrix(),
                        .router = with_router ? router.matrix() : Matrix{},
                        .shared = with_shared ? y.matrix() : Matrix{},
                        .y = y.matrix()});
  trial.expect_near("y", y, expected, 0x1p-20);
}

// The activation itself is checked in its own cases: experts weigh it.
void check_activation(Trial& trial, ActivationKind kind, DType dtype) {
  constexpr int64_t cols = 37;
  const ExpertRows rows{{2, 5}, 10};
  const int64_t used = rows.used(), wide = is_gated(kind) ? 2 * cols : cols;
  const Operand& x = poisoned_input(trial, dtype, rows.bound, wide, used, 3);
  std::vector<double> given(static_cast<size_t>(rows.bound), std::nan(""));
  for (int64_t row = 0; row < used; ++row) given[static_cast<size_t>(row)] = trial.random.normal();
  const Operand& weights = trial.input(DType::f32, 1, rows.bound, given);
  const Operand& dy = poisoned_input(trial, dtype, rows.bound, cols, used, 1);
  const Matrix offsets = rows.matrix(trial);
  Operand& plain = trial.output(DType::f32, used, cols);
  Operand& plain_dx = trial.output(DType::f32, used, wide);
  const Operand& exact_x = trial.input(DType::f32, used, wide, used_values(trial, x, used));
  const Operand& exact_dy = trial.input(DType::f32, used, cols, used_values(trial, dy, used));
  trial.run(ActivationForward{.kind = kind, .x = exact_x.matrix(), .bias = {}, .y = plain.matrix()});
  trial.run(ActivationBackward{
      .kind = kind, .x = exact_x.matrix(), .bias = {}, .dy = exact_dy.matrix(), .dx = plain_dx.matrix()});
  Operand& y = trial.output(dtype, rows.bound, cols, 2);
  Operand& dx = trial.output(dtype, rows.bound, wide, 2);
  Operand& d_weights = trial.output(DType::f32, 1, rows.bound);
  trial.run(ExpertActivationForward{
      .kind = kind, .x = x.matrix(), .weights = weights.matrix(), .offsets = offsets, .y = y.matrix()});
  const std::vector<double> results = used_values(trial, y, used);
  trial.run(ExpertActivationBackward{.kind = kind,
                                     .x = x.matrix(),
                                     .weights = weights.matrix(),
                                     .offsets = offsets,
                                     .dy = dy.matrix(),
                                     .dx = dx.matrix(),
                                     .d_weights = d_weights.matrix()});
  const std::vector<double> gradients = used_values(trial, dx, used);
  const double unit = dtype == DType::bf16 ? 0x1p-8 : 0x1p-21;
  const auto near = [&](double value, double expected) {
    return std::abs(value - expected) <= unit * std::abs(expected) + 0x1p-21;
  };
  for (int64_t row = 0; row < used; ++row) {
    const double weight = weights.at(0, row);
    double d_weight = 0;
    for (int64_t col = 0; col < cols; ++col) {
      trial.expect_true(near(results[static_cast<size_t>(row * cols + col)], weight * plain.at(row, col)), "y");
      d_weight += plain.at(row, col) * dy.at(row, col);
    }
    for (int64_t col = 0; col < wide; ++col)
      trial.expect_true(near(gradients[static_cast<size_t>(row * wide + col)], weight * plain_dx.at(row, col)), "dx");
    trial.expect_true(std::abs(d_weights.at(0, row) - d_weight) <= 1e-5 * (1 + std::abs(d_weight)), "d_weights");
  }
  for (int64_t row = used; row < rows.bound; ++row)
    trial.expect_true(std::isnan(d_weights.at(0, row)), "a weight past the last has a gradient");
}

void check_rejections(Trial& trial) {
  const Operand& logits = trial.input(DType::f32, 4, 3);
  RouteTokens op{.rule = {.balanced_rows = 2},
                 .logits = logits.matrix(),
                 .experts = trial.output(DType::i32, 4, 2).matrix(),
                 .slots = trial.output(DType::i32, 4, 2).matrix(),
                 .rows = trial.output(DType::i32, 1, 8).matrix(),
                 .weights = trial.output(DType::f32, 1, 8).matrix(),
                 .offsets = trial.output(DType::i32, 1, 4).matrix()};
  op.rule.balanced_rows = 3;
  trial.expect_rejected(op, "half a sequence");
  op.rule = {.scale = 0, .balanced_rows = 2};
  trial.expect_rejected(op, "weights of 0");
  op.rule = {.balanced_rows = 2};
  op.offsets.cols = 3;
  trial.expect_rejected(op, "fewer offsets than experts");
}

void add_benches(Suite& suite) {
  constexpr int64_t n = 2048, e = 64, k = 4, h = 768, f = 1024;
  const ExpertRows rows{std::vector<int64_t>(e, n * k / e), n * k};
  const auto slots_of_rows = [](Trial& t) {
    std::vector<double> all;
    for (int64_t i = 0; i < n * k; ++i) all.push_back(static_cast<double>(i * 1021 % (n * k)));
    return t.input(DType::i32, n, k, all).matrix();
  };
  suite.add_bench<RouteTokens>("N=2048 E=64 k=4", [=](Trial& t) {
    t.time(RouteTokens{.rule = {.balanced_rows = 512},
                       .logits = t.input(DType::f32, n, e).matrix(),
                       .experts = t.output(DType::i32, n, k).matrix(),
                       .slots = t.output(DType::i32, n, k).matrix(),
                       .rows = t.output(DType::i32, 1, n * k).matrix(),
                       .weights = t.output(DType::f32, 1, n * k).matrix(),
                       .offsets = t.output(DType::i32, 1, e + 1).matrix(),
                       .statistics = t.in_out(DType::f64, 1, num_routing_sums(e)).matrix()});
  });
  suite.add_bench<RouteTokensBackward>("N=2048 E=64 k=4", [=](Trial& t) {
    std::vector<double> experts;
    for (int64_t i = 0; i < n * k; ++i) experts.push_back(static_cast<double>(i % e));
    t.time(RouteTokensBackward{.rule = {.balanced_rows = 512},
                               .balance_factor = 1,
                               .z_factor = 1,
                               .state = Trial::pointer<const StepState>(t.in_out_value(StepState{})),
                               .logits = t.input(DType::f32, n, e).matrix(),
                               .experts = t.input(DType::i32, n, k, experts).matrix(),
                               .slots = slots_of_rows(t),
                               .d_weights = t.input(DType::f32, 1, n * k).matrix(),
                               .d_logits = t.output(DType::f32, n, e).matrix()});
  });
  suite.add_bench<AddBalance>("N=2048 E=64 k=4", [=](Trial& t) {
    t.time(AddBalance{.rule = {.balanced_rows = 4096, .run_ranks = 2},
                      .top_k = k,
                      .logits = t.input(DType::f32, n, e).matrix(),
                      .loads = t.input(DType::f32, 1, e).matrix(),
                      .statistics = t.in_out(DType::f64, 1, num_routing_sums(e)).matrix()});
  });
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const std::string name = fmt::format("R={} {}", n * k, dtype_name(dtype));
    suite.add_bench<GatherRows>(name, [=](Trial& t) {
      std::vector<double> from;
      for (int64_t i = 0; i < n * k; ++i) from.push_back(static_cast<double>(i * 1021 % n));
      t.time(GatherRows{.x = t.input(dtype, n, h).matrix(),
                        .rows = t.input(DType::i32, 1, n * k, from).matrix(),
                        .offsets = rows.matrix(t),
                        .y = t.output(dtype, n * k, h).matrix()});
    });
    suite.add_bench<CombineRows>(name, [=](Trial& t) {
      t.time(CombineRows{
          .x = t.input(dtype, n * k, h).matrix(), .slots = slots_of_rows(t), .y = t.output(dtype, n, h).matrix()});
    });
    suite.add_bench<ExpertActivationForward>(name, [=](Trial& t) {
      t.time(ExpertActivationForward{.kind = ActivationKind::swiglu,
                                     .x = t.input(dtype, n * k, 2 * f).matrix(),
                                     .weights = t.input(DType::f32, 1, n * k).matrix(),
                                     .offsets = rows.matrix(t),
                                     .y = t.output(dtype, n * k, f).matrix()});
    });
    suite.add_bench<ExpertActivationBackward>(name, [=](Trial& t) {
      t.time(ExpertActivationBackward{.kind = ActivationKind::swiglu,
                                      .x = t.input(dtype, n * k, 2 * f).matrix(),
                                      .weights = t.input(DType::f32, 1, n * k).matrix(),
                                      .offsets = rows.matrix(t),
                                      .dy = t.input(dtype, n * k, f).matrix(),
                                      .dx = t.output(dtype, n * k, 2 * f).matrix(),
                                      .d_weights = t.output(DType::f32, 1, n * k).matrix()});
    });
  }
}

void add_cases(Suite& suite) {
  for (const Routing& routing : routings) {
    for (const bool statistics : {false, true})
      suite.add<RouteTokens>(name_of(routing) + (statistics ? " statistics" : ""),
                             [=](Trial& t) { check_route(t, routing, statistics); });
    suite.add<RouteTokensBackward>(name_of(routing), [=](Trial& t) { check_backward(t, routing, 0, 0); });
    suite.add<RouteTokensBackward>(name_of(routing) + " losses",
                                   [=](Trial& t) { check_backward(t, routing, 0.7, 0.1); });
    suite.add<AddBalance>(name_of(routing), [=](Trial& t) { check_shared_runs(t, routing); });
  }
  suite.add<RouteTokens>("no numbers", check_nan);
  suite.add<RouteTokens>("rejections", check_rejections);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const std::string type(dtype_name(dtype));
    suite.add<GatherRows>(type, [=](Trial& t) { check_gather(t, dtype); });
    for (const bool router : {false, true})
      for (const bool shared : {false, true})
        suite.add<CombineRows>(type + (router ? " router" : "") + (shared ? " shared" : ""),
                               [=](Trial& t) { check_combine(t, dtype, router, shared); });
    for (size_t i = 0; i < activation_names.size(); ++i) {
      const auto kind = static_cast<ActivationKind>(i);
      const std::string name = fmt::format("{} {}", activation_names[i], type);
      suite.add<ExpertActivationForward>(name, [=](Trial& t) { check_activation(t, kind, dtype); });
      suite.add<ExpertActivationBackward>(name, [=](Trial& t) { check_activation(t, kind, dtype); });
    }
  }
  add_benches(suite);
}

const Registration registration(add_cases);

}  // namespace
}  // namespace gptrain::ops_test::cases_experts
