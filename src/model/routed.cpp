// The FFN branch of a mixture of experts: norm, a router that chooses experts for each token, the experts' two linears
// on the rows that they got, and the sum of their results by the router's weights. Shared experts, an FFN for all
// tokens, are added.
//
// Every tensor rank routes all rows alike. It has a share of each expert's hidden features, or, where ranks share whole
// experts (ExpertRows), sends a share of the rows. A rank's gradients of the weights of results are parts of a sum
// over the ranks, and so are those of the router's matrix; the router's losses count on the first rank.
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "model/branch.h"
#include "model/expert_rows.h"
#include "model/saved_matrix.h"
#include "model/shared_ffn.h"
#include "model/statistics.h"

namespace gptrain::inline model {
namespace {

// RETURNS the matrices of one kind of the experts from `first` on as one, [experts rows, cols]. THROWS std::logic_error
// if they do not follow each other; config checks have refused sizes for which they do not.
Parameter stacked(const UnitTensors& tensors, const std::string& linear, int64_t first, int64_t experts) {
  const auto of = [&](int64_t expert) { return tensors.find("experts." + std::to_string(first + expert) + linear); };
  Parameter all = of(0);
  // Tensors of a unit that the rank does not hold have no offsets.
  const bool is_held = of(experts - 1).offset != all.offset;
  for (int64_t expert = 1; is_held && expert < experts; ++expert) {
    if (of(expert).offset != all.offset + expert * all.rows * all.cols)
      throw std::logic_error("the matrices of experts do not follow each other");
  }
  all.rows *= experts;
  all.true_rows *= experts;
  return all;
}

class RoutedBranch final : public Branch {
 public:
  RoutedBranch(const LayerContext& context, LayerLayout& layout, int64_t layer, const UnitTensors& tensors);

  bool weight_reads_output_gradient() const override { return weight_reads_gradient() && shares_gradient(context_); }
  void recompute(const LayerCall& call, const Matrix& x) override;
  void backward_input(const LayerCall& call, const BranchGradient& gradient, bool with_weights) override;
  void backward_weight(const LayerCall& call, const Matrix& d_out) override;

 private:
  TensorRows::Ticket run(const LayerCall& call, const NormInput& in, const Output& out) override;

