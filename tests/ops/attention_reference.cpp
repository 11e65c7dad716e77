#include "attention_reference.h"

#include <fmt/format.h>
#include <limits>

#include "reference.h"

namespace gptrain::ops_test {
namespace {

const PhiloxKey dropout_key{0x12345678, 0x9abcdef0};

// Returns a global sample number that needs both words.
int64_t sample_id(int64_t sequence) { return 1000003 * (sequence + 1) + (sequence << 34); }

double keep_factor(const AttentionShape& shape, int64_t sequence, int64_t head, int64_t query, int64_t key) {
  if (shape.dropout <= 0) return 1;
  const auto head_key = philox(dropout_key, {static_cast<uint32_t>(head), 0, 0, 0});
  const auto sample = static_cast<uint64_t>(sample_id(sequence));
  const auto words =
      philox({head_key[0], head_key[1]}, {static_cast<uint32_t>(key / 4), static_cast<uint32_t>(query),
                                          static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32)});
  return words[static_cast<size_t>(key % 4)] < drop_threshold(shape.dropout) ? 0 : 1 / (1 - shape.dropout);
}

// Attention without tiles, in Real. In float it is the plain low-precision version: probabilities, the gradient of the
// scores, and the results are rounded to the dtype.
template <typename Real>
class Reference {
 public:
  Reference(const AttentionShape& shape, DType dtype)
      : shape_(shape), pattern_(shape.used_pattern()), dtype_(dtype), starts_(document_starts(shape)) {}

  AttentionResults run(const AttentionInputs& in) const {
    AttentionResults out;
    out.o = out.dq = zeros(shape_.rows() * shape_.q_cols());
    out.dk = out.dv = zeros(shape_.rows() * shape_.kv_cols());
    out.lse = zeros(shape_.batch * shape_.heads * shape_.tokens);
    out.d_sinks = out.d_sink_sizes = zeros(std::ssize(in.sinks));
    out.largest.assign(static_cast<size_t>(shape_.heads), -std::numeric_limits<double>::infinity());
    std::vector<Real> dk(out.dk.size()), dv(out.dv.size());
    for (int64_t sequence = 0; sequence < shape_.batch; ++sequence)
      for (int64_t head = 0; head < shape_.heads; ++head)
        for (int64_t query = 0; query < shape_.tokens; ++query) row(in, out, dk, dv, sequence, head, query);
    for (size_t i = 0; i < dk.size(); ++i) {
      out.dk[i] = rounded(dk[i]);
      out.dv[i] = rounded(dv[i]);
    }
    return out;
  }

 private:
  static std::vector<double> zeros(int64_t count) { return std::vector<double>(static_cast<size_t>(count)); }

  Real rounded(Real value) const {
    if constexpr (std::is_same_v<Real, float>) {
      return static_cast<float>(ops_test::rounded(static_cast<double>(value), dtype_));
    } else {
      return value;
    }
  }

  bool attends(int64_t sequence, int64_t head, int64_t query, int64_t key) const {
    if (shape_.causal && !pattern_.sees(head, query, key)) return false;
    const auto first = static_cast<size_t>(sequence * shape_.tokens);
    return shape_.documents == Documents::unmasked ||
           starts_[first + static_cast<size_t>(key)] == starts_[first + static_cast<size_t>(query)];
  }

  Real dot(const std::vector<double>& a, size_t a_first, const std::vector<double>& b, size_t b_first) const {
    Real sum = 0;
    for (size_t d = 0; d < static_cast<size_t>(shape_.head_size); ++d) {
      sum += static_cast<Real>(a[a_first + d]) * static_cast<Real>(b[b_first + d]);
    }
    return sum;
  }

