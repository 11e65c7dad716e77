// The host harness's attention library. It serves ops with documents only and reads everything about documents from the
// table, so that the table is tested. All other attention uses our own kernels.
#include "fused_attention.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <vector>

#include "host/device_memory.h"
#include "host/recording.h"
#include "ops/fused_attention_policy.h"

namespace gptrain::inline cuda {
namespace {

using Vector = std::vector<float>;

// Rows of 16-bit numbers: one head of a document.
class HeadRows {
 public:
  HeadRows(const Matrix& first, int64_t offset, int64_t head, int64_t head_size)
      : rows_(first), begin_(offset + head * head_size), size_(head_size) {}

  float at(int64_t row, int64_t feature) const {
    const int64_t index = begin_ + row * rows_.stride + feature;
    return rows_.dtype == DType::bf16 ? to_float(rows_.as<bf16>()[index]) : to_float(rows_.as<f16>()[index]);
  }
  void put(int64_t row, int64_t feature, float value) const {
    const int64_t index = begin_ + row * rows_.stride + feature;
    if (rows_.dtype == DType::bf16) {
      rows_.as<bf16>()[index] = to_bf16(value);
    } else {
      rows_.as<f16>()[index] = to_f16(value);
    }
  }
  void put_all(const Vector& values) const {
    for (size_t i = 0; i < values.size(); ++i)
      put(static_cast<int64_t>(i) / size_, static_cast<int64_t>(i) % size_, values[i]);
  }
  float dot(int64_t row, const HeadRows& other, int64_t other_row) const {
    float sum = 0;
    for (int64_t i = 0; i < size_; ++i) sum += at(row, i) * other.at(other_row, i);
    return sum;
  }
  // Adds factor * row to row `to` of sums.
  void add(int64_t row, float factor, Vector& sums, int64_t to) const {
    for (int64_t i = 0; i < size_; ++i) sums[static_cast<size_t>(to * size_ + i)] += factor * at(row, i);
  }

 private:
  Matrix rows_;
  int64_t begin_, size_;
};

// One document of a piece, for one query head.
template <typename Op>
struct Document {
  const Op& op;
  const DocumentTable& table;
  int64_t piece, index, head;

  int64_t length() const { return table.lengths(piece)[index]; }
  int64_t kv_head() const { return head / (op.num_heads / op.num_kv_heads); }
  int64_t first_seen(int64_t query) const {
    return op.mask.window() > 0 ? std::max(query - op.mask.window() + 1, int64_t{0}) : 0;
  }
  float scale() const { return static_cast<float>(op.scale); }

