#include "ops/cpu/kernels/activation_functions.h"
#include "ops/cpu/kernels/isa.h"
#include "ops/cpu/kernels/kernels.h"
#include "ops/cpu/kernels/math.h"

namespace gptrain::inline ops::GPTRAIN_ISA {
namespace {

// The softmax of a row of logits, as functions of a logit.
struct RowSoftmax {
  float maximum = -infinity;
  float sum = 0;  // sum of e^(logit - maximum)

  RowSoftmax(const float* logits, int64_t count) {
    float largest = -infinity;
#pragma omp simd reduction(max : largest)
    for (int64_t e = 0; e < count; ++e) largest = logits[e] > largest ? logits[e] : largest;
    float total = 0;
#pragma omp simd reduction(+ : total)
    for (int64_t e = 0; e < count; ++e) total += exp_f32(logits[e] - largest);
    maximum = largest;
    sum = total;
  }
  float share(float logit) const { return exp_f32(logit - maximum) / sum; }
  float log_sum() const { return maximum + static_cast<float>(__builtin_log(static_cast<double>(sum))); }
};

inline float sum_of_sigmoids(const float* logits, int64_t count) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t e = 0; e < count; ++e) sum += sigmoid(logits[e]);
  return sum;
}

// RETURNS the expert whose logit follows that of expert `last` in falling order; -1: there is none. `last` -1: the
// first.
inline int32_t next_expert(const float* logits, int64_t count, int32_t last) {
  const float bound = last < 0 ? 0.0F : logits[last];
  int32_t best = -1;
  for (int32_t e = 0; e < count; ++e) {
    const bool follows = last < 0 || logits[e] < bound || (logits[e] == bound && e > last);
    if (follows && (best < 0 || logits[e] > logits[best])) best = e;
  }
  return best;
}

// Computes the numbers by which a row's experts are chosen, s + bias.
void choice_keys(const RouteTokens& op, int64_t row, float* keys) {
  const int64_t count = op.logits.cols;
  const float* const logits = row_of<const float>(op.logits, row);
  if (op.rule.score == RouterScore::softmax) {
    const RowSoftmax softmax(logits, count);
#pragma omp simd
    for (int64_t e = 0; e < count; ++e) keys[e] = softmax.share(logits[e]);
  } else {
#pragma omp simd
    for (int64_t e = 0; e < count; ++e) keys[e] = sigmoid(logits[e]);
  }
  const float* const bias = op.bias.rows > 0 ? row_of<const float>(op.bias, 0) : nullptr;
  for (int64_t e = 0; bias != nullptr && e < count; ++e) keys[e] += bias[e];
}

// Lowers the numbers of experts in groups that are not chosen to minus infinity. `chosen`: experts of a row.
void leave_groups(const RouterRule& rule, int64_t chosen, float* keys, int64_t count) {
  const int64_t size = count / rule.groups;
  float sums[most_expert_groups];
  for (int64_t g = 0; g < rule.groups; ++g) {
    sums[g] = 0;
    int32_t last = -1;
    for (int64_t j = 0; j < chosen / rule.group_top_k; ++j) {
      last = next_expert(keys + g * size, size, last);
      if (last >= 0) sums[g] += keys[g * size + last];
    }
  }
  for (int64_t g = 0; g < rule.groups; ++g) {
    int64_t before = 0;
    for (int64_t i = 0; i < rule.groups; ++i) before += sums[i] > sums[g] || (sums[i] == sums[g] && i < g) ? 1 : 0;
    for (int64_t e = 0; before >= rule.group_top_k && e < size; ++e) keys[g * size + e] = -infinity;
  }
}

// RETURNS the first expert that is not among the chosen ones, which a row with logits that are no numbers takes.
inline int32_t first_left(const int32_t* chosen, int64_t num_chosen) {
  for (int32_t e = 0;; ++e) {
    bool taken = false;
    for (int64_t j = 0; j < num_chosen; ++j) taken = taken || chosen[j] == e;
    if (!taken) return e;
  }
}

// The sum of the scores of a row's experts, by which weights are divided.
struct ChosenScores {
  float divisor = 1;

