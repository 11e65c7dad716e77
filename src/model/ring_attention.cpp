// Attention where ranks share sequences and each keeps its queries (arXiv 2310.01889). A rank has an early and a late
// run of each sequence's tokens, so that under a causal mask all ranks have equal work.
//
// At step s, rank r receives the keys and values of rank r - s, and adds the attention of its queries over them. In
// backward it sends their gradients, in f32, back to rank r - s. A step's keys and values travel while those of the
// step before are used, and its gradients while those of the next are computed. Two ranks skip a step if no query of
// the one sees a key of the other: in a band, most steps.
//
// Every rank adds in one order: by step, and in a step early keys first. So all bits are those of every run.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "model/attention_core.h"

namespace gptrain::inline model {
namespace {

// Sums of gradients of keys and values.
struct KeyGradients {
  Matrix k, v;
};

// Operands of a step of backward.
struct StepGradients {
  Matrix keys;  // keys and values, side by side
  Matrix dq;
  KeyGradients of_keys;
  Matrix part_dq, part_kv;  // memory for a pair's gradients
};

// One of the two runs of a rank's tokens.
enum class Run : uint8_t { early, late };
constexpr std::array both_runs = {Run::early, Run::late};

class RingAttention final : public AttentionCore {
 public:
  RingAttention(const LayerContext& context, LayerLayout& layout, const Design& design)
      : AttentionCore(context, layout, design),
        pattern_(within(context.shape.model.attention(design.layer), context.shape.sequence_length)) {}

  void forward(const LayerCall& call, const QueryKeyValue& in, const Matrix& o) override;
  void backward(const LayerCall& call, const QueryKeyValue& in, const Matrix& o, const Matrix& d_o,
                const QueryKeyValue& d_in) override;
  bool reads_operands() const override { return true; }

 private:
  // Keys of one of a rank's runs that follow each other, and that queries see by one rule.
  struct Keys {
    Run run;
    int64_t first, length;  // tokens
    int64_t row;            // the first one's row in the sequence on the rank
    bool global;            // whether all later queries see them
  };
  // A run of this rank's queries and keys of a rank, in one sequence of the micro-batch.
  struct Pair {
    int64_t sequence;
    Run queries;
    Keys keys;

    // RETURNS the index of this run of queries among those of the micro-batch.
    int64_t queries_number() const { return 2 * sequence + (queries == Run::late ? 1 : 0); }
  };
  // Runs of keys that travel between this rank and two others, one step ahead of their use.
  class KeysAhead;
  // Gradients of keys that travel back, while the next are computed.
  class GradientsBack;

  // RETURNS the pattern, or dense if its queries see all earlier tokens.
  static AttentionPattern within(const AttentionPattern& pattern, int64_t tokens) {
    const bool sees_all = pattern.kind == AttentionKind::dense || pattern.width >= tokens || pattern.global >= tokens;
    return sees_all ? AttentionPattern{} : pattern;
  }
  int64_t num_ranks() const { return context_.context.axis.size; }
  int64_t own_rank() const { return context_.context.axis.rank; }
  // RETURNS the rank that is `steps` after this one in the ring.
  int64_t rank_after(int64_t steps) const { return (own_rank() + steps + num_ranks()) % num_ranks(); }
  int64_t run_length() const { return context_.shape.token_rows().first_length; }
  int64_t q_width() const { return heads_.queries * model().head_size; }
  int64_t kv_width() const { return heads_.keys * model().head_size; }
  int64_t first_token(int64_t rank, Run run) const {
    return (run == Run::early ? rank : 2 * num_ranks() - 1 - rank) * run_length();
  }
  // RETURNS the keys of a rank, in rising order.
  std::vector<Keys> keys_of(int64_t rank) const;
  // RETURN whether a query of a run, or of a rank, sees some of the keys, in a sequence of one document.
  bool sees(int64_t queries_rank, Run queries, const Keys& keys) const;
  bool sees(int64_t queries_rank, int64_t keys_rank) const;
  // RETURN whether this rank uses others' keys in a step, and whether another rank uses this one's.
  bool receives_keys(int64_t step) const { return sees(own_rank(), rank_after(-step)); }
  bool sends_keys(int64_t step) const { return sees(rank_after(step), own_rank()); }
  // RETURNS the pairs of a step whose queries see some of the keys, in the order of their sums.
  std::vector<Pair> pairs(int64_t step) const;
  // RETURNS these pairs, and for keys that no query of this rank sees one that computes their gradients of zero; none
  // if the step has no pairs.
  std::vector<Pair> pairs_of_all_keys(int64_t step) const;