  HeadRows rows(const Matrix& matrix, DocumentOperand operand, int64_t of_head) const {
    const Matrix of_piece = matrix.row_range(piece * table.sequences() * op.sequence_length, 1);
    return {of_piece, table.offsets(piece, operand)[index], of_head, op.head_size};
  }
  HeadRows queries(const Matrix& matrix, DocumentOperand operand) const { return rows(matrix, operand, head); }
  HeadRows keys(const Matrix& matrix, DocumentOperand operand) const { return rows(matrix, operand, kv_head()); }
  float* lse() const {
    const Matrix of_piece = op.lse.row_range(piece * table.sequences() * op.num_heads, 1);
    return of_piece.template as<float>() + table.offsets(piece, DocumentOperand::lse)[index] + head * op.lse.stride;
  }
};

void attend(const Document<AttentionForward>& document) {
  const AttentionForward& op = document.op;
  const HeadRows q = document.queries(op.q, DocumentOperand::q), k = document.keys(op.k, DocumentOperand::k);
  const HeadRows v = document.keys(op.v, DocumentOperand::v), o = document.queries(op.o, DocumentOperand::o);
  Vector sums(static_cast<size_t>(document.length() * op.head_size));
  for (int64_t query = 0; query < document.length(); ++query) {
    Vector scores;
    for (int64_t key = document.first_seen(query); key <= query; ++key)
      scores.push_back(document.scale() * q.dot(query, k, key));
    const float largest = *std::max_element(scores.begin(), scores.end());
    float sum = 0;
    for (const float score : scores) sum += std::exp(score - largest);
    const float lse = document.lse()[query] = largest + std::log(sum);
    for (size_t i = 0; i < scores.size(); ++i)
      v.add(document.first_seen(query) + static_cast<int64_t>(i), std::exp(scores[i] - lse), sums, query);
  }
  o.put_all(sums);
}

// Adds to dk and dv the shares of all query heads of a group.
void attend_back(const Document<AttentionBackward>& document, Vector& dk, Vector& dv) {
  const AttentionBackward& op = document.op;
  const HeadRows q = document.queries(op.q, DocumentOperand::q), k = document.keys(op.k, DocumentOperand::k);
  const HeadRows v = document.keys(op.v, DocumentOperand::v), o = document.queries(op.o, DocumentOperand::o);
  const HeadRows d_o = document.queries(op.d_o, DocumentOperand::d_o);
  Vector dq(static_cast<size_t>(document.length() * op.head_size));
  for (int64_t query = 0; query < document.length(); ++query) {
    const float delta = d_o.dot(query, o, query);
    for (int64_t key = document.first_seen(query); key <= query; ++key) {
      const float p = std::exp(document.scale() * q.dot(query, k, key) - document.lse()[query]);
      const float ds = document.scale() * p * (d_o.dot(query, v, key) - delta);
      d_o.add(query, p, dv, key);
      q.add(query, ds, dk, key);
      k.add(key, ds, dq, query);
    }
  }
  document.queries(op.dq, DocumentOperand::dq).put_all(dq);
}

class HostFusedAttention final : public FusedAttention {
 public:
  explicit HostFusedAttention(Stream stream) : stream_(stream) {}

  // Backward has smaller pieces than forward, as limited memory may require.
  AttentionPieces pieces(const AttentionForward& op) override { return pieces_of(op, op.batch); }
  AttentionPieces pieces(const AttentionBackward& op) override {
    return pieces_of(op, op.batch % 2 == 0 ? op.batch / 2 : 1);
  }

  void run(const AttentionForward& op, const DocumentTable* documents, std::byte*) override {
    start(op, documents, [](const AttentionForward& of, const DocumentTable& table, int64_t piece, int64_t index) {
      for (int64_t head = 0; head < of.num_heads; ++head) attend({of, table, piece, index, head});
    });
  }
  void run(const AttentionBackward& op, const DocumentTable* documents, std::byte*) override {
    start(op, documents, [](const AttentionBackward& of, const DocumentTable& table, int64_t piece, int64_t index) {
      const int64_t group = of.num_heads / of.num_kv_heads;
      for (int64_t first = 0; first < of.num_heads; first += group) {
        const Document<AttentionBackward> document{of, table, piece, index, first};
        Vector dk(static_cast<size_t>(document.length() * of.head_size)), dv = dk;
        for (int64_t head = first; head < first + group; ++head) attend_back({of, table, piece, index, head}, dk, dv);
        document.keys(of.dk, DocumentOperand::dk).put_all(dk);
        document.keys(of.dv, DocumentOperand::dv).put_all(dv);
      }
    });
  }

 private:
  template <typename Op>
  static AttentionPieces pieces_of(const Op& op, int64_t sequences) {
    return {op.mask.max_documents > 0 ? sequences : 0, ""};
  }

  template <typename Op, typename Body>
  void start(const Op& op, const DocumentTable* documents, const Body& body) const {
    if (documents == nullptr) throw std::logic_error("the host harness has fused attention for documents only");
    simt::start(stream_, [op, table = *documents, body] {
      const simt::DeviceAccess access;
      for (int64_t piece = 0; piece < table.num_pieces(); ++piece)
        for (int64_t index = 0; index < table.documents(); ++index) body(op, table, piece, index);
    });
  }

  Stream stream_;
};

}  // namespace

std::unique_ptr<FusedAttention> make_fused_attention(Stream stream, const FusedAttentionOptions&) {
  return std::make_unique<HostFusedAttention>(stream);
}

}  // namespace gptrain::cuda