  void row(const AttentionInputs& in, AttentionResults& out, std::vector<Real>& dk, std::vector<Real>& dv,
           int64_t sequence, int64_t head, int64_t query) const {
    const int64_t kv_head = head / (shape_.heads / shape_.kv_heads);
    const auto size = static_cast<size_t>(shape_.head_size);
    const auto q = static_cast<size_t>((sequence * shape_.tokens + query) * shape_.q_cols() + head * shape_.head_size);
    const auto kv = [&](int64_t key) {
      return static_cast<size_t>((sequence * shape_.tokens + key) * shape_.kv_cols() + kv_head * shape_.head_size);
    };
    const auto scale = static_cast<Real>(shape_.used_scale());
    std::vector<int64_t> keys;
    for (int64_t key = 0; key < shape_.tokens; ++key) {
      if (attends(sequence, head, query, key)) keys.push_back(key);
    }
    const auto cap = static_cast<Real>(shape_.softcap);
    std::vector<Real> p, keep, slope;
    for (const int64_t key : keys) {
      const Real score = dot(in.q, q, in.k, kv(key)) * scale;
      const Real bounded = cap > 0 ? std::tanh(score / cap) : 0;
      p.push_back(cap > 0 ? cap * bounded : score);
      slope.push_back(1 - bounded * bounded);
      keep.push_back(static_cast<Real>(keep_factor(shape_, sequence, head, query, key)));
    }
    const auto head_index = static_cast<size_t>(head);
    const bool has_sink = !in.sinks.empty();
    const Real sink = has_sink ? static_cast<Real>(in.sinks[head_index]) : 0;
    const Real largest = *std::max_element(p.begin(), p.end());
    out.largest[head_index] = std::max(out.largest[head_index], static_cast<double>(largest));
    const Real max = has_sink ? std::max(largest, sink) : largest;
    Real sum = has_sink ? std::exp(sink - max) : 0;
    for (const Real score : p) sum += std::exp(score - max);
    const auto lse_index = static_cast<size_t>((sequence * shape_.heads + head) * shape_.tokens + query);
    const Real lse = in.lse.empty() ? max + std::log(sum) : static_cast<Real>(in.lse[lse_index]);
    out.lse[lse_index] = lse;
    for (Real& value : p) value = std::exp(value - lse);

    Real delta = 0, magnitudes = 0;
    for (size_t d = 0; d < size; ++d) {
      Real o = 0;
      for (size_t j = 0; j < keys.size(); ++j) o += rounded(p[j] * keep[j]) * static_cast<Real>(in.v[kv(keys[j]) + d]);
      out.o[q + d] = rounded(o);
      delta += rounded(o) * static_cast<Real>(in.d_o[q + d]);
      magnitudes += std::abs(o * static_cast<Real>(in.d_o[q + d]));
    }
    if (has_sink) {
      out.d_sinks[head_index] -= static_cast<double>(std::exp(sink - lse) * delta);
      out.d_sink_sizes[head_index] += static_cast<double>(std::exp(sink - lse) * magnitudes);
    }
    for (size_t j = 0; j < keys.size(); ++j) {
      const int64_t key = keys[j];
      const Real d_probability = dot(in.d_o, q, in.v, kv(key)) * keep[j];
      const Real ds = rounded(p[j] * (d_probability - delta) * slope[j] * scale);
      for (size_t d = 0; d < size; ++d) {
        out.dq[q + d] =
            static_cast<double>(static_cast<Real>(out.dq[q + d]) + ds * static_cast<Real>(in.k[kv(key) + d]));
        dk[kv(key) + d] += ds * static_cast<Real>(in.q[q + d]);
        dv[kv(key) + d] += rounded(p[j] * keep[j]) * static_cast<Real>(in.d_o[q + d]);
      }
    }
    for (size_t d = 0; d < size; ++d) out.dq[q + d] = rounded(static_cast<Real>(out.dq[q + d]));
  }