  Matrix rows_of(const Matrix& rows, int64_t sequence, Run run) const {
    const int64_t first = 2 * sequence + (run == Run::late ? 1 : 0);
    return rows.row_range(first * run_length(), run_length());
  }
  Matrix rows_of(const Matrix& rows, int64_t sequence, const Keys& keys) const {
    return rows.row_range(2 * sequence * run_length() + keys.row, keys.length);
  }
  // RETURNS the log-sum-exps of a run's queries.
  Matrix lse_of(const Matrix& lse, int64_t sequence, Run run) const {
    return lse.row_range(sequence * heads_.queries, heads_.queries)
        .column_range(run == Run::late ? run_length() : 0, run_length());
  }
  AttentionPart part_of(const Pair& pair) const {
    return {first_token(own_rank(), pair.queries), pair.keys.first, pair.keys.length};
  }
  // Makes an op of whole sequences that of a pair, except for o and gradients. `keys`: keys and values, side by side.
  template <typename Op>
  void narrow(Op& op, const Pair& pair, const Matrix& keys) const;
  void copy(const Matrix& from, const Matrix& to) const { context_.backend.run(Cast{.from = from, .to = to}); }
  void add(const Matrix& from, const Matrix& to) const { context_.backend.run(Add{.from = from, .to = to}); }
  Lane& lane() const { return *context_.context.lane; }
  // Begins a transfer to one rank and one from another; none of a matrix that is not given.
  Lane::Ticket exchange(const Matrix& sent, int64_t to, const Matrix& received, int64_t from) const;
  // Adds a step's gradients to dq, and computes those of the keys; step 0 begins dq.
  void backward_step(const AttentionBackward& whole, int64_t step, const StepGradients& of) const;

  const AttentionPattern pattern_;
};

std::vector<RingAttention::Keys> RingAttention::keys_of(int64_t rank) const {
  std::vector<Keys> found;
  for (const Run run : both_runs) {
    const int64_t first = first_token(rank, run), end = first + run_length();
    const int64_t end_of_global = std::clamp(pattern_.global, first, end);
    const int64_t before = (run == Run::late ? run_length() : 0) - first;
    if (end_of_global > first) found.push_back({run, first, end_of_global - first, first + before, true});
    if (end > end_of_global) found.push_back({run, end_of_global, end - end_of_global, end_of_global + before, false});
  }
  return found;
}

bool RingAttention::sees(int64_t queries_rank, Run queries, const Keys& keys) const {
  const int64_t query = first_token(queries_rank, queries);
  if (keys.first >= query + run_length()) return false;
  return keys.global || pattern_.kind == AttentionKind::dense || keys.first + keys.length > query - pattern_.width + 1;
}

bool RingAttention::sees(int64_t queries_rank, int64_t keys_rank) const {
  for (const Run queries : both_runs)
    for (const Keys& keys : keys_of(keys_rank))
      if (sees(queries_rank, queries, keys)) return true;
  return false;
}

std::vector<RingAttention::Pair> RingAttention::pairs(int64_t step) const {
  std::vector<Pair> found;
  for (int64_t sequence = 0; sequence < context_.shape.batch; ++sequence) {
    for (const bool of_one_run : {true, false}) {
      for (const Keys& keys : keys_of(rank_after(-step))) {
        for (const Run queries : both_runs) {
          if (of_one_run != (step == 0 && keys.run == queries) || !sees(own_rank(), queries, keys)) continue;
          found.push_back({.sequence = sequence, .queries = queries, .keys = keys});
        }
      }
    }
  }
  return found;
}

template <typename Op>
void RingAttention::narrow(Op& op, const Pair& pair, const Matrix& keys) const {
  op.batch = 1;
  op.sequence_length = run_length();
  if (op.mask.document_starts != nullptr) op.mask.document_starts += pair.sequence * context_.shape.sequence_length;
  // A band of all tokens is dense, but for its exact number of pairs.
  op.mask.pattern = pair.keys.global ? window_pattern(context_.shape.sequence_length) : window_pattern(pattern_.width);
  op.mask.max_documents = 0;
  if (op.dropout.p > 0) op.dropout.sample_ids += pair.sequence;
  const Matrix kv = rows_of(keys, pair.sequence, pair.keys);
  op.q = rows_of(op.q, pair.sequence, pair.queries);
  op.k = kv.column_range(0, kv_width());
  op.v = kv.column_range(kv_width(), kv_width());
  op.lse = lse_of(op.lse, pair.sequence, pair.queries);
}

// Keys and values of other ranks: those of the present step, and those of the next, which are under way.
class RingAttention::KeysAhead {
 public:
  // Packs this rank's keys and values.
  KeysAhead(const RingAttention& ring, WorkspaceFrame& frame, const QueryKeyValue& in) : ring_(ring) {
    const auto take = [&] { return frame.take(in.k.dtype, in.k.rows, 2 * ring.kv_width()); };
    own_ = take();
    received_[1] = take();
    if (ring.num_ranks() > 2) received_[0] = take();
    ring.copy(in.k, own_.column_range(0, ring.kv_width()));
    ring.copy(in.v, own_.column_range(ring.kv_width(), ring.kv_width()));
    begin(1);
  }

