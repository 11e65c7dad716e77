// Rows of experts that are spread over ranks. Each rank tells all others of its group how many rows it has for each
// expert. Then all-to-alls move the rows in the order of the senders' slots, and a rank arranges by expert those that
// it has received.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "model/expert_rows.h"
#include "model/expert_spread.h"

namespace gptrain::inline model {
namespace {

// RETURNS the number of tensor ranks between which the rows of a token are divided: those with whole experts. Ranks
// that share each expert send all rows to the ranks with the same part of the features.
int64_t num_shares(const LayerContext& context) { return context.tensor.size() / context.experts.axis.tensor.size; }

// RETURNS the bound of the rows that a rank's experts receive: as many as there is room for, or as many as can come.
int64_t row_bound(const LayerContext& context) {
  const MoeConfig& moe = context.shape.model.moe;
  const int64_t ranks = context.experts.axis.size, shares = num_shares(context), rows = context.shape.rows();
  const int64_t most_for_one = rows * std::min<int64_t>(moe.top_k, moe.experts / ranks);
  const double sent = static_cast<double>(rows * moe.top_k) / static_cast<double>(shares);
  return std::min(ranks * ((most_for_one + shares - 1) / shares),
                  static_cast<int64_t>(std::ceil(context.experts.capacity_factor * sent)));
}

// RETURNS ExpertSpread::first_share.
int64_t first_share(const LayerContext& context) {
  const int64_t shares = num_shares(context);
  return ((context.tensor.rank() - context.experts.axis.rank) % shares + shares) % shares;
}

// Writes numbers to device memory, in pieces of a fixed size.
class NumberUpload {
 public:
  NumberUpload(Backend& backend, const Matrix& to) : backend_(backend), to_(to.as<int32_t>()) {}
  NumberUpload(const NumberUpload&) = delete;
  NumberUpload& operator=(const NumberUpload&) = delete;

  // Adds first, first + 1 and so on.
  void add_run(int32_t first, int32_t count) {
    while (count > 0) {
      if (used_ == piece_.size()) flush();
      const auto part = static_cast<int32_t>(std::min(static_cast<size_t>(count), piece_.size() - used_));
      int32_t* const to = piece_.data() + used_;
      for (int32_t i = 0; i < part; ++i) to[i] = first + i;
      used_ += static_cast<size_t>(part);
      first += part;
      count -= part;
    }
  }
  void flush() {
    if (used_ == 0) return;
    backend_.upload(to_, piece_.data(), static_cast<int64_t>(used_ * sizeof(int32_t)));
    to_ += used_;
    used_ = 0;
  }

 private:
  Backend& backend_;
  int32_t* to_;
  std::array<int32_t, 16384> piece_;
  size_t used_ = 0;
};

class SpreadExpertRows final : public ExpertRows {
 public:
  SpreadExpertRows(const LayerContext& context, LayerLayout& layout, int64_t layer, const RoutedFields& routed);

  int64_t experts() const override { return spread_.own_experts(); }
  int64_t first_expert() const override { return axis().rank * experts(); }
  int64_t rows() const override { return spread_.bound; }
  int64_t expected_rows() const override { return std::min(rows(), num_assignments() / spread_.shares); }

  void route(const LayerCall& call) override;
  int64_t lost_rows() const override { return lost_rows_; }
  Matrix offsets(const LayerCall& call) const override { return layout_.at(call, offsets_); }
  Matrix weights(const LayerCall& call) const override { return layout_.at(call, weights_); }

  Matrix send_inputs(const LayerCall& call, const Matrix& x, WorkspaceFrame& frame) override {
    send(call, x, layout_.at(call, inputs_), frame);
    return layout_.at(call, inputs_);
  }
  Matrix send_gradients(const LayerCall& call, const Matrix& x, WorkspaceFrame& frame) override {
    find_parts(call);
    send(call, x, layout_.at(call, gradients_), frame);
    return layout_.at(call, gradients_);
  }
  Matrix inputs(const LayerCall& call, const Matrix&, WorkspaceFrame&) override { return layout_.at(call, inputs_); }
  Matrix gradients(const LayerCall& call, const Matrix&, WorkspaceFrame&) override {
    return layout_.at(call, gradients_);
  }
  bool regathers_rows() const override { return false; }
  Matrix take_back(const LayerCall& call, const Matrix& of_experts, WorkspaceFrame& frame) override;
  Matrix take_back_numbers(const LayerCall& call, const Matrix& of_experts, WorkspaceFrame& frame) override {
    const Matrix back = take_back(call, as_rows(of_experts), frame);
    return {back.data, back.dtype, 1, back.rows};
  }

