// Cases of attention, forward and backward.
#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <limits>

#include "attention_shapes.h"
#include "harness.h"
#include "reference.h"

namespace gptrain::ops_test::cases_attention {
namespace {

const PhiloxKey dropout_key{0x12345678, 0x9abcdef0};

// Returns a global sample number that needs both words.
int64_t sample_id(int64_t sequence) { return 1000003 * (sequence + 1) + (sequence << 34); }

Dropout dropout_of(Trial& trial, const Shape& shape) {
  std::vector<int64_t> ids;
  for (int64_t sequence = 0; sequence < shape.batch; ++sequence) ids.push_back(sample_id(sequence));
  const Operand& operand = trial.input_array(ids);
  return {shape.dropout, dropout_key, Trial::pointer<int64_t>(operand)};
}

// Returns the start of the document of each token in each sequence.
std::vector<int32_t> document_starts(const Shape& shape) {
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

AttentionMask mask_of(Trial& trial, const Shape& shape) {
  AttentionMask mask{.causal = shape.causal, .window = shape.window};
  if (shape.documents != Documents::unmasked)
    mask.document_starts = Trial::pointer<int32_t>(trial.input_array(document_starts(shape)));
  mask.max_documents = shape.max_documents;
  return mask;
}

double keep_factor(const Shape& shape, int64_t sequence, int64_t head, int64_t query, int64_t key) {
  if (shape.dropout <= 0) return 1;
  const auto head_key = philox(dropout_key, {static_cast<uint32_t>(head), 0, 0, 0});
  const auto sample = static_cast<uint64_t>(sample_id(sequence));
  const auto words =
      philox({head_key[0], head_key[1]}, {static_cast<uint32_t>(key / 4), static_cast<uint32_t>(query),
                                          static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32)});
  return words[static_cast<size_t>(key % 4)] < drop_threshold(shape.dropout) ? 0 : 1 / (1 - shape.dropout);
}

struct Inputs {
  std::vector<double> q, k, v, d_o;
  std::vector<double> lse = {};  // given to backward; empty: the log-sum-exp of forward
};
struct Results {
  std::vector<double> o, lse, dq, dk, dv;
};

// Attention without tiles, in Real. In float it is the plain low-precision version: probabilities, the gradient of the
// scores, and the results are rounded to the dtype.
template <typename Real>
class Reference {
 public:
  Reference(const Shape& shape, DType dtype) : shape_(shape), dtype_(dtype), starts_(document_starts(shape)) {}