  template <typename Score>
  ChosenScores(const RouterRule& rule, const float* logits, const int32_t* experts, int64_t k, const Score& score) {
    if (!rule.renormalise) return;
    float sum = rule.score == RouterScore::sigmoid ? 1e-20F : 0.0F;
    for (int64_t j = 0; j < k; ++j) sum += score(logits[experts[j]]);
    divisor = sum;
  }
};

// Adds the gradients of a row's logits through the weights of its experts, whose scores are s and slope ds / dlogit of
// the expert's own logit. RETURNS S, the sum of s times its gradient; a softmax subtracts s S from all gradients.
template <typename Score, typename Slope>
float add_weight_gradients(const RouteTokensBackward& op, int64_t row, const Score& score, const Slope& slope) {
  const float* const logits = row_of<const float>(op.logits, row);
  const int32_t* const experts = row_of<const int32_t>(op.experts, row);
  const int32_t* const slots = row_of<const int32_t>(op.slots, row);
  const float* const d_weights = row_of<const float>(op.d_weights, 0);
  float* const d_logits = row_of<float>(op.d_logits, row);
  const int64_t k = op.experts.cols;
  const auto scale = static_cast<float>(op.rule.scale);
  const float divisor = ChosenScores(op.rule, logits, experts, k, score).divisor;
  const auto d_weight = [&](int64_t j) { return slots[j] < 0 ? 0.0F : d_weights[slots[j]]; };
  float mean = 0;  // mean of the gradients of the weights before `scale`, each times its weight
  for (int64_t j = 0; j < k && op.rule.renormalise; ++j)
    mean += score(logits[experts[j]]) / divisor * scale * d_weight(j);
  float sum = 0;
  for (int64_t j = 0; j < k; ++j) {
    const float logit = logits[experts[j]];
    const float d_score = (scale * d_weight(j) - mean) / divisor;
    d_logits[experts[j]] += d_score * slope(logit);
    sum += d_score * score(logit);
  }
  return sum;
}

// `balance`: for each expert, the gradient of the balance loss for the row's s, for a sigmoid for s / sum s; nullptr:
// there is none.
void softmax_gradients(const RouteTokensBackward& op, int64_t row, const float* balance, float z_factor) {
  const int64_t count = op.logits.cols;
  const float* const logits = row_of<const float>(op.logits, row);
  float* const d_logits = row_of<float>(op.d_logits, row);
  const RowSoftmax softmax(logits, count);
  const float of_z = 2.0F * z_factor * softmax.log_sum();
  float mean = 0;
  if (balance != nullptr) {
#pragma omp simd reduction(+ : mean)
    for (int64_t e = 0; e < count; ++e) mean += softmax.share(logits[e]) * balance[e];
  }
  for (int64_t e = 0; e < count; ++e)
    d_logits[e] = softmax.share(logits[e]) * (of_z + (balance != nullptr ? balance[e] - mean : 0.0F));
  const auto share = [&](float logit) { return softmax.share(logit); };
  const float sum = add_weight_gradients(op, row, share, share);
  if (op.rule.renormalise) return;  // the sum over the chosen is 0
#pragma omp simd
  for (int64_t e = 0; e < count; ++e) d_logits[e] -= softmax.share(logits[e]) * sum;
}

void sigmoid_gradients(const RouteTokensBackward& op, int64_t row, const float* balance, float z_factor) {
  const int64_t count = op.logits.cols;
  const float* const logits = row_of<const float>(op.logits, row);
  float* const d_logits = row_of<float>(op.d_logits, row);
  const RowSoftmax softmax(logits, count);
  const float of_z = 2.0F * z_factor * softmax.log_sum();
  const float total = sum_of_sigmoids(logits, count);
  float mean = 0;
  for (int64_t e = 0; balance != nullptr && e < count; ++e) mean += sigmoid(logits[e]) / total * balance[e];
  for (int64_t e = 0; e < count; ++e) {
    d_logits[e] = of_z * softmax.share(logits[e]);
    if (balance != nullptr) d_logits[e] += (balance[e] - mean) / total * sigmoid_and_slope(logits[e]).slope;
  }
  add_weight_gradients(
      op, row, [](float logit) { return sigmoid(logit); }, [](float logit) { return sigmoid_and_slope(logit).slope; });
}

