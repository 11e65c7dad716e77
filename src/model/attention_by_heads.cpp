// Attention where ranks share sequences (arXiv 2309.14509): the ranks exchange tokens for heads, so that each has the
// whole sequences for some of the heads, and back.
//
// A rank's tensors that are exchanged have a block of T / c rows for each (sequence, rank of the context group), in
// that order, so one all-to-all per sequence moves them, and the blocks of a sequence that arrive are the sequence.
#include <algorithm>
#include <utility>

#include "model/attention_core.h"
#include "model/saved_matrix.h"

namespace gptrain::inline model {
namespace {

class AttentionByHeads final : public AttentionCore {
 public:
  AttentionByHeads(const LayerContext& context, LayerLayout& layout, const Design& design);

  void forward(const LayerCall& call, const QueryKeyValue& in, const Matrix& o) override;
  void backward(const LayerCall& call, const QueryKeyValue& in, const Matrix& o, const Matrix& d_o,
                const QueryKeyValue& d_in) override;
  bool reads_operands() const override { return false; }

 private:
  int64_t num_ranks() const { return context_.context.axis.size; }
  int64_t q_width() const { return heads_.queries * model().head_size; }
  int64_t kv_width() const { return heads_.keys * model().head_size; }
  // RETURNS the first column of the keys and values that a rank's queries read, in this rank's rows.
  int64_t first_kv_column(int64_t rank) const {
    return rank * tensor_rank_heads(context_).keys / num_ranks() * model().head_size;
  }
  // RETURNS memory for exchanged columns.
  Matrix take_blocks(WorkspaceFrame& frame, int64_t cols) const {
    return frame.take(context_.compute(), context_.shape.batch * context_.shape.sequence_length, cols);
  }
  // RETURNS the queries, keys and values of exchanged columns.
  QueryKeyValue split(const Matrix& heads) const {
    return {heads.column_range(0, q_width()), heads.column_range(q_width(), kv_width()),
            heads.column_range(q_width() + kv_width(), kv_width())};
  }
  // Calls body(rows of the sequence on this rank, rank, its block of the sequence) for all blocks.
  template <typename Body>
  void for_each_block(const Matrix& blocks, const Body& body) const;
  void copy(const Matrix& from, const Matrix& to) const { context_.backend.run(Cast{.from = from, .to = to}); }
  // Copies the heads of each rank into its blocks, or back.
  void pack(const Matrix& rows, const Matrix& blocks) const;
  void unpack(const Matrix& blocks, const Matrix& rows) const;
  // Sums the gradients that the ranks have for the same heads of keys or values, in f32 and in rank order, into `rows`.
  // `first`: first column in the blocks.
  void sum_parts(const LayerCall& call, const Matrix& blocks, int64_t first, const Matrix& rows) const;
  // Exchanges columns of this rank's rows for the heads of whole sequences.
  void exchange_heads(const LayerCall& call, const Matrix& rows, const Matrix& heads) const;
  // RETURNS attention's output for the heads: the saved one or, if none is saved, one exchanged from this rank's rows
  // `o`.
  Matrix output_of_heads(const LayerCall& call, const Matrix& o, WorkspaceFrame& frame) const;
  // Sends each rank its blocks and receives this rank's.
  void exchange(const Matrix& sent, const Matrix& received) const;