  Results run(const Inputs& in) const {
    Results out;
    out.o = out.dq = zeros(shape_.rows() * shape_.q_cols());
    out.dk = out.dv = zeros(shape_.rows() * shape_.kv_cols());
    out.lse = zeros(shape_.batch * shape_.heads * shape_.tokens);
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

  bool attends(int64_t sequence, int64_t query, int64_t key) const {
    if (shape_.causal && key > query) return false;
    if (shape_.window > 0 && query - key >= shape_.window) return false;
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

  void row(const Inputs& in, Results& out, std::vector<Real>& dk, std::vector<Real>& dv, int64_t sequence, int64_t head,
           int64_t query) const {
    const int64_t kv_head = head / (shape_.heads / shape_.kv_heads);
    const auto size = static_cast<size_t>(shape_.head_size);
    const auto q = static_cast<size_t>((sequence * shape_.tokens + query) * shape_.q_cols() + head * shape_.head_size);
    const auto kv = [&](int64_t key) {
      return static_cast<size_t>((sequence * shape_.tokens + key) * shape_.kv_cols() + kv_head * shape_.head_size);
    };
    const auto scale = static_cast<Real>(shape_.used_scale());
    std::vector<int64_t> keys;
    for (int64_t key = 0; key < shape_.tokens; ++key) {
      if (attends(sequence, query, key)) keys.push_back(key);
    }
    std::vector<Real> p, keep, dp;
    for (const int64_t key : keys) {
      p.push_back(dot(in.q, q, in.k, kv(key)) * scale);
      keep.push_back(static_cast<Real>(keep_factor(shape_, sequence, head, query, key)));
    }
    const Real max = *std::max_element(p.begin(), p.end());
    Real sum = 0;
    for (const Real score : p) sum += std::exp(score - max);
    const auto lse_index = static_cast<size_t>((sequence * shape_.heads + head) * shape_.tokens + query);
    const Real lse = in.lse.empty() ? max + std::log(sum) : static_cast<Real>(in.lse[lse_index]);
    out.lse[lse_index] = lse;
    for (Real& value : p) value = std::exp(value - lse);

    Real delta = 0;
    for (size_t d = 0; d < size; ++d) {
      Real o = 0;
      for (size_t j = 0; j < keys.size(); ++j) o += rounded(p[j] * keep[j]) * static_cast<Real>(in.v[kv(keys[j]) + d]);
      out.o[q + d] = rounded(o);
      delta += rounded(o) * static_cast<Real>(in.d_o[q + d]);
    }
    for (size_t j = 0; j < keys.size(); ++j) {
      const int64_t key = keys[j];
      const Real d_probability = dot(in.d_o, q, in.v, kv(key)) * keep[j];
      const Real ds = rounded(p[j] * (d_probability - delta) * scale);
      for (size_t d = 0; d < size; ++d) {
        out.dq[q + d] =
            static_cast<double>(static_cast<Real>(out.dq[q + d]) + ds * static_cast<Real>(in.k[kv(key) + d]));
        dk[kv(key) + d] += ds * static_cast<Real>(in.q[q + d]);
        dv[kv(key) + d] += rounded(p[j] * keep[j]) * static_cast<Real>(in.d_o[q + d]);
      }
    }
    for (size_t d = 0; d < size; ++d) out.dq[q + d] = rounded(static_cast<Real>(out.dq[q + d]));
  }

  Shape shape_;
  DType dtype_;
  std::vector<int32_t> starts_;
};

double largest(const std::vector<double>& values) {
  double result = 0;
  for (const double value : values) result = std::max(result, std::abs(value));
  return result;
}

void forward_case(Trial& trial, const Shape& shape, DType dtype) {
  const Operand& q = trial.input(dtype, shape.rows(), shape.q_cols(), 1, shape.gap);
  const Operand& k = trial.input(dtype, shape.rows(), shape.kv_cols(), 1, shape.gap);
  const Operand& v = trial.input(dtype, shape.rows(), shape.kv_cols(), 1, shape.gap);
  Operand& o = trial.output(dtype, shape.rows(), shape.q_cols(), shape.gap);
  Operand& lse = trial.output(DType::f32, shape.batch * shape.heads, shape.tokens);
  trial.run(AttentionForward{.batch = shape.batch,
                             .sequence_length = shape.tokens,
                             .num_heads = shape.heads,
                             .num_kv_heads = shape.kv_heads,
                             .head_size = shape.head_size,
                             .scale = shape.used_scale(),
                             .mask = mask_of(trial, shape),
                             .dropout = dropout_of(trial, shape),
                             .q = q.matrix(),
                             .k = k.matrix(),
                             .v = v.matrix(),
                             .o = o.matrix(),
                             .lse = lse.matrix()});
  const Inputs inputs{.q = q.values(), .k = k.values(), .v = v.values(), .d_o = std::vector<double>(q.values().size())};
  const Results reference = Reference<double>(shape, dtype).run(inputs);
  const Results plain = Reference<float>(shape, dtype).run(inputs);
  trial.expect_close("o", o, reference.o, plain.o);
  // Scores are sums in float: a few roundings relative to the largest number.
  trial.expect_near("lse", lse, reference.lse, 0x1p-21 * (1 + largest(reference.lse)));
}

struct BackwardOperands {
  const Operand &q, &k, &v, &d_o, &lse;
  Operand &dq, &dk, &dv;
};

// Runs the op on outputs and log-sum-exps of the float64 reference.
BackwardOperands run_backward(Trial& trial, const Shape& shape, DType dtype) {
  const Operand& q = trial.input(dtype, shape.rows(), shape.q_cols(), 1, shape.gap);
  const Operand& k = trial.input(dtype, shape.rows(), shape.kv_cols(), 1, shape.gap);
  const Operand& v = trial.input(dtype, shape.rows(), shape.kv_cols(), 1, shape.gap);
  const Operand& d_o = trial.input(dtype, shape.rows(), shape.q_cols(), 1, shape.gap);
  const Results forward = Reference<double>(shape, dtype).run({q.values(), k.values(), v.values(), d_o.values()});
  const Operand& o = trial.input(dtype, shape.rows(), shape.q_cols(), forward.o, shape.gap);
  const Operand& lse = trial.input(DType::f32, shape.batch * shape.heads, shape.tokens, forward.lse);
  Operand& dq = trial.output(dtype, shape.rows(), shape.q_cols(), shape.gap);
  Operand& dk = trial.output(dtype, shape.rows(), shape.kv_cols(), shape.gap);
  Operand& dv = trial.output(dtype, shape.rows(), shape.kv_cols(), shape.gap);
  trial.run(AttentionBackward{.batch = shape.batch,
                              .sequence_length = shape.tokens,
                              .num_heads = shape.heads,
                              .num_kv_heads = shape.kv_heads,
                              .head_size = shape.head_size,
                              .scale = shape.used_scale(),
                              .mask = mask_of(trial, shape),
                              .dropout = dropout_of(trial, shape),
                              .q = q.matrix(),
                              .k = k.matrix(),
                              .v = v.matrix(),
                              .o = o.matrix(),
                              .lse = lse.matrix(),
                              .d_o = d_o.matrix(),
                              .dq = dq.matrix(),
                              .dk = dk.matrix(),
                              .dv = dv.matrix()});
  return {q, k, v, d_o, lse, dq, dk, dv};
}

void backward_case(Trial& trial, const Shape& shape, DType dtype) {
  const BackwardOperands operands = run_backward(trial, shape, dtype);
  Inputs inputs{
      .q = operands.q.values(), .k = operands.k.values(), .v = operands.v.values(), .d_o = operands.d_o.values()};
  const Results reference = Reference<double>(shape, dtype).run(inputs);
  inputs.lse = operands.lse.values();
  const Results plain = Reference<float>(shape, dtype).run(inputs);
  trial.expect_close("dv", operands.dv, reference.dv, plain.dv);
  if (!shape.one_key()) {
    trial.expect_close("dq", operands.dq, reference.dq, plain.dq);
    trial.expect_close("dk", operands.dk, reference.dk, plain.dk);
    return;
  }
  // A token that attends only to itself: the true gradients are zero, and the rounding of two equal sums is left.
  const double bound = 0x1p-20 * static_cast<double>(shape.head_size) * largest(inputs.v) * largest(inputs.d_o);
  trial.expect_near("dq", operands.dq, reference.dq, bound * largest(inputs.k));
  trial.expect_near("dk", operands.dk, reference.dk, bound * largest(inputs.q));
}

// Compares the gradients with central differences of the float64 forward, for some elements of each input.
void derivative_case(Trial& trial, const Shape& shape) {
  const BackwardOperands operands = run_backward(trial, shape, DType::f32);
  Inputs inputs{
      .q = operands.q.values(), .k = operands.k.values(), .v = operands.v.values(), .d_o = operands.d_o.values()};
  const auto loss = [&] {
    const std::vector<double> o = Reference<double>(shape, DType::f32).run(inputs).o;
    double sum = 0;
    for (size_t i = 0; i < o.size(); ++i) sum += o[i] * inputs.d_o[i];
    return sum;
  };
  const auto compare = [&](std::string_view what, std::vector<double>& values, const Operand& gradient) {
    const std::vector<double> actual = gradient.values();
    constexpr double step = 1e-4;
    constexpr double bound = 1e-5;  // the op's own rounding; that of the differences is 1e-8
    for (int i = 0; i < 12; ++i) {
      const auto element = static_cast<size_t>(trial.random.below(static_cast<int64_t>(values.size())));
      const double before = values[element];
      values[element] = before + step;
      const double up = loss();
      values[element] = before - step;
      const double down = loss();
      values[element] = before;
      const double expected = (up - down) / (2 * step);
      trial.expect_true(
          std::abs(actual[element] - expected) <= bound * (1 + std::abs(expected)),
          fmt::format("{} of element {} is {}, central difference {}", what, element, actual[element], expected));
    }
  };
  compare("dq", inputs.q, operands.dq);
  compare("dk", inputs.k, operands.dk);
  compare("dv", inputs.v, operands.dv);
}

// Checks that a rank with some heads computes for them the bits of a rank with all heads: slices of q, k and v, of o
// and the gradients.
void head_slices_case(Trial& trial, const Shape& shape, DType dtype) {
  const Operand& q = trial.input(dtype, shape.rows(), shape.q_cols());
  const Operand& k = trial.input(dtype, shape.rows(), shape.kv_cols());
  const Operand& v = trial.input(dtype, shape.rows(), shape.kv_cols());
  const Operand& d_o = trial.input(dtype, shape.rows(), shape.q_cols());
  const Dropout dropout = dropout_of(trial, shape);
  const AttentionMask mask = mask_of(trial, shape);
  // Returns o, dq, dk, dv of heads [first, first + heads) and their key-value heads.
  const auto run = [&](int64_t first, int64_t heads) {
    const int64_t kv_heads = heads * shape.kv_heads / shape.heads;
    const int64_t kv_first = first * shape.kv_heads / shape.heads;
    const auto of_heads = [&](const Operand& operand) {
      return operand.matrix().column_range(first * shape.head_size, heads * shape.head_size);
    };
    const auto of_kv_heads = [&](const Operand& operand) {
      return operand.matrix().column_range(kv_first * shape.head_size, kv_heads * shape.head_size);
    };
    Operand& o = trial.output(dtype, shape.rows(), heads * shape.head_size);
    Operand& lse = trial.output(DType::f32, shape.batch * heads, shape.tokens);
    Dropout own = dropout;
    own.first_head = first;
    const AttentionForward forward{.batch = shape.batch,
                                   .sequence_length = shape.tokens,
                                   .num_heads = heads,
                                   .num_kv_heads = kv_heads,
                                   .head_size = shape.head_size,
                                   .scale = shape.used_scale(),
                                   .mask = mask,
                                   .dropout = own,
                                   .q = of_heads(q),
                                   .k = of_kv_heads(k),
                                   .v = of_kv_heads(v),
                                   .o = o.matrix(),
                                   .lse = lse.matrix()};
    trial.run(forward);
    Operand& dq = trial.output(dtype, shape.rows(), heads * shape.head_size);
    Operand& dk = trial.output(dtype, shape.rows(), kv_heads * shape.head_size);
    Operand& dv = trial.output(dtype, shape.rows(), kv_heads * shape.head_size);
    trial.run(AttentionBackward{.batch = shape.batch,
                                .sequence_length = shape.tokens,
                                .num_heads = heads,
                                .num_kv_heads = kv_heads,
                                .head_size = shape.head_size,
                                .scale = forward.scale,
                                .mask = forward.mask,
                                .dropout = own,
                                .q = forward.q,
                                .k = forward.k,
                                .v = forward.v,
                                .o = o.matrix(),
                                .lse = lse.matrix(),
                                .d_o = of_heads(d_o),
                                .dq = dq.matrix(),
                                .dk = dk.matrix(),
                                .dv = dv.matrix()});
    return std::array<const Operand*, 4>{&o, &dq, &dk, &dv};
  };
  const auto whole = run(0, shape.heads);
  constexpr std::array<std::string_view, 4> names{"o", "dq", "dk", "dv"};
  const int64_t slice = shape.heads / shape.kv_heads;  // the fewest that need no replica
  for (int64_t first = 0; first < shape.heads; first += slice) {
    const auto part = run(first, slice);
    for (size_t i = 0; i < names.size(); ++i) {
      const Matrix columns = part[i]->matrix();
      const int64_t start = columns.cols * (first / slice);
      bool equal = true;
      for (int64_t row = 0; row < columns.rows; ++row)
        for (int64_t col = 0; col < columns.cols; ++col)
          equal = equal && part[i]->at(row, col) == whole[i]->at(row, start + col);
      trial.expect_true(equal,
                        fmt::format("{} of heads {} to {}: the bits of the whole", names[i], first, first + slice));
    }
  }
}

// Checks that documents of a packed sequence give the bits that each gives alone, whatever the other holds: if it
// begins at a tile boundary, no query of its tiles reads a tile of the other. The document chosen by `first_is_other`
// is NaN.
void packed_case(Trial& trial, DType dtype, int64_t window, bool first_is_other) {
  constexpr int64_t first = 64, second = 70, head_size = 24;
  const Shape shape{
      .batch = 1, .tokens = first + second, .heads = 1, .kv_heads = 1, .head_size = head_size, .window = window};
  const int64_t from = first_is_other ? first : 0, tokens = first_is_other ? second : first;
  std::vector<int32_t> starts(first + second, 0);
  std::fill(starts.begin() + first, starts.end(), first);
  const int32_t* const document_starts = Trial::pointer<int32_t>(trial.input_array(starts));
  // Returns normal numbers, and a copy with the other document's rows replaced.
  const auto operand = [&](int64_t cols) {
    const Operand& sound = trial.input(dtype, shape.rows(), cols);
    std::vector<double> values = sound.values();
    for (int64_t row = 0; row < shape.rows(); ++row) {
      const bool of_other = row < from || row >= from + tokens;
      for (int64_t col = 0; col < cols && of_other; ++col)
        values[static_cast<size_t>(row * cols + col)] = std::numeric_limits<double>::quiet_NaN();
    }
    return std::array<Matrix, 2>{trial.input(dtype, shape.rows(), cols, values).matrix(), sound.matrix()};
  };
  const auto q = operand(shape.q_cols()), k = operand(shape.kv_cols()), v = operand(shape.kv_cols()),
             d_o = operand(shape.q_cols());
  // Returns o, dq, dk, dv of the packed sequence, or of the document's rows as a sequence.
  const auto run = [&](bool packed) {
    const int64_t length = packed ? shape.rows() : tokens;
    const auto rows = [&](const std::array<Matrix, 2>& both) {
      return packed ? both[0] : both[1].row_range(from, tokens);
    };
    Operand& o = trial.output(dtype, length, shape.q_cols());
    Operand& lse = trial.output(DType::f32, shape.heads, length);
    const AttentionForward forward{.batch = 1,
                                   .sequence_length = length,
                                   .num_heads = shape.heads,
                                   .num_kv_heads = shape.kv_heads,
                                   .head_size = head_size,
                                   .scale = shape.used_scale(),
                                   .mask = {.window = window, .document_starts = packed ? document_starts : nullptr},
                                   .dropout = {},
                                   .q = rows(q),
                                   .k = rows(k),
                                   .v = rows(v),
                                   .o = o.matrix(),
                                   .lse = lse.matrix()};
    trial.run(forward);
    Operand& dq = trial.output(dtype, length, shape.q_cols());
    Operand& dk = trial.output(dtype, length, shape.kv_cols());
    Operand& dv = trial.output(dtype, length, shape.kv_cols());
    trial.run(AttentionBackward{.batch = 1,
                                .sequence_length = length,
                                .num_heads = shape.heads,
                                .num_kv_heads = shape.kv_heads,
                                .head_size = head_size,
                                .scale = shape.used_scale(),
                                .mask = forward.mask,
                                .dropout = {},
                                .q = forward.q,
                                .k = forward.k,
                                .v = forward.v,
                                .o = o.matrix(),
                                .lse = lse.matrix(),
                                .d_o = rows(d_o),
                                .dq = dq.matrix(),
                                .dk = dk.matrix(),
                                .dv = dv.matrix()});
    return std::array<const Operand*, 4>{&o, &dq, &dk, &dv};
  };
  const auto alone = run(false), packed = run(true);
  constexpr std::array<std::string_view, 4> names{"o", "dq", "dk", "dv"};
  for (size_t i = 0; i < names.size(); ++i) {
    bool equal = true;
    for (int64_t row = 0; row < tokens; ++row)
      for (int64_t col = 0; col < alone[i]->matrix().cols; ++col)
        equal = equal && alone[i]->at(row, col) == packed[i]->at(from + row, col);
    trial.expect_true(equal, fmt::format("{} of the packed document: the bits of the document alone", names[i]));
  }
}

void rejected_case(Trial& trial) {
  const Operand& x = trial.input(DType::f32, 4, 8);
  const Operand& starts = trial.input_array(std::vector<int32_t>(4, 0));
  const auto reject = [&](const AttentionMask& mask, std::string_view why) {
    trial.expect_rejected(AttentionForward{.batch = 1,
                                           .sequence_length = 4,
                                           .num_heads = 1,
                                           .num_kv_heads = 1,
                                           .head_size = 8,
                                           .scale = 1,
                                           .mask = mask,
                                           .dropout = {},
                                           .q = x.matrix(),
                                           .k = x.matrix(),
                                           .v = x.matrix(),
                                           .o = trial.output(DType::f32, 4, 8).matrix(),
                                           .lse = trial.output(DType::f32, 1, 4).matrix()},
                          why);
  };
  reject({.causal = false, .window = 2}, "a window without a causal mask");
  reject({.causal = false, .document_starts = Trial::pointer<int32_t>(starts)}, "documents without a causal mask");
  reject({.window = -1}, "a negative window");
  reject({.max_documents = 1}, "room for documents without documents");
  reject({.document_starts = Trial::pointer<int32_t>(starts), .max_documents = -1}, "negative room for documents");
}

std::string_view documents_text(Documents documents) {
  constexpr std::array<std::string_view, 4> texts = {"", " one document", " a document per token", " documents"};
  return texts[static_cast<size_t>(documents)];
}

std::string describe(const Shape& shape, std::string_view rest) {
  return fmt::format("B={} T={} H={} G={} D={}{}{}{}{}{}{}{} {}", shape.batch, shape.tokens, shape.heads,
                     shape.kv_heads, shape.head_size, shape.causal ? " causal" : "",
                     shape.dropout > 0 ? fmt::format(" dropout {}", shape.dropout) : "",
                     shape.scale > 0 ? fmt::format(" scale {}", shape.scale) : "", shape.gap > 0 ? " strided" : "",
                     shape.window > 0 ? fmt::format(" window {}", shape.window) : "", documents_text(shape.documents),
                     shape.max_documents > 0 ? fmt::format(" in room for {}", shape.max_documents) : "", rest);
}

void add_cases(Suite& suite) {
  std::vector<Shape> all(std::begin(shapes), std::end(shapes));
  all.insert(all.end(), std::begin(masked_shapes), std::end(masked_shapes));
  for (const Shape& shape : all) {
    for (const DType dtype : compute_dtypes) {
      if (is_left_out(dtype, &shape - all.data() + 2) && shape.head_size < 256) continue;
      const std::string description = describe(shape, dtype_name(dtype));
      suite.add<AttentionForward>(description, [=](Trial& trial) { forward_case(trial, shape, dtype); });
      suite.add<AttentionBackward>(description, [=](Trial& trial) { backward_case(trial, shape, dtype); });
    }
  }
  for (const Shape& shape : document_shapes) {
    for (const DType dtype : {DType::bf16, DType::f16}) {
      if (is_left_out(dtype, &shape - document_shapes)) continue;
      const std::string description = describe(shape, dtype_name(dtype));
      suite.add<AttentionForward>(description, [=](Trial& trial) { forward_case(trial, shape, dtype); });
      suite.add<AttentionBackward>(description, [=](Trial& trial) { backward_case(trial, shape, dtype); });
    }
  }
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const bool first_is_other : {true, false})
      suite.add<AttentionBackward>(
          fmt::format("two documents, the {} of NaN {}", first_is_other ? "first" : "second", dtype_name(dtype)),
          [=](Trial& trial) { packed_case(trial, dtype, first_is_other ? 0 : 33, first_is_other); });
  }
  suite.add<AttentionForward>("masks that are refused", rejected_case);
  for (const Shape& shape : sliced_shapes) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      suite.add<AttentionForward>(describe(shape, fmt::format("{} slices of heads", dtype_name(dtype))),
                                  [=](Trial& trial) { head_slices_case(trial, shape, dtype); });
    }
  }
  for (const Shape& shape : differentiated_shapes) {
    suite.add<AttentionBackward>(describe(shape, "f32 central differences"),
                                 [=](Trial& trial) { derivative_case(trial, shape); });
  }
}