// Adds up rows of a token's copies.
template <typename C>
void combine_row(const CombineRows& op, int64_t row) {
  const int64_t cols = op.y.cols;
  const int32_t* const slots = row_of<const int32_t>(op.slots, row);
  C* const y = row_of<C>(op.y, row);
  constexpr int64_t width = 256;
  for (int64_t first = 0; first < cols; first += width) {
    const int64_t count = cols - first < width ? cols - first : width;
    alignas(64) float sum[width] = {};
    for (int64_t j = 0; j < op.slots.cols; ++j) {
      if (slots[j] < 0) continue;
      const C* const x = row_of<const C>(op.x, slots[j]) + first;
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) sum[i] += load(x + i);
    }
    if (op.router.rows > 0) {
      const float* const router = row_of<const float>(op.router, row) + first;
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) sum[i] += router[i];
    }
    if (op.shared.rows > 0) {
      const C* const shared = row_of<const C>(op.shared, row) + first;
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) sum[i] += load(shared + i);
    }
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) store(y + first + i, sum[i]);
  }
}

template <typename Function, bool gated, typename C>
void weighted_forward_row(const C* x, float weight, C* y, int64_t cols) {
#pragma omp simd
  for (int64_t i = 0; i < cols; ++i) {
    const float value = load(x + i);
    const float activated = value * Function::factor(value);
    store(y + i, weight * (gated ? activated * load(x + cols + i) : activated));
  }
}

// RETURNS the gradient of the row's weight.
template <typename Function, bool gated, typename C>
float weighted_backward_row(const C* x, float weight, const C* dy, C* dx, int64_t cols) {
  float d_weight = 0;
#pragma omp simd reduction(+ : d_weight)
  for (int64_t i = 0; i < cols; ++i) {
    const float value = load(x + i), gradient = load(dy + i);
    const FactorAndSlope of_value = Function::factor_and_slope(value);
    const float activated = value * of_value.factor;
    if (gated) {
      const float up = load(x + cols + i);
      d_weight += gradient * activated * up;
      store(dx + i, weight * gradient * up * of_value.slope);
      store(dx + cols + i, weight * gradient * activated);
    } else {
      d_weight += gradient * activated;
      store(dx + i, weight * gradient * of_value.slope);
    }
  }
  return d_weight;
}

// Type that stands for an activation, for with_activation.
template <typename Function, bool gated>
struct Activation {
  using Of = Function;
  static constexpr bool is_gated = gated;
};
template <typename Body>
void with_activation(ActivationKind kind, const Body& body) {
  switch (kind) {
    case ActivationKind::gelu:
      return body(Activation<Gelu, false>{});
    case ActivationKind::gelu_tanh:
      return body(Activation<GeluTanh, false>{});
    case ActivationKind::swiglu:
      return body(Activation<Silu, true>{});
    case ActivationKind::geglu:
      return body(Activation<Gelu, true>{});
    case ActivationKind::geglu_tanh:
      return body(Activation<GeluTanh, true>{});
  }
}

}  // namespace

void choose_experts(const RouteTokens& op, float* keys, int64_t first_row, int64_t end_row) {
  const int64_t k = op.experts.cols;
  for (int64_t row = first_row; row < end_row; ++row) {
    const float* logits = row_of<const float>(op.logits, row);
    if (keys != nullptr) {
      choice_keys(op, row, keys + row * op.logits.cols);
      if (op.rule.groups > 1) leave_groups(op.rule, k, keys + row * op.logits.cols, op.logits.cols);
      logits = keys + row * op.logits.cols;
    }
    int32_t* const experts = row_of<int32_t>(op.experts, row);
    int32_t last = -1;
    for (int64_t j = 0; j < k; ++j) {
      const int32_t next = last < 0 && j > 0 ? -1 : next_expert(logits, op.logits.cols, last);
      const bool is_number = next >= 0 && logits[next] == logits[next];
      experts[j] = is_number ? next : first_left(experts, j);
      last = is_number ? next : -1;
    }
  }
}