  // RETURNS the keys and values of a step, and begins the transfers of the next. The memory of those of the step before
  // is overwritten. REQUIRES: called for each step in order.
  Matrix next(int64_t step) {
    if (step == 0) return own_;
    ring_.lane().wait(ticket_);
    begin(step + 1);
    return received_[step % 2];
  }

 private:
  void begin(int64_t step) {
    if (step == ring_.num_ranks()) return;
    const Matrix& to = received_[step % 2];
    ticket_ = ring_.exchange(ring_.sends_keys(step) ? own_ : Matrix(), ring_.rank_after(step),
                             ring_.receives_keys(step) ? to : Matrix(), ring_.rank_after(-step));
  }

  const RingAttention& ring_;
  Matrix own_;
  std::array<Matrix, 2> received_;
  Lane::Ticket ticket_ = Lane::done;
};

// Gradients of keys and values: those that the present step computes, and those of the step before, which are under
// way to the keys' ranks.
class RingAttention::GradientsBack {
 public:
  // `own`: sums of the gradients of this rank's keys.
  GradientsBack(const RingAttention& ring, WorkspaceFrame& frame, const KeyGradients& own) : ring_(ring), own_(own) {
    const auto take = [&] { return frame.take(DType::f32, own.k.rows, 2 * ring.kv_width()); };
    for (auto* const matrices : {&sent_, &received_}) {
      matrices->at(1) = take();
      if (ring.num_ranks() > 2) matrices->at(0) = take();
    }
  }

  // RETURNS the memory for the gradients that a step computes.
  KeyGradients of_step(int64_t step) const { return step == 0 ? own_ : split(sent_[step % 2]); }
  // Sends a step's gradients, and adds to the own ones those that other ranks computed in the step before.
  void end_step(int64_t step) {
    const Lane::Ticket before = ticket_;
    if (step > 0 && step < ring_.num_ranks()) {
      const auto index = static_cast<size_t>(step % 2);
      ticket_ = ring_.exchange(ring_.receives_keys(step) ? sent_[index] : Matrix(), ring_.rank_after(-step),
                               ring_.sends_keys(step) ? received_[index] : Matrix(), ring_.rank_after(step));
    }
    if (step < 2) return;
    ring_.lane().wait(before);
    if (!ring_.sends_keys(step - 1)) return;
    const KeyGradients arrived = split(received_[(step - 1) % 2]);
    ring_.add(arrived.k, own_.k);
    ring_.add(arrived.v, own_.v);
  }

 private:
  KeyGradients split(const Matrix& both) const {
    return {both.column_range(0, ring_.kv_width()), both.column_range(ring_.kv_width(), ring_.kv_width())};
  }