  // Whole sequences of this rank's heads. `o_` is none if the output is saved as codes, which have this rank's rows
  // alone.
  LayerLayout::Field qkv_, o_ = LayerLayout::none;
};

AttentionByHeads::AttentionByHeads(const LayerContext& context, LayerLayout& layout, const Design& design)
    : AttentionCore(context, layout, design) {
  const int64_t rows = context.shape.batch * context.shape.sequence_length;
  qkv_ = layout.save_attention({"attention.qkv_of_heads", context.compute(), rows, q_width() + 2 * kv_width()});
  if (input_codec(context) == Codec::plain)
    o_ = layout.save_attention({"attention.o_of_heads", context.compute(), rows, q_width()});
}

template <typename Body>
void AttentionByHeads::for_each_block(const Matrix& blocks, const Body& body) const {
  const int64_t own = context_.shape.token_rows().length;
  for (int64_t sequence = 0; sequence < context_.shape.batch; ++sequence)
    for (int64_t rank = 0; rank < num_ranks(); ++rank)
      body(sequence * own, rank, blocks.row_range((sequence * num_ranks() + rank) * own, own));
}

void AttentionByHeads::pack(const Matrix& rows, const Matrix& blocks) const {
  for_each_block(blocks, [&](int64_t row, int64_t rank, const Matrix& block) {
    copy(rows.row_range(row, block.rows).column_range(rank * block.cols, block.cols), block);
  });
}

void AttentionByHeads::unpack(const Matrix& blocks, const Matrix& rows) const {
  for_each_block(blocks, [&](int64_t row, int64_t rank, const Matrix& block) {
    copy(block, rows.row_range(row, block.rows).column_range(rank * block.cols, block.cols));
  });
}

void AttentionByHeads::sum_parts(const LayerCall& call, const Matrix& blocks, int64_t first, const Matrix& rows) const {
  const int64_t parts = num_ranks() * heads_.keys / tensor_rank_heads(context_).keys;  // ranks with the same heads
  WorkspaceFrame frame(*call.workspace);
  const int64_t own = context_.shape.token_rows().length;
  Matrix sum, part;
  if (parts > 1) {
    sum = frame.take(DType::f32, own, kv_width());
    part = frame.take(DType::f32, own, kv_width());
  }
  for_each_block(blocks, [&](int64_t row, int64_t rank, const Matrix& block) {
    const Matrix from = block.column_range(first, kv_width());
    const Matrix to = rows.row_range(row, own).column_range(first_kv_column(rank), kv_width());
    if (parts == 1) return copy(from, to);
    copy(from, rank % parts == 0 ? sum : part);
    if (rank % parts > 0) context_.backend.run(Add{.from = part, .to = sum});
    if (rank % parts == parts - 1) copy(sum, to);
  });
}

void AttentionByHeads::exchange(const Matrix& sent, const Matrix& received) const {
  const int64_t length = context_.shape.sequence_length;
  Lane& lane = *context_.context.lane;
  Lane::Ticket last = Lane::done;
  for (int64_t sequence = 0; sequence < context_.shape.batch; ++sequence)
    last = lane.all_to_all(context_.context.group, sent.row_range(sequence * length, length).data,
                           received.row_range(sequence * length, length).data, length / num_ranks() * sent.cols,
                           sent.dtype);
  lane.wait(last);
}

void AttentionByHeads::forward(const LayerCall& call, const QueryKeyValue& in, const Matrix& o) {
  const Matrix qkv = layout_.at(call, qkv_);
  WorkspaceFrame whole(*call.workspace);
  const Matrix o_of_heads = o_ != LayerLayout::none ? layout_.at(call, o_) : take_blocks(whole, q_width());
  {
    WorkspaceFrame frame(*call.workspace);
    const Matrix sent = take_blocks(frame, qkv.cols);
    const QueryKeyValue parts = split(sent);
    pack(in.q, parts.q);
    for (const auto& [from, to] : {std::pair{in.k, parts.k}, {in.v, parts.v}}) {
      for_each_block(to, [&, &rows = from](int64_t row, int64_t rank, const Matrix& block) {
        copy(rows.row_range(row, block.rows).column_range(first_kv_column(rank), kv_width()), block);
      });
    }
    exchange(sent, qkv);
  }
  run_forward(call, split(qkv), o_of_heads);
  WorkspaceFrame frame(*call.workspace);
  const Matrix received = take_blocks(frame, q_width());
  exchange(o_of_heads, received);
  unpack(received, o);
}

void AttentionByHeads::exchange_heads(const LayerCall& call, const Matrix& rows, const Matrix& heads) const {
  WorkspaceFrame frame(*call.workspace);
  const Matrix sent = take_blocks(frame, q_width());
  pack(rows, sent);
  exchange(sent, heads);
}

Matrix AttentionByHeads::output_of_heads(const LayerCall& call, const Matrix& o, WorkspaceFrame& frame) const {
  if (o_ != LayerLayout::none) return layout_.at(call, o_);
  const Matrix made = take_blocks(frame, q_width());
  exchange_heads(call, o, made);
  return made;
}

void AttentionByHeads::backward(const LayerCall& call, const QueryKeyValue&, const Matrix& o, const Matrix& d_o,
                                const QueryKeyValue& d_in) {
  const Matrix qkv = layout_.at(call, qkv_);
  WorkspaceFrame frame(*call.workspace);
  const Matrix d_qkv = take_blocks(frame, qkv.cols);
  {
    WorkspaceFrame inner(*call.workspace);
    const Matrix d_o_of_heads = take_blocks(inner, q_width());
    exchange_heads(call, d_o, d_o_of_heads);
    run_backward(call, split(qkv), output_of_heads(call, o, inner), d_o_of_heads, split(d_qkv));
  }
  const Matrix received = take_blocks(frame, qkv.cols);
  exchange(d_qkv, received);
  unpack(split(received).q, d_in.q);
  sum_parts(call, received, q_width(), d_in.k);
  sum_parts(call, received, q_width() + kv_width(), d_in.v);
}

}  // namespace

std::unique_ptr<AttentionCore> make_attention_by_heads(const LayerContext& context, LayerLayout& layout,
                                                       const AttentionCore::Design& design) {
  return std::make_unique<AttentionByHeads>(context, layout, design);
}

}  // namespace gptrain::model