void weigh_experts(const RouteTokens& op, float* weights, int64_t first_row, int64_t end_row) {
  const int64_t k = op.experts.cols;
  const auto scale = static_cast<float>(op.rule.scale);
  for (int64_t row = first_row; row < end_row; ++row) {
    const float* const logits = row_of<const float>(op.logits, row);
    const int32_t* const experts = row_of<const int32_t>(op.experts, row);
    const auto weigh = [&](const auto& score) {
      const float divisor = ChosenScores(op.rule, logits, experts, k, score).divisor;
      for (int64_t j = 0; j < k; ++j) weights[row * k + j] = score(logits[experts[j]]) / divisor * scale;
    };
    if (op.rule.score == RouterScore::softmax) {
      const RowSoftmax softmax(logits, op.logits.cols);
      weigh([&](float logit) { return softmax.share(logit); });
    } else {
      weigh([](float logit) { return sigmoid(logit); });
    }
  }
}

// RETURNS the sum of a row's sigmoids, by which its scores are divided to be shares; 1 for a softmax.
inline float divisor_of_shares(const RouterRule& rule, const float* logits, int64_t count) {
  return rule.score == RouterScore::sigmoid ? sum_of_sigmoids(logits, count) : 1.0F;
}

void routing_statistics(const RouteTokens& op, int64_t sequence, double* sums, double* shares) {
  const int64_t count = op.logits.cols, length = op.rule.own_rows(), k = op.experts.cols;
  for (int64_t e = 0; e < num_routing_sums(count); ++e) sums[e] = 0;
  for (int64_t e = 0; e < count; ++e) shares[e] = 0;
  for (int64_t row = sequence * length; row < (sequence + 1) * length; ++row) {
    const float* const logits = row_of<const float>(op.logits, row);
    const int32_t* const experts = row_of<const int32_t>(op.experts, row);
    for (int64_t j = 0; j < k; ++j) sums[experts[j]] += 1;
    const RowSoftmax softmax(logits, count);
    const bool by_sigmoid = op.rule.score == RouterScore::sigmoid;
    const float total = divisor_of_shares(op.rule, logits, count);
    double entropy = 0;
    for (int64_t e = 0; e < count; ++e) {
      const auto share = static_cast<double>(by_sigmoid ? sigmoid(logits[e]) / total : softmax.share(logits[e]));
      shares[e] += share;
      if (share > 0) entropy -= share * __builtin_log(share);
    }
    const auto log_sum = static_cast<double>(softmax.log_sum());
    sums[count + 1] += log_sum * log_sum;
    sums[count + 2] += entropy;
  }
  double balance = 0;
  if (op.excess.rows > 0) {
    const float* const excess = row_of<const float>(op.excess, 0);
    for (int64_t e = 0; e < count; ++e) balance += (1 + static_cast<double>(excess[e])) * shares[e];
    sums[count] = balance / static_cast<double>(op.rule.balanced_rows);
    return;
  }
  if (op.loads.rows > 0) return;
  for (int64_t e = 0; e < count; ++e) balance += sums[e] * shares[e];
  sums[count] = balance * static_cast<double>(count) / static_cast<double>(length * length * k);
}

double balance_of_run(const AddBalance& op, int64_t run) {
  const int64_t count = op.logits.cols, own = op.rule.own_rows(), length = op.rule.balanced_rows;
  const float* const loads = row_of<const float>(op.loads, run);
  const bool by_sigmoid = op.rule.score == RouterScore::sigmoid;
  double balance = 0;
  for (int64_t row = run * own; row < (run + 1) * own; ++row) {
    const float* const logits = row_of<const float>(op.logits, row);
    const RowSoftmax softmax(logits, count);
    const float total = divisor_of_shares(op.rule, logits, count);
    for (int64_t e = 0; e < count; ++e)
      balance += static_cast<double>(loads[e]) *
                 static_cast<double>(by_sigmoid ? sigmoid(logits[e]) / total : softmax.share(logits[e]));
  }
  return balance * static_cast<double>(count) / static_cast<double>(length * length * op.top_k);
}