  const RingAttention& ring_;
  const KeyGradients own_;
  std::array<Matrix, 2> sent_, received_;
  Lane::Ticket ticket_ = Lane::done;
};

Lane::Ticket RingAttention::exchange(const Matrix& sent, int64_t to, const Matrix& received, int64_t from) const {
  if (!sent.given() && !received.given()) return Lane::done;
  Communicator* const group = context_.context.group;
  lane().transfers_start(group);
  if (sent.given()) lane().send(group, sent.data, sent.count(), sent.dtype, static_cast<int>(to));
  if (received.given()) lane().receive(group, received.data, received.count(), received.dtype, static_cast<int>(from));
  return lane().transfers_end(group);
}

void RingAttention::forward(const LayerCall& call, const QueryKeyValue& in, const Matrix& o) {
  WorkspaceFrame frame(*call.workspace);
  const Matrix sum = o.dtype == DType::f32 ? o : frame.take(DType::f32, o.rows, o.cols);
  const Matrix part_o = frame.take(DType::f32, run_length(), q_width());
  const Matrix part_lse = frame.take(DType::f32, heads_.queries, run_length());
  const AttentionForward whole = forward_op(call, in, sum);
  KeysAhead ahead(*this, frame, in);
  std::set<int64_t> begun;  // numbers of queries that have a result
  for (int64_t step = 0; step < num_ranks(); ++step) {
    const Matrix keys = ahead.next(step);
    for (const Pair& pair : pairs(step)) {
      AttentionForward op = whole;
      narrow(op, pair, keys);
      const Matrix lse = op.lse, o_rows = rows_of(sum, pair.sequence, pair.queries);
      const bool is_first = begun.insert(pair.queries_number()).second;
      op.o = is_first ? o_rows : part_o;
      if (!is_first) op.lse = part_lse;
      if (!is_first) op.sinks = {};
      context_.backend.run(AttentionPartForward{op, part_of(pair)});
      if (!is_first)
        context_.backend.run(MergeAttention{.part_o = part_o, .part_lse = part_lse, .o = o_rows, .lse = lse});
    }
  }
  if (sum.data != o.data) copy(sum, o);
}

void RingAttention::backward(const LayerCall& call, const QueryKeyValue& in, const Matrix& o, const Matrix& d_o,
                             const QueryKeyValue& d_in) {
  WorkspaceFrame frame(*call.workspace);
  const auto sums_of = [&](const Matrix& gradient) {
    return gradient.dtype == DType::f32 ? gradient : frame.take(DType::f32, gradient.rows, gradient.cols);
  };
  const Matrix dq = sums_of(d_in.q);
  const KeyGradients own{sums_of(d_in.k), sums_of(d_in.v)};
  const Matrix part_dq = frame.take(DType::f32, run_length(), q_width());
  const Matrix part_kv = frame.take(DType::f32, run_length(), 2 * kv_width());
  AttentionBackward whole = backward_op(call, in, o, d_o, d_in);
  GradientsBack back(*this, frame, own);
  KeysAhead ahead(*this, frame, in);
  for (int64_t step = 0; step < num_ranks(); ++step) {
    const Matrix keys = ahead.next(step);
    backward_step(whole, step, {keys, dq, back.of_step(step), part_dq, part_kv});
    back.end_step(step);
  }
  back.end_step(num_ranks());
  for (const auto& [sum, gradient] : {std::pair{dq, d_in.q}, {own.k, d_in.k}, {own.v, d_in.v}})
    if (sum.data != gradient.data) copy(sum, gradient);
}

std::vector<RingAttention::Pair> RingAttention::pairs_of_all_keys(int64_t step) const {
  std::vector<Pair> found = pairs(step);
  if (found.empty()) return found;
  for (int64_t sequence = 0; sequence < context_.shape.batch; ++sequence) {
    for (const Keys& keys : keys_of(rank_after(-step))) {
      if (!sees(own_rank(), Run::early, keys) && !sees(own_rank(), Run::late, keys))
        found.push_back({.sequence = sequence, .queries = Run::early, .keys = keys});
    }
  }
  return found;
}

void RingAttention::backward_step(const AttentionBackward& whole, int64_t step, const StepGradients& of) const {
  std::set<int64_t> begun_queries, begun_keys;  // numbers of queries, and rows of keys, that have a gradient
  for (const Pair& pair : pairs_of_all_keys(step)) {
    AttentionBackward op = whole;
    narrow(op, pair, of.keys);
    op.o = rows_of(op.o, pair.sequence, pair.queries);
    op.d_o = rows_of(op.d_o, pair.sequence, pair.queries);
    const Matrix dq = rows_of(of.dq, pair.sequence, pair.queries);
    const Matrix dk = rows_of(of.of_keys.k, pair.sequence, pair.keys);
    const Matrix dv = rows_of(of.of_keys.v, pair.sequence, pair.keys);
    const bool adds_to_queries = step > 0 || !begun_queries.insert(pair.queries_number()).second;
    const bool adds_to_keys = !begun_keys.insert(2 * pair.sequence * run_length() + pair.keys.row).second;
    const Matrix part_kv = of.part_kv.row_range(0, pair.keys.length);
    op.dq = adds_to_queries ? of.part_dq : dq;
    op.dk = adds_to_keys ? part_kv.column_range(0, kv_width()) : dk;
    op.dv = adds_to_keys ? part_kv.column_range(kv_width(), kv_width()) : dv;
    if (adds_to_queries) op.sinks = op.d_sinks = {};
    if (op.d_sinks.given()) op.d_sinks = op.d_sinks.row_range(pair.queries_number(), 1);
    context_.backend.run(AttentionPartBackward{op, part_of(pair)});
    if (adds_to_queries) add(of.part_dq, dq);
    if (!adds_to_keys) continue;
    add(op.dk, dk);
    add(op.dv, dv);
  }
}

}  // namespace

std::unique_ptr<AttentionCore> make_ring_attention(const LayerContext& context, LayerLayout& layout,
                                                   const AttentionCore::Design& design) {
  return std::make_unique<RingAttention>(context, layout, design);
}

}  // namespace gptrain::model