  AttentionShape shape_;
  AttentionPattern pattern_;
  DType dtype_;
  std::vector<int32_t> starts_;
};

std::string_view documents_text(Documents documents) {
  constexpr std::array<std::string_view, 4> texts = {"", " one document", " a document per token", " documents"};
  return texts[static_cast<size_t>(documents)];
}

std::string pattern_text(const AttentionShape& shape) {
  if (shape.window > 0) return fmt::format(" window {}", shape.window);
  return shape.pattern == AttentionPattern{} ? "" : " " + attention_pattern_word(shape.pattern);
}

Matrix matrix_of(const Operand* operand) { return operand != nullptr ? operand->matrix() : Matrix{}; }

std::vector<double> values_of(const Operand* operand) {
  return operand != nullptr ? operand->values() : std::vector<double>{};
}

void bench(Trial& trial, const AttentionShape& shape, DType dtype, bool backward) {
  const int64_t cols = shape.q_cols();
  const Operand& qkv = trial.input(dtype, shape.rows(), 3 * cols);
  const Operand& d_o = trial.input(dtype, shape.rows(), cols);
  Operand& o = trial.output(dtype, shape.rows(), cols);
  Operand& lse = trial.output(DType::f32, shape.batch * shape.heads, shape.tokens);
  Operand& d_qkv = trial.output(dtype, shape.rows(), 3 * cols);
  const auto part = [cols](const Operand& operand, int64_t i) { return operand.matrix().column_range(i * cols, cols); };
  auto forward = attention_op<AttentionForward>(shape, mask_of(trial, shape), dropout_of(trial, shape));
  forward.q = part(qkv, 0);
  forward.k = part(qkv, 1);
  forward.v = part(qkv, 2);
  forward.o = o.matrix();
  forward.lse = lse.matrix();
  if (!backward) return trial.time(forward);
  trial.run(forward);
  auto op = attention_op<AttentionBackward>(shape, forward.mask, forward.dropout);
  op.q = part(qkv, 0);
  op.k = part(qkv, 1);
  op.v = part(qkv, 2);
  op.o = o.matrix();
  op.lse = lse.matrix();
  op.d_o = d_o.matrix();
  op.dq = part(d_qkv, 0);
  op.dk = part(d_qkv, 1);
  op.dv = part(d_qkv, 2);
  trial.time(op);
}

}  // namespace

std::vector<int32_t> document_starts(const AttentionShape& shape) {
  std::vector<int32_t> starts;
  for (int64_t sequence = 0; sequence < shape.batch; ++sequence) {
    int64_t start = 0;
    for (int64_t token = 0; token < shape.tokens; ++token) {
      if (shape.document_begins(sequence, token)) start = token;
      starts.push_back(static_cast<int32_t>(start));
    }
  }
  return starts;
}

Dropout dropout_of(Trial& trial, const AttentionShape& shape) {
  std::vector<int64_t> ids;
  for (int64_t sequence = 0; sequence < shape.batch; ++sequence) ids.push_back(sample_id(sequence));
  const Operand& operand = trial.input_array(ids);
  return {shape.dropout, dropout_key, Trial::pointer<int64_t>(operand)};
}

AttentionMask mask_of(Trial& trial, const AttentionShape& shape) {
  AttentionMask mask{.causal = shape.causal, .pattern = shape.used_pattern()};
  if (shape.documents != Documents::unmasked)
    mask.document_starts = Trial::pointer<int32_t>(trial.input_array(document_starts(shape)));
  mask.max_documents = shape.max_documents;
  return mask;
}

const Operand* sinks_of(Trial& trial, const AttentionShape& shape) {
  return shape.sinks ? &trial.input(DType::f32, 1, shape.heads) : nullptr;
}

AttentionResults attention_reference(const AttentionShape& shape, DType dtype, const AttentionInputs& inputs) {
  return Reference<double>(shape, dtype).run(inputs);
}

double largest(const std::vector<double>& values) {
  double result = 0;
  for (const double value : values) result = std::max(result, std::abs(value));
  return result;
}