void route_tokens_backward(const RouteTokensBackward& op, const float* balance, int64_t first_row, int64_t end_row) {
  const float z_factor = static_cast<float>(op.z_factor) * op.state->loss_scale.value;
  for (int64_t row = first_row; row < end_row; ++row) {
    const float* const of_row = op.balance_factor > 0 ? balance + row / op.rule.own_rows() * op.logits.cols : nullptr;
    if (op.rule.score == RouterScore::softmax) {
      softmax_gradients(op, row, of_row, z_factor);
    } else {
      sigmoid_gradients(op, row, of_row, z_factor);
    }
  }
}

void jitter_rows(const JitterRows& op, int64_t first_row, int64_t end_row) {
  const auto width = static_cast<float>(2 * op.dropout.p), least = static_cast<float>(1 - op.dropout.p);
  with_type(op.x.dtype, [&](auto type) {
    using C = decltype(type);
    for (int64_t row = first_row; row < end_row; ++row) {
      const int64_t of_batch = op.dropout.first_row + row;
      const auto token = static_cast<uint32_t>(op.token_rows.token(of_batch));
      const auto sample = static_cast<uint64_t>(op.dropout.sample_ids[op.token_rows.sequence(of_batch)]);
      const C* const x = row_of<const C>(op.x, row);
      float* const y = row_of<float>(op.y, row);
      for (int64_t first = 0; first < op.x.cols; first += 4) {
        const auto words = philox(op.dropout.key, {static_cast<uint32_t>(first / 4), token,
                                                   static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32)});
        for (int64_t i = first; i < first + 4 && i < op.x.cols; ++i)
          y[i] = load(x + i) * (least + width * uniform_open_closed(words[static_cast<size_t>(i - first)]));
      }
    }
  });
}

void gate_rows(const GateRows& op, int64_t first_row, int64_t end_row) {
  float* const weights = row_of<float>(op.weights, 0);
  for (int64_t row = first_row; row < end_row; ++row) weights[row] = sigmoid(*row_of<const float>(op.logits, row));
}

void gather_rows(const GatherRows& op, int64_t first_row, int64_t end_row) {
  const int32_t* const rows = row_of<const int32_t>(op.rows, 0);
  with_type(op.y.dtype, [&](auto type) {
    using C = decltype(type);
    for (int64_t row = first_row; row < end_row; ++row)
      __builtin_memcpy(row_of<C>(op.y, row), row_of<const C>(op.x, rows[row]),
                       static_cast<size_t>(op.y.cols) * sizeof(C));
  });
}

void combine_rows(const CombineRows& op, int64_t first_row, int64_t end_row) {
  with_type(op.y.dtype, [&](auto type) {
    for (int64_t row = first_row; row < end_row; ++row) combine_row<decltype(type)>(op, row);
  });
}

void expert_activation_forward(const ExpertActivationForward& op, int64_t first_row, int64_t end_row) {
  const float* const weights = row_of<const float>(op.weights, 0);
  with_type(op.y.dtype, [&](auto type) {
    using C = decltype(type);
    with_activation(op.kind, [&](auto activation) {
      using A = decltype(activation);
      for (int64_t row = first_row; row < end_row; ++row)
        weighted_forward_row<typename A::Of, A::is_gated>(row_of<const C>(op.x, row), weights[row],
                                                          row_of<C>(op.y, row), op.y.cols);
    });
  });
}

void expert_activation_backward(const ExpertActivationBackward& op, int64_t first_row, int64_t end_row) {
  const float* const weights = row_of<const float>(op.weights, 0);
  float* const d_weights = row_of<float>(op.d_weights, 0);
  with_type(op.dy.dtype, [&](auto type) {
    using C = decltype(type);
    with_activation(op.kind, [&](auto activation) {
      using A = decltype(activation);
      for (int64_t row = first_row; row < end_row; ++row)
        d_weights[row] = weighted_backward_row<typename A::Of, A::is_gated>(
            row_of<const C>(op.x, row), weights[row], row_of<const C>(op.dy, row), row_of<C>(op.dx, row), op.dy.cols);
    });
  });
}

}  // namespace gptrain::ops::GPTRAIN_ISA