  const MoeConfig& moe() const { return context_.shape.model.moe; }
  int64_t num_assignments() const { return context_.shape.rows() * moe().top_k; }
  // RETURNS whether W reads the gradient of the branch's output.
  bool weight_reads_gradient() const { return rows_of_experts_->regathers_rows() || shared_ != nullptr; }
  int64_t hidden_size() const { return context_.shape.model.hidden_size; }
  ActivationKind activation() const { return context_.shape.model.activation; }
  RouterRule rule() const {
    return {.score = moe().score,
            .renormalise = moe().renormalise,
            .scale = moe().scale,
            .balanced_rows = balanced_rows(),
            .run_ranks = context_.context.axis.size,
            .groups = moe().groups,
            .group_top_k = moe().group_top_k,
            .capacity = capacity(),
            .capacity_rows = capacity_rows(),
            .drop = moe().drop};
  }
  // RETURNS the number of rows over which the balance loss counts loads, including those of other ranks that share
  // sequences.
  int64_t balanced_rows() const {
    const int64_t sequences = moe().aux_over == BalanceOver::micro_batch ? context_.shape.batch : 1;
    return sequences * context_.shape.sequence_length;
  }
  // RETURNS whether other ranks have some of the rows over which the balance loss counts loads.
  bool shares_loads() const { return context_.context.is_split() && moe().aux_over != BalanceOver::global; }
  int64_t capacity_rows() const {
    return moe().capacity_over == CapacityOver::rank ? context_.shape.rows() : context_.shape.token_rows().length;
  }
  // RETURNS the number of rows that an expert takes of capacity_rows() rows; 0: all.
  int64_t capacity() const {
    if (moe().capacity == 0) return 0;
    const auto mean = static_cast<double>(capacity_rows() * moe().top_k) / static_cast<double>(moe().experts);
    return std::min(static_cast<int64_t>(std::ceil(moe().capacity * mean)), capacity_rows());
  }
  bool jitters() const { return moe().jitter > 0 && context_.shape.training; }
  void jitter(const LayerCall& call, const Matrix& x, const Matrix& y);
  Matrix at(const LayerCall& call, LayerLayout::Field field) const { return layout_.at(call, field); }
  Matrix loads(const LayerCall& call) const { return shares_loads() ? at(call, loads_) : Matrix{}; }
  // RETURNS the rows of the router's matrix that count in this rank's model FLOPs: -1, all, on the first tensor rank;
  // else 0.
  int64_t counted_experts() const { return context_.tensor.rank() == 0 ? -1 : 0; }
  // RETURNS the parameters among which the experts' are.
  const UnitParameters& expert_parameters(const LayerCall& call) const {
    return context_.experts.is_split() ? call.experts : call.parameters;
  }
  Matrix in_weight(const LayerCall& call) const { return in_.in(expert_parameters(call).weights, context_.compute()); }
  Matrix out_weight(const LayerCall& call) const {
    return out_.in(expert_parameters(call).weights, context_.compute());
  }
  // RETURNS the layer's elements of the statistic of routing; not given if this pass does not collect it.
  Matrix statistics(const LayerCall& call) const;
  // Adds to the statistic the rows that were not sent because the experts' ranks had no room.
  void count_lost_rows(const LayerCall& call);
  // RETURNS the norm's output for all rows, of which `rows` has this rank's; in `frame` if they are gathered.
  Matrix all_rows(const Matrix& rows, WorkspaceFrame& frame);
  Matrix in_f32(const Matrix& rows, WorkspaceFrame& frame);
  // RETURNS the rows as the router multiplies them.
  Matrix router_rows(const LayerCall& call, const Matrix& wide, WorkspaceFrame& frame);
  // Multiplies the rows by the router's matrix and the shared experts' gate.
  void multiply_router(const LayerCall& call, const Matrix& rows);
  // Chooses experts by the saved logits.
  void route(const LayerCall& call);
  // Adds up the loads of ranks that share sequences, and adds the balance loss by them to the statistic.
  void sum_loads(const LayerCall& call);
  // Computes the last linears' input from the saved data.
  void activate(const LayerCall& call);
  // Computes the gradient of the experts' first linears' output, and of the router's logits.
  void experts_backward(const LayerCall& call, const Matrix& d_branch);
  // Computes this rank's part of the gradient of the norm's output.
  void input_gradient(const LayerCall& call, const Matrix& d_branch, const Matrix& part);
  void weight_gradients(const LayerCall& call, const Matrix& d_branch);
  // RETURNS the gradient of the branch's output that B left for W.
  Matrix left_gradient(const LayerCall& call, const Matrix& d_out) const {
    return d_branch_ == LayerLayout::none ? d_out : at(call, d_branch_);
  }