void attention_forward_case(Trial& trial, const AttentionShape& shape, DType dtype) {
  const Operand* const sinks = sinks_of(trial, shape);
  // Some heads' has been raised already by more than any score.
  Operand* const scores = shape.largest ? &trial.in_out(DType::f32, 1, shape.heads, 5) : nullptr;
  std::vector<double> expected = values_of(scores);
  const Operand& q = trial.input(dtype, shape.rows(), shape.q_cols(), 1, shape.gap);
  const Operand& k = trial.input(dtype, shape.rows(), shape.kv_cols(), 1, shape.gap);
  const Operand& v = trial.input(dtype, shape.rows(), shape.kv_cols(), 1, shape.gap);
  Operand& o = trial.output(dtype, shape.rows(), shape.q_cols(), shape.gap);
  Operand& lse = trial.output(DType::f32, shape.batch * shape.heads, shape.tokens);
  auto op = attention_op<AttentionForward>(shape, mask_of(trial, shape), dropout_of(trial, shape));
  op.q = q.matrix();
  op.k = k.matrix();
  op.v = v.matrix();
  op.o = o.matrix();
  op.lse = lse.matrix();
  op.sinks = matrix_of(sinks);
  op.largest = matrix_of(scores);
  trial.run(op);
  const AttentionInputs inputs{.q = q.values(),
                               .k = k.values(),
                               .v = v.values(),
                               .d_o = std::vector<double>(q.values().size()),
                               .sinks = values_of(sinks)};
  const AttentionResults reference = Reference<double>(shape, dtype).run(inputs);
  const AttentionResults plain = Reference<float>(shape, dtype).run(inputs);
  trial.expect_close("o", o, reference.o, plain.o);
  // Scores are sums in float: a few roundings relative to the largest number.
  trial.expect_near("lse", lse, reference.lse, 0x1p-21 * (1 + largest(reference.lse)));
  if (!shape.largest) return;
  for (size_t head = 0; head < expected.size(); ++head)
    expected[head] = std::max(expected[head], reference.largest[head]);
  trial.expect_near("largest", *scores, expected, 0x1p-20 * (1 + largest(reference.largest)));
}

AttentionGradients run_attention_backward(Trial& trial, const AttentionShape& shape, DType dtype) {
  const Operand& q = trial.input(dtype, shape.rows(), shape.q_cols(), 1, shape.gap);
  const Operand& k = trial.input(dtype, shape.rows(), shape.kv_cols(), 1, shape.gap);
  const Operand& v = trial.input(dtype, shape.rows(), shape.kv_cols(), 1, shape.gap);
  const Operand& d_o = trial.input(dtype, shape.rows(), shape.q_cols(), 1, shape.gap);
  const Operand* const sinks = sinks_of(trial, shape);
  Operand* const d_sinks = shape.sinks ? &trial.output(DType::f64, 1, shape.heads) : nullptr;
  const AttentionResults forward =
      Reference<double>(shape, dtype)
          .run({.q = q.values(), .k = k.values(), .v = v.values(), .d_o = d_o.values(), .sinks = values_of(sinks)});
  const Operand& o = trial.input(dtype, shape.rows(), shape.q_cols(), forward.o, shape.gap);
  const Operand& lse = trial.input(DType::f32, shape.batch * shape.heads, shape.tokens, forward.lse);
  Operand& dq = trial.output(dtype, shape.rows(), shape.q_cols(), shape.gap);
  Operand& dk = trial.output(dtype, shape.rows(), shape.kv_cols(), shape.gap);
  Operand& dv = trial.output(dtype, shape.rows(), shape.kv_cols(), shape.gap);
  auto backward = attention_op<AttentionBackward>(shape, mask_of(trial, shape), dropout_of(trial, shape));
  backward.q = q.matrix();
  backward.k = k.matrix();
  backward.v = v.matrix();
  backward.o = o.matrix();
  backward.lse = lse.matrix();
  backward.d_o = d_o.matrix();
  backward.dq = dq.matrix();
  backward.dk = dk.matrix();
  backward.dv = dv.matrix();
  backward.sinks = matrix_of(sinks);
  backward.d_sinks = matrix_of(d_sinks);
  trial.run(backward);
  return {
      .q = q, .k = k, .v = v, .d_o = d_o, .lse = lse, .dq = dq, .dk = dk, .dv = dv, .sinks = sinks, .d_sinks = d_sinks};
}