 private:
  const ExpertRank& axis() const { return context_.experts.axis; }
  int64_t num_assignments() const { return context_.shape.rows() * context_.shape.model.moe.top_k; }
  // RETURNS numbers as rows of one.
  static Matrix as_rows(const Matrix& numbers) { return {numbers.data, numbers.dtype, numbers.cols, 1}; }
  // Learns the parts that this rank exchanges with each other from the saved offsets of all.
  void find_parts(const LayerCall& call);
  void note_overflow(int64_t rows);
  // Moves rows between their senders and the ranks of their experts.
  enum class Way : uint8_t { to_experts, back };
  void exchange(const Matrix& from, const Matrix& to, Way way);
  // Writes the maps between received rows and rows of experts.
  void upload_arrangement(const LayerCall& call);
  // Writes zeros into slots whose rows this rank has not sent.
  void clear_rows_not_sent(const Matrix& in_row_order) const;
  // Moves rows, in the order of slots, to the experts' ranks, and sorts them by expert there.
  void bring(const LayerCall& call, const Matrix& in_row_order, const Matrix& to);
  void send(const LayerCall& call, const Matrix& x, const Matrix& to, WorkspaceFrame& frame);
  void gather(const LayerCall& call, const Matrix& x, LayerLayout::Field rows, const Matrix& y) const {
    context_.backend.run(GatherRows{
        .x = x, .rows = layout_.at(call, rows), .offsets = offsets(call), .y = y, .expected_rows = expected_rows()});
  }