  Parameter router_, bias_, excess_, in_, out_;
  LayerLayout::Field normed_, logits_, hidden_, activated_;
  LayerLayout::Field experts_, slots_;
  RoutedFields routed_;
  std::unique_ptr<ExpertRows> rows_of_experts_;
  LayerLayout::Field loads_ = LayerLayout::none;
  LayerLayout::Field d_logits_, d_hidden_, d_branch_ = LayerLayout::none;
  std::unique_ptr<SharedFfn> shared_;  // null: none
};

RoutedBranch::RoutedBranch(const LayerContext& context, LayerLayout& layout, int64_t layer, const UnitTensors& tensors)
    : Branch(context, layout,
             {.layer = static_cast<uint32_t>(layer),
              .site = 1,
              .norm = norm_tensors(tensors, "norm2"),
              .norm_after = norm_tensors(tensors, "norm2_after")}),
      router_(tensors.find("router.weight")),
      bias_(tensors.find("router.bias")),
      excess_(tensors.find("router.excess")) {
  const DType c = context.compute();
  const int64_t n = context.shape.rows(), k = moe().top_k;
  const auto for_weight = [](const char* name, DType dtype, int64_t rows, int64_t cols) {
    return SavedTensor{
        .name = name, .dtype = dtype, .rows = rows, .cols = cols, .last_reader = LastReader::weight_gradient};
  };
  normed_ = layout.save(for_weight("experts.x", c, context.tensor.own_rows(), hidden_size()));
  logits_ = layout.save_product({"router.logits", DType::f32, n, moe().experts});
  experts_ = layout.save({"router.experts", DType::i32, n, k});
  slots_ = layout.save({"router.slots", DType::i32, n, k});
  routed_.rows = layout.save(for_weight("router.rows", DType::i32, 1, num_assignments()));
  routed_.weights = layout.save({"router.weights", DType::f32, 1, num_assignments()});
  routed_.offsets = layout.save(for_weight("router.offsets", DType::i32, 1, moe().experts + 1));
  if (shares_loads()) loads_ = layout.save({"router.loads", DType::f32, n / rule().own_rows(), moe().experts});
  rows_of_experts_ = make_expert_rows(context, layout, layer, routed_);
  const int64_t experts = rows_of_experts_->experts(), rows = rows_of_experts_->rows();
  in_ = stacked(tensors, ".in.weight", rows_of_experts_->first_expert(), experts);
  out_ = stacked(tensors, ".out.weight", rows_of_experts_->first_expert(), experts);
  const int64_t hidden_width = in_.rows / experts;
  hidden_ = layout.save_product({"experts.hidden", c, rows, hidden_width});
  activated_ = layout.save(for_weight("experts.activated", c, rows, out_.cols));
  d_logits_ = layout.leave({"router.d_logits", DType::f32, n, moe().experts});
  d_hidden_ = layout.leave({"experts.d_hidden", c, rows, hidden_width});
  if (!shares_gradient(context) && (rows_of_experts_->regathers_rows() || moe().shared > 0))
    d_branch_ = layout.leave({"experts.d_branch", c, n, hidden_size()});
  if (moe().shared > 0) shared_ = std::make_unique<SharedFfn>(context, layout, layer_, tensors, normed_);
}

Matrix RoutedBranch::statistics(const LayerCall& call) const {
  const Matrix all = call.statistics.find(routing_statistic);
  if (!all.given()) return {};
  int64_t before = 0;  // layers with experts
  for (int64_t layer = 0; layer < static_cast<int64_t>(layer_); ++layer) before += moe().is_at(layer) ? 1 : 0;
  const int64_t count = num_routing_sums(moe().experts);
  return all.column_range(before * count, count);
}

void RoutedBranch::count_lost_rows(const LayerCall& call) {
  const int64_t lost = rows_of_experts_->lost_rows();
  const Matrix sums = statistics(call);
  if (lost == 0 || !sums.given()) return;
  double dropped = 0;
  const Matrix last = sums.column_range(sums.cols - 1, 1);
  context_.backend.download(&dropped, last.data, last.bytes());
  dropped += static_cast<double>(lost);
  context_.backend.upload(last.data, &dropped, last.bytes());
}

Matrix RoutedBranch::all_rows(const Matrix& rows, WorkspaceFrame& frame) {
  TensorRows& tensor = context_.tensor;
  return tensor.wait(tensor.begin_gather(rows, tensor.buffer_for_all_rows(frame, rows)));
}

Matrix RoutedBranch::in_f32(const Matrix& rows, WorkspaceFrame& frame) {
  if (rows.dtype == DType::f32) return rows;
  const Matrix wide = frame.take(DType::f32, rows.rows, rows.cols);
  context_.backend.run(Cast{.from = rows, .to = wide});
  return wide;
}

void RoutedBranch::jitter(const LayerCall& call, const Matrix& x, const Matrix& y) {
  context_.backend.run(JitterRows{
      .dropout = {.p = moe().jitter,
                  .key = random_key(context_.shape.seed, RandomUse::router_jitter, static_cast<uint32_t>(layer_)),
                  .sample_ids = call.sample_ids},
      .token_rows = context_.shape.token_rows(),
      .x = x,
      .y = y});
}

Matrix RoutedBranch::router_rows(const LayerCall& call, const Matrix& wide, WorkspaceFrame& frame) {
  if (!jitters()) return wide;
  const Matrix jittered = frame.take(DType::f32, wide.rows, wide.cols);
  jitter(call, wide, jittered);
  return jittered;
}

void RoutedBranch::multiply_router(const LayerCall& call, const Matrix& rows) {
  WorkspaceFrame frame(*call.workspace);
  const Matrix wide = in_f32(rows, frame);
  context_.backend.run(LinearForward{.x = router_rows(call, wide, frame),
                                     .w = router_.norm(call),
                                     .bias = {},
                                     .y = at(call, logits_),
                                     .true_out = counted_experts()});
  if (shared_ && shared_->has_gate()) shared_->multiply_gate(call, wide);
}

void RoutedBranch::route(const LayerCall& call) {
  context_.backend.run(RouteTokens{.rule = rule(),
                                   .logits = at(call, logits_),
                                   .experts = at(call, experts_),
                                   .slots = at(call, slots_),
                                   .rows = at(call, routed_.rows),
                                   .weights = at(call, routed_.weights),
                                   .offsets = at(call, routed_.offsets),
                                   .bias = bias_.norm(call),
                                   .excess = excess_.norm(call),
                                   .statistics = context_.tensor.rank() == 0 ? statistics(call) : Matrix{},
                                   .loads = loads(call)});
  if (shares_loads()) sum_loads(call);
  rows_of_experts_->route(call);
  count_lost_rows(call);
}

void RoutedBranch::sum_loads(const LayerCall& call) {
  const Matrix sums = loads(call);
  const ContextParallel& context = context_.context;
  context.lane->wait(context.lane->all_reduce(context.group, sums.data, sums.count(), sums.dtype));
  const Matrix statistic = context_.tensor.rank() == 0 ? statistics(call) : Matrix{};
  if (!statistic.given()) return;
  context_.backend.run(AddBalance{
      .rule = rule(), .top_k = moe().top_k, .logits = at(call, logits_), .loads = sums, .statistics = statistic});
}

void RoutedBranch::activate(const LayerCall& call) {
  context_.backend.run(ExpertActivationForward{.kind = activation(),
                                               .x = at(call, hidden_),
                                               .weights = rows_of_experts_->weights(call),
                                               .offsets = rows_of_experts_->offsets(call),
                                               .y = at(call, activated_),
                                               .expected_rows = rows_of_experts_->expected_rows()});
}

TensorRows::Ticket RoutedBranch::run(const LayerCall& call, const NormInput& in, const Output& out) {
  const Matrix part = out.part, normed = at(call, normed_), offsets = rows_of_experts_->offsets(call);
  const int64_t expected = rows_of_experts_->expected_rows();
  norm_.forward(call, in, {normed});
  {
    WorkspaceFrame frame(*call.workspace);
    const Matrix rows = all_rows(normed, frame);
    multiply_router(call, rows);
    route(call);
    context_.backend.run(GroupedLinearForward{.x = rows_of_experts_->send_inputs(call, rows, frame),
                                              .w = in_weight(call),
                                              .offsets = offsets,
                                              .y = at(call, hidden_),
                                              .expected_rows = expected});
  }
  activate(call);
  if (shared_) shared_->forward(call, normed, part);
  if (!part.given()) return Lane::done;
  WorkspaceFrame frame(*call.workspace);
  const Matrix results = frame.take(context_.compute(), rows_of_experts_->rows(), hidden_size());
  context_.backend.run(GroupedLinearForward{
      .x = at(call, activated_), .w = out_weight(call), .offsets = offsets, .y = results, .expected_rows = expected});
  context_.backend.run(CombineRows{.x = rows_of_experts_->take_back(call, results, frame),
                                   .slots = at(call, slots_),
                                   .shared = shared_ ? part : Matrix{},
                                   .y = part});
  return Lane::done;
}

void RoutedBranch::recompute(const LayerCall& call, const Matrix& x) {
  const Matrix normed = at(call, normed_);
  norm_.forward(call, {.x = x}, {normed});
  route(call);
  if (!rows_of_experts_->regathers_rows()) {
    WorkspaceFrame frame(*call.workspace);
    rows_of_experts_->send_inputs(call, all_rows(normed, frame), frame);
  }
  activate(call);
  if (shared_) shared_->activate(call, {});
}

void RoutedBranch::experts_backward(const LayerCall& call, const Matrix& d_branch) {
  const Matrix offsets = rows_of_experts_->offsets(call);
  const int64_t rows = rows_of_experts_->rows(), expected = rows_of_experts_->expected_rows();
  WorkspaceFrame frame(*call.workspace);
  const Matrix d_activated = frame.take(context_.compute(), rows, out_.cols);
  {
    WorkspaceFrame inner(*call.workspace);
    context_.backend.run(GroupedLinearBackwardInput{.dy = rows_of_experts_->send_gradients(call, d_branch, inner),
                                                    .w = out_weight(call),
                                                    .offsets = offsets,
                                                    .dx = d_activated,
                                                    .expected_rows = expected});
  }
  const Matrix d_weights = frame.take(DType::f32, 1, rows);
  context_.backend.run(ExpertActivationBackward{.kind = activation(),
                                                .x = at(call, hidden_),
                                                .weights = rows_of_experts_->weights(call),
                                                .offsets = offsets,
                                                .dy = d_activated,
                                                .dx = at(call, d_hidden_),
                                                .d_weights = d_weights,
                                                .expected_rows = expected});
  const double losses = context_.tensor.rank() == 0 ? 1 : 0;
  const auto sequences = static_cast<double>(context_.shape.sequences_of_step);
  const auto tokens = sequences * static_cast<double>(context_.shape.sequence_length);
  const double runs = tokens / static_cast<double>(balanced_rows());
  context_.backend.run(RouteTokensBackward{.rule = rule(),
                                           .balance_factor = losses * moe().aux_loss / runs,
                                           .z_factor = losses * moe().z_loss / tokens,
                                           .state = call.state,
                                           .logits = at(call, logits_),
                                           .experts = at(call, experts_),
                                           .slots = at(call, slots_),
                                           .excess = excess_.norm(call),
                                           .loads = loads(call),
                                           .d_weights = rows_of_experts_->take_back_numbers(call, d_weights, frame),
                                           .d_logits = at(call, d_logits_)});
}

void RoutedBranch::input_gradient(const LayerCall& call, const Matrix& d_branch, const Matrix& part) {
  WorkspaceFrame frame(*call.workspace);
  if (shared_) shared_->backward_input(call, d_branch, part);
  const Matrix d_router = frame.take(DType::f32, part.rows, part.cols);
  context_.backend.run(LinearBackwardInput{
      .dy = at(call, d_logits_), .w = router_.norm(call), .dx = d_router, .true_out = counted_experts()});
  if (jitters()) jitter(call, d_router, d_router);
  if (shared_ && shared_->has_gate()) shared_->add_gate_gradient(call, d_router);
  const Matrix d_rows = frame.take(context_.compute(), rows_of_experts_->rows(), hidden_size());
  context_.backend.run(GroupedLinearBackwardInput{.dy = at(call, d_hidden_),
                                                  .w = in_weight(call),
                                                  .offsets = rows_of_experts_->offsets(call),
                                                  .dx = d_rows,
                                                  .expected_rows = rows_of_experts_->expected_rows()});
  context_.backend.run(CombineRows{.x = rows_of_experts_->take_back(call, d_rows, frame),
                                   .slots = at(call, slots_),
                                   .router = d_router,
                                   .shared = shared_ ? part : Matrix{},
                                   .y = part});
}

void RoutedBranch::backward_input(const LayerCall& call, const BranchGradient& gradient, bool with_weights) {
  TensorRows& tensor = context_.tensor;
  WorkspaceFrame frame(*call.workspace);
  // A gradient that differs from the stream's and that W does not read is in the frame.
  const bool is_left = weight_reads_gradient() || shares_gradient(context_);
  const Matrix whole =
      is_left ? left_gradient(call, {}) : frame.take(context_.compute(), tensor.all_rows(), hidden_size());
  const Matrix d_branch = branch_gradient(call, gradient.d_out, {whole}).x;
  experts_backward(call, d_branch);
  const Matrix part = frame.take(context_.compute(), tensor.all_rows(), hidden_size());
  input_gradient(call, d_branch, part);
  const TensorRows::Reduction d_norm = tensor.begin_sum(part, frame);
  if (with_weights) weight_gradients(call, d_branch);
  norm_.backward_input(call, {tensor.wait(d_norm), gradient.x, gradient.d_out.x, gradient.dx});
  if (with_weights) add_norm_gradients(call);
}

void RoutedBranch::weight_gradients(const LayerCall& call, const Matrix& d_branch) {
  WorkspaceFrame frame(*call.workspace);
  const Matrix rows = all_rows(at(call, normed_), frame);
  {
    WorkspaceFrame inner(*call.workspace);
    const Matrix wide = in_f32(rows, inner);
    if (shared_ && shared_->has_gate()) shared_->gate_weight_gradient(call, wide);
    context_.backend.run(LinearBackwardWeight{.x = router_rows(call, wide, inner),
                                              .dy = at(call, d_logits_),
                                              .dw = router_.gradient(call),
                                              .d_bias = {},
                                              .accumulate = call.accumulate,
                                              .true_out = counted_experts()});
  }
  for (const Parameter& loads : {bias_, excess_}) {
    if (loads.given() && !call.accumulate) context_.backend.run(WriteZeros{loads.gradient(call)});
  }
  const auto accumulate = [&](const Matrix& x, const Matrix& dy, const Parameter& parameter) {
    context_.backend.run(GroupedLinearBackwardWeight{.x = x,
                                                     .dy = dy,
                                                     .offsets = rows_of_experts_->offsets(call),
                                                     .dw = parameter.in(expert_parameters(call).gradients, DType::f32),
                                                     .accumulate = call.accumulate,
                                                     .expected_rows = rows_of_experts_->expected_rows()});
  };
  {
    WorkspaceFrame inner(*call.workspace);
    accumulate(rows_of_experts_->inputs(call, rows, inner), at(call, d_hidden_), in_);
  }
  {
    WorkspaceFrame inner(*call.workspace);
    accumulate(at(call, activated_), rows_of_experts_->gradients(call, d_branch, inner), out_);
  }
  if (shared_) shared_->backward_weight(call, d_branch);
}

void RoutedBranch::backward_weight(const LayerCall& call, const Matrix& d_out) {
  weight_gradients(call, left_gradient(call, d_out));
  add_norm_gradients(call);
}

}  // namespace

std::unique_ptr<Branch> make_routed_branch(const LayerContext& context, LayerLayout& layout, int64_t layer,
                                           const UnitTensors& tensors) {
  return std::make_unique<RoutedBranch>(context, layout, layer, tensors);
}

}  // namespace gptrain::model