void attention_backward_case(Trial& trial, const AttentionShape& shape, DType dtype) {
  const AttentionGradients operands = run_attention_backward(trial, shape, dtype);
  AttentionInputs inputs{.q = operands.q.values(),
                         .k = operands.k.values(),
                         .v = operands.v.values(),
                         .d_o = operands.d_o.values(),
                         .sinks = values_of(operands.sinks)};
  const AttentionResults reference = Reference<double>(shape, dtype).run(inputs);
  inputs.lse = operands.lse.values();
  const AttentionResults plain = Reference<float>(shape, dtype).run(inputs);
  trial.expect_close("dv", operands.dv, reference.dv, plain.dv);
  // The op reads o rounded to the dtype, and the log-sum-exps have a few roundings of f32.
  const double of_o = dtype == DType::f32 ? 0 : dtype == DType::bf16 ? 0x1p-9 : 0x1p-12;
  if (shape.sinks)
    trial.expect_near("d_sinks", *operands.d_sinks, reference.d_sinks,
                      (of_o + 0x1p-19) * largest(reference.d_sink_sizes));
  const double products = static_cast<double>(shape.head_size) * largest(inputs.v) * largest(inputs.d_o);
  if (!shape.one_key()) {
    // One key beside a sink: gradients are differences of sums that are nearly equal, of which the rounding is left.
    const double noise = shape.tokens == 1 ? 0x1p-24 * products : 0;
    trial.expect_close("dq", operands.dq, reference.dq, plain.dq, 3, noise * largest(inputs.k));
    trial.expect_close("dk", operands.dk, reference.dk, plain.dk, 3, noise * largest(inputs.q));
    return;
  }
  // A token that attends only to itself: the true gradients are zero, and the rounding of two equal sums is left.
  const double bound = 0x1p-20 * products;
  trial.expect_near("dq", operands.dq, reference.dq, bound * largest(inputs.k));
  trial.expect_near("dk", operands.dk, reference.dk, bound * largest(inputs.q));
}

std::string describe(const AttentionShape& shape, std::string_view rest) {
  return fmt::format("B={} T={} H={} G={} D={}{}{}{}{}{}{}{}{}{}{} {}", shape.batch, shape.tokens, shape.heads,
                     shape.kv_heads, shape.head_size, shape.causal ? " causal" : "",
                     shape.dropout > 0 ? fmt::format(" dropout {}", shape.dropout) : "",
                     shape.scale > 0 ? fmt::format(" scale {}", shape.scale) : "",
                     shape.softcap > 0 ? fmt::format(" softcap {}", shape.softcap) : "", shape.sinks ? " sinks" : "",
                     shape.largest ? " largest" : "", shape.gap > 0 ? " strided" : "", pattern_text(shape),
                     documents_text(shape.documents),
                     shape.max_documents > 0 ? fmt::format(" in room for {}", shape.max_documents) : "", rest);
}

void add_attention_benches(Suite& suite, const AttentionShape& shape, DType dtype) {
  const std::string description = describe(shape, dtype_name(dtype));
  suite.add_bench<AttentionForward>(description, [=](Trial& trial) { bench(trial, shape, dtype, false); });
  suite.add_bench<AttentionBackward>(description, [=](Trial& trial) { bench(trial, shape, dtype, true); });
}

}  // namespace gptrain::ops_test