  const LayerContext& context_;
  const LayerLayout& layout_;
  const int64_t layer_;
  const RoutedFields routed_;
  const ExpertSpread spread_;
  RowArrangement arrangement_;
  LayerLayout::Field starts_;  // offsets of all ranks
  LayerLayout::Field offsets_, order_, received_order_, weights_, inputs_, gradients_;
  // The parts of a pass, which one call finds and the next ones use, in rows and in elements.
  std::vector<int32_t> host_starts_;
  int64_t lost_rows_ = 0;
  std::vector<PeerPart> sent_rows_, received_rows_, sent_, received_;
};

SpreadExpertRows::SpreadExpertRows(const LayerContext& context, LayerLayout& layout, int64_t layer,
                                   const RoutedFields& routed)
    : context_(context),
      layout_(layout),
      layer_(layer),
      routed_(routed),
      spread_{.ranks = axis().size,
              .experts = context.shape.model.moe.experts,
              .shares = num_shares(context),
              .first_share = first_share(context),
              .bound = row_bound(context)},
      arrangement_(spread_),
      sent_rows_(axis().size),
      received_rows_(sent_rows_),
      sent_(sent_rows_),
      received_(sent_rows_) {
  const DType c = context.compute();
  const int64_t hidden = context.shape.model.hidden_size;
  const auto for_weight = [](const char* name, DType dtype, int64_t rows, int64_t cols) {
    return SavedTensor{
        .name = name, .dtype = dtype, .rows = rows, .cols = cols, .last_reader = LastReader::weight_gradient};
  };
  starts_ = layout.save({"experts.starts", DType::i32, spread_.ranks, spread_.experts + 1});
  offsets_ = layout.save(for_weight("experts.offsets", DType::i32, 1, experts() + 1));
  order_ = layout.save({"experts.order", DType::i32, 1, rows()});
  received_order_ = layout.save({"experts.places", DType::i32, 1, rows()});
  weights_ = layout.save({"experts.weights", DType::f32, 1, rows()});
  inputs_ = layout.save(for_weight("experts.inputs", c, rows(), hidden));
  gradients_ = layout.leave({"experts.gradients", c, rows(), hidden});
  // A plan knows no numbers: it keeps these, of experts with equally many rows.
  host_starts_.resize(spread_.ranks * (spread_.experts + 1));
  const int64_t of_rank = num_assignments() / spread_.ranks;
  for (int64_t rank = 0; rank < spread_.ranks; ++rank) {
    for (int64_t expert = 0; expert <= spread_.experts; ++expert)
      host_starts_[rank * (spread_.experts + 1) + expert] = static_cast<int32_t>(expert * of_rank / experts());
  }
}

void SpreadExpertRows::note_overflow(int64_t rows) {
  ExpertOverflow* const overflow = context_.experts.overflow;
  if (overflow != nullptr && !context_.experts.drops && rows > spread_.bound && rows > overflow->rows)
    *overflow = {.rows = rows, .capacity = spread_.bound, .layer = layer_};
}

void SpreadExpertRows::find_parts(const LayerCall& call) {
  const Matrix starts = layout_.at(call, starts_);
  context_.backend.download(host_starts_.data(), starts.data, starts.bytes());
  lost_rows_ = 0;
  for (int64_t to = 0; to < spread_.ranks; ++to) {
    int64_t first = 0;
    const int64_t rows = spread_.each_sender(host_starts_, to, [&](int64_t from, ExpertSpread::Range range) {
      if (from == this->axis().rank) {
        sent_rows_[to] = {range.first, range.count};
        if (context_.experts.drops) lost_rows_ += spread_.sent(host_starts_, from, to).count - range.count;
      }
      if (to == this->axis().rank) received_rows_[from] = {first, range.count};
      first += range.count;
    });
    note_overflow(rows);
  }
}

void SpreadExpertRows::upload_arrangement(const LayerCall& call) {
  arrangement_.arrange(host_starts_, axis().rank);
  const std::vector<int32_t>& first_rows = arrangement_.offsets();
  context_.backend.upload(offsets(call).data, first_rows.data(),
                          static_cast<int64_t>(first_rows.size() * sizeof(int32_t)));
  NumberUpload order(context_.backend, layout_.at(call, order_)),
      received_order(context_.backend, layout_.at(call, received_order_));
  arrangement_.each_number([&](int32_t first, int32_t count) { order.add_run(first, count); });
  arrangement_.each_row([&](int32_t first, int32_t count) { received_order.add_run(first, count); });
  order.flush();
  received_order.flush();
}

void SpreadExpertRows::clear_rows_not_sent(const Matrix& in_row_order) const {
  const auto clear = [&](int64_t first, int64_t end) {
    const Matrix rows = in_row_order.row_range(first, end - first);
    if (first < end) context_.backend.run(WriteZeros{{rows.data, rows.dtype, 1, rows.rows * rows.cols}});
  };
  for (int64_t to = 0; to < spread_.ranks; ++to) {
    const ExpertSpread::Range all = spread_.rows_for(host_starts_, axis().rank, to);
    const PeerPart& own = sent_rows_[static_cast<size_t>(to)];
    clear(all.first, own.first);
    clear(own.first + own.count, all.first + all.count);
  }
}

void SpreadExpertRows::exchange(const Matrix& from, const Matrix& to, Way way) {
  const auto in_elements = [&](const std::vector<PeerPart>& rows, std::vector<PeerPart>& parts) {
    std::transform(rows.begin(), rows.end(), parts.begin(), [&](const PeerPart& part) {
      return PeerPart{part.first * from.cols, part.count * from.cols};
    });
  };
  in_elements(way == Way::to_experts ? sent_rows_ : received_rows_, sent_);
  in_elements(way == Way::to_experts ? received_rows_ : sent_rows_, received_);
  Lane& lane = *context_.experts.lane;
  lane.wait(lane.all_to_all_v(context_.experts.group, from.data, sent_, to.data, received_, from.dtype));
}

void SpreadExpertRows::bring(const LayerCall& call, const Matrix& in_row_order, const Matrix& to) {
  WorkspaceFrame frame(*call.workspace);
  const Matrix received = frame.take(to.dtype, rows(), to.cols);
  exchange(in_row_order, received, Way::to_experts);
  gather(call, received, order_, to);
}

void SpreadExpertRows::send(const LayerCall& call, const Matrix& x, const Matrix& to, WorkspaceFrame& frame) {
  const Matrix in_row_order = frame.take(x.dtype, num_assignments(), x.cols);
  context_.backend.run(GatherRows{
      .x = x, .rows = layout_.at(call, routed_.rows), .offsets = layout_.at(call, routed_.offsets), .y = in_row_order});
  bring(call, in_row_order, to);
}

void SpreadExpertRows::route(const LayerCall& call) {
  const Matrix starts = layout_.at(call, starts_);
  Lane& lane = *context_.experts.lane;
  lane.wait(lane.all_gather(context_.experts.group, layout_.at(call, routed_.offsets).data, starts.data, starts.cols,
                            starts.dtype));
  find_parts(call);
  upload_arrangement(call);
  bring(call, as_rows(layout_.at(call, routed_.weights)), as_rows(weights(call)));
}

Matrix SpreadExpertRows::take_back(const LayerCall& call, const Matrix& of_experts, WorkspaceFrame& frame) {
  const Matrix back = frame.take(of_experts.dtype, num_assignments(), of_experts.cols);
  WorkspaceFrame inner(*call.workspace);
  const Matrix as_received = inner.take(of_experts.dtype, rows(), of_experts.cols);
  gather(call, of_experts, received_order_, as_received);
  clear_rows_not_sent(back);
  exchange(as_received, back, Way::back);
  return back;
}

}  // namespace

std::unique_ptr<ExpertRows> make_spread_expert_rows(const LayerContext& context, LayerLayout& layout, int64_t layer,
                                                    const RoutedFields& routed) {
  return std::make_unique<SpreadExpertRows>(context, layout, layer, routed);
}

}  // namespace gptrain::model
