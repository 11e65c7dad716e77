#include "model/attention_core.h"

#include <algorithm>

#include "model/statistics.h"

namespace gptrain::inline model {
namespace {

// Attention of a rank whose rows are whole sequences.
class WholeAttention final : public AttentionCore {
 public:
  WholeAttention(const LayerContext& context, LayerLayout& layout, const Design& design)
      : AttentionCore(context, layout, design) {}

  void forward(const LayerCall& call, const QueryKeyValue& in, const Matrix& o) override { run_forward(call, in, o); }
  void backward(const LayerCall& call, const QueryKeyValue& in, const Matrix& o, const Matrix& d_o,
                const QueryKeyValue& d_in) override {
    run_backward(call, in, o, d_o, d_in);
  }
  bool reads_operands() const override { return true; }
};

bool exchanges_heads(const LayerContext& context) { return context.context.is_split() && !context.context.is_ring(); }

// RETURNS the first of the tensor rank's heads for which this rank runs the attention ops.
int64_t first_of_tensor_rank(const LayerContext& context) {
  return exchanges_heads(context) ? context.context.axis.rank * attention_heads(context).queries : 0;
}

}  // namespace

HeadCounts tensor_rank_heads(const LayerContext& context) {
  const ModelConfig& model = context.shape.model;
  const int64_t ranks = context.tensor.size();
  return {model.num_heads / ranks, std::max<int64_t>(1, model.num_kv_heads / ranks)};
}

HeadCounts attention_heads(const LayerContext& context) {
  const HeadCounts heads = tensor_rank_heads(context);
  const int64_t ranks = exchanges_heads(context) ? context.context.axis.size : 1;
  // Ranks that are more than the heads of keys share these.
  return {heads.queries / ranks, std::max<int64_t>(1, heads.keys / ranks)};
}

SummedParameter summed_sinks(const LayerContext& context, const Parameter& sinks) {
  if (context.context.is_ring()) return {sinks, 2 * context.shape.batch, 0, sinks.cols};
  return {sinks, 1, first_of_tensor_rank(context), sinks.given() ? attention_heads(context).queries : 0};
}

AttentionCore::AttentionCore(const LayerContext& context, LayerLayout& layout, const Design& design)
    : context_(context),
      layout_(layout),
      heads_(attention_heads(context)),
      design_(design),
      first_head_(context.tensor.rank() * tensor_rank_heads(context).queries + first_of_tensor_rank(context)) {
  const StepShape& shape = context.shape;
  const int64_t queries = context.context.is_ring() ? shape.token_rows().length : shape.sequence_length;
  lse_ = layout.save_attention({"attention.lse", DType::f32, shape.batch * heads_.queries, queries});
}

Dropout AttentionCore::dropout(const LayerCall& call) const {
  const StepShape& shape = context_.shape;
  return {shape.training ? shape.model.attention_dropout : 0,
          random_key(shape.seed, RandomUse::attention_dropout, static_cast<uint32_t>(design_.layer)), call.sample_ids,
          0, first_head_};
}

Matrix AttentionCore::largest_scores(const LayerCall& call) const {
  const Matrix scores = call.statistics.find(head_scores_statistic);
  if (!scores.given()) return {};
  return scores.column_range(design_.layer * model().num_heads + first_head_, heads_.queries);
}

Matrix AttentionCore::sinks(const LayerCall& call) const {
  const Matrix all = design_.sinks.norm(call);
  return all.given() ? all.column_range(first_of_tensor_rank(context_), heads_.queries) : all;
}

AttentionMask AttentionCore::mask(const LayerCall& call) const {
  return {.pattern = model().attention(design_.layer),
          .document_starts = call.document_starts,
          .max_documents = context_.shape.mask_documents ? context_.shape.max_documents : 0};
}

AttentionForward AttentionCore::forward_op(const LayerCall& call, const QueryKeyValue& in, const Matrix& o) const {
  const StepShape& shape = context_.shape;
  return {.batch = shape.batch,
          .sequence_length = shape.sequence_length,
          .num_heads = heads_.queries,
          .num_kv_heads = heads_.keys,
          .head_size = model().head_size,
          .scale = model().score_scale(),
          .softcap = model().attention_softcap,
          .mask = mask(call),
          .dropout = dropout(call),
          .q = in.q,
          .k = in.k,
          .v = in.v,
          .o = o,
          .lse = layout_.at(call, lse_),
          .sinks = sinks(call),
          .largest = largest_scores(call)};
}

AttentionBackward AttentionCore::backward_op(const LayerCall& call, const QueryKeyValue& in, const Matrix& o,
                                             const Matrix& d_o, const QueryKeyValue& d_in) const {
  const StepShape& shape = context_.shape;
  return {.batch = shape.batch,
          .sequence_length = shape.sequence_length,
          .num_heads = heads_.queries,
          .num_kv_heads = heads_.keys,
          .head_size = model().head_size,
          .scale = model().score_scale(),
          .softcap = model().attention_softcap,
          .mask = mask(call),
          .dropout = dropout(call),
          .q = in.q,
          .k = in.k,
          .v = in.v,
          .o = o,
          .lse = layout_.at(call, lse_),
          .d_o = d_o,
          .dq = d_in.q,
          .dk = d_in.k,
          .dv = d_in.v,
          .sinks = sinks(call),
          .d_sinks = design_.head_sums.at(call, design_.sinks_sum),
          .fixed_bits = shape.deterministic};
}

void AttentionCore::run_forward(const LayerCall& call, const QueryKeyValue& in, const Matrix& o) const {
  context_.backend.run(forward_op(call, in, o));
}

void AttentionCore::run_backward(const LayerCall& call, const QueryKeyValue& in, const Matrix& o, const Matrix& d_o,
                                 const QueryKeyValue& d_in) const {
  context_.backend.run(backward_op(call, in, o, d_o, d_in));
}

std::unique_ptr<AttentionCore> make_attention_core(const LayerContext& context, LayerLayout& layout,
                                                   const AttentionCore::Design& design) {
  if (context.context.is_ring()) return make_ring_attention(context, layout, design);
  if (context.context.is_split()) return make_attention_by_heads(context, layout, design);
  return std::make_unique<WholeAttention>(context, layout, design);
}

}  // namespace gptrain::model