// Attention of GPT-2 124M: q, k and v are slices of one matrix.
void bench(Trial& trial, const Shape& shape, DType dtype, bool backward) {
  const int64_t cols = shape.q_cols();
  const Operand& qkv = trial.input(dtype, shape.rows(), 3 * cols);
  const Operand& d_o = trial.input(dtype, shape.rows(), cols);
  Operand& o = trial.output(dtype, shape.rows(), cols);
  Operand& lse = trial.output(DType::f32, shape.batch * shape.heads, shape.tokens);
  Operand& d_qkv = trial.output(dtype, shape.rows(), 3 * cols);
  const auto part = [cols](const Operand& operand, int64_t i) { return operand.matrix().column_range(i * cols, cols); };
  const AttentionForward forward{.batch = shape.batch,
                                 .sequence_length = shape.tokens,
                                 .num_heads = shape.heads,
                                 .num_kv_heads = shape.kv_heads,
                                 .head_size = shape.head_size,
                                 .scale = shape.used_scale(),
                                 .mask = mask_of(trial, shape),
                                 .dropout = dropout_of(trial, shape),
                                 .q = part(qkv, 0),
                                 .k = part(qkv, 1),
                                 .v = part(qkv, 2),
                                 .o = o.matrix(),
                                 .lse = lse.matrix()};
  if (!backward) return trial.time(forward);
  trial.run(forward);
  trial.time(AttentionBackward{.batch = shape.batch,
                               .sequence_length = shape.tokens,
                               .num_heads = shape.heads,
                               .num_kv_heads = shape.kv_heads,
                               .head_size = shape.head_size,
                               .scale = shape.used_scale(),
                               .mask = forward.mask,
                               .dropout = forward.dropout,
                               .q = part(qkv, 0),
                               .k = part(qkv, 1),
                               .v = part(qkv, 2),
                               .o = o.matrix(),
                               .lse = lse.matrix(),
                               .d_o = d_o.matrix(),
                               .dq = part(d_qkv, 0),
                               .dk = part(d_qkv, 1),
                               .dv = part(d_qkv, 2)});
}

void add_benches(Suite& suite) {
  for (const Shape& shape : bench_shapes) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      if (dtype == DType::f32 && shape.documents == Documents::several) continue;
      const std::string description = describe(shape, dtype_name(dtype));
      suite.add_bench<AttentionForward>(description, [=](Trial& trial) { bench(trial, shape, dtype, false); });
      suite.add_bench<AttentionBackward>(description, [=](Trial& trial) { bench(trial, shape, dtype, true); });
    }
  }
}

const Registration cases(add_cases);
const Registration benches(add_benches);

}  // namespace
}  // namespace gptrain::ops_test::cases_attention
