#include "parallel/compressed_reducer.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "model/record.h"
#include "ops/block_codes.h"
#include "parallel/code_rows.h"

namespace gptrain::inline parallel {
namespace {

constexpr int64_t f32_bytes = dtype_bytes(DType::f32);

void add_run(PieceMessage& message, int64_t first, int64_t end, int64_t residual) {
  if (first < end)
    message.runs.push_back({.first = first, .count = end - first, .residual = residual, .scales = 0, .values = 0});
}

// Returns the runs of elements [first, end) of a unit.
PieceMessage runs_of(const std::vector<CodedTensor>& coded, int64_t first, int64_t end) {
  PieceMessage message;
  int64_t at = first;
  for (const CodedTensor& tensor : coded) {
    const int64_t from = std::clamp(tensor.first, at, end);
    const int64_t to = std::clamp(tensor.first + tensor.count, at, end);
    add_run(message, at, from, -1);
    add_run(message, from, to, std::max<int64_t>(0, tensor.residual + from - tensor.first));
    at = to;
  }
  add_run(message, at, end, -1);
  return message;
}

// Lays out a message: first all that is f32, then the codes.
void assign_offsets(PieceMessage& message, int bits) {
  for (MessageRun& run : message.runs) {
    (run.is_coded() ? run.scales : run.values) = message.bytes;
    message.bytes += (run.is_coded() ? code_blocks(run.count) : run.count) * dtype_bytes(DType::f32);
  }
  for (MessageRun& run : message.runs) {
    if (!run.is_coded()) continue;
    run.values = message.bytes;
    message.bytes += code_bytes_of(run.count, bits);
  }
}

std::shared_ptr<const UnitLayout> lay_out_pieces(const CodedUnit& unit, GradientMessages& messages) {
  auto layout = std::make_shared<UnitPieces>();
  const int64_t elements = unit.range.piece_elements();
  for (int64_t piece = 0; piece < unit.range.pieces; ++piece) {
    PieceMessage& message =
        layout->pieces.emplace_back(runs_of(unit.tensors, piece * elements, (piece + 1) * elements));
    assign_offsets(message, messages.bits);
    layout->stride = std::max(layout->stride, align_up(message.bytes));
  }
  layout->num_of_share = unit.range.pieces / messages.in_node.size;
  layout->first_of_share = messages.in_node.rank * layout->num_of_share;
  return layout;
}

// Takes matrices of blocks only, as a step has gradients only of those rows of the tables whose tokens are in its
// batch.
bool is_of_block(const CompressionConfig&, const TensorSpec& tensor) { return tensor.of_block_matrix; }

class CompressedReducer final : public GradientReducer {
 public:
  CompressedReducer(const ReductionContext& context, const GradientCompression& compression)
      : context_(context),
        compression_(compression),
        cuts_(context.parameters.sharding().cuts_state()),
        has_errors_(compression.messages.units.size(), false) {
    for (int64_t unit = 0; unit < std::ssize(has_errors_); ++unit) {
      Parts& parts = parts_.emplace_back();
      if (!messages(unit).is_coded()) continue;
      const UnitPieces& pieces = layout(unit);
      for (int64_t i = 0; i < pieces.num_of_share; ++i) {
        const int64_t start = i * pieces.stride;
        parts.pieces.push_back({start, piece(unit, i).bytes});
        parts.own_from_all.push_back({start, own_piece(unit).bytes});
        parts.own_to_all.push_back({place_in_share(unit) * pieces.stride, own_piece(unit).bytes});
      }
    }
  }

  int phases(int64_t unit) const override { return messages(unit).is_coded() ? layout(unit).phases(cuts_) : 1; }
  bool begins_with_ops() const override { return compression_.messages.in_node.size == 1; }

  Lane::Ticket begin(int64_t unit, int phase, const UnitGradients& of) override {
    if (!messages(unit).is_coded()) return plain_sum(context_, unit, of.whole, DType::f32);
    const bool sums_in_node = layout(unit).sums_in_node();
    if (sums_in_node && phase == 0) return sum_in_node(context_, unit, of.whole, DType::f32);
    const Parts& parts = parts_[unit];
    if (phase == (sums_in_node ? 1 : 0)) {
      if (compression_.momenta) take_momentum(unit, of);
      encode_all(unit, of);
      return exchange(unit, of, parts.pieces, parts.own_from_all);
    }
    add_up(unit, of);
    encode_sum(unit, of);
    const Lane::Ticket of_share = exchange(unit, of, parts.own_to_all, parts.pieces);
    if (!sums_in_node) return of_share;
    const UnitPieces& pieces = layout(unit);
    return lane().all_gather(group(unit, node_kind_of), received(unit, of, 0),
                             received(unit, of, -pieces.first_of_share), pieces.num_of_share * pieces.stride,
                             DType::u8);
  }

  void finish(int64_t unit, const UnitGradients& of) override {
    if (!messages(unit).is_coded()) return;
    if (cuts_) return add_up(unit, of);
    const UnitPieces& all = layout(unit);
    for (int64_t i = -all.first_of_share; i < std::ssize(all.pieces) - all.first_of_share; ++i) {
      for (const MessageRun& run : piece(unit, i).runs)
        decode(run, received(unit, of, i), floats(of.whole, run.first, run.count));
    }
  }

  void end_step(int64_t unit) override {
    if (!has_errors_[unit]) return;
    has_errors_[unit] = false;
    keep_errors(context_.backend, compression_, unit);
    if (!compression_.server_errors) return;
    for (const MessageRun& run : own_piece(unit).runs) {
      if (!run.is_coded()) continue;
      context_.backend.run(KeepResidual{.state = compression_.state,
                                        .errors = new_server_errors(unit, run),
                                        .residual = server_errors(unit, run, rank_in_group(unit))});
    }
  }

 private:
  // Parts of buffers with messages: those of the share's pieces, this rank's from each peer, and this rank's for each
  // peer.
  struct Parts {
    std::vector<PeerPart> pieces, own_from_all, own_to_all;
  };

  const UnitMessages& messages(int64_t unit) const { return compression_.messages.units[unit]; }
  const UnitPieces& layout(int64_t unit) const { return messages(unit).as<UnitPieces>(); }
  int bits() const { return compression_.messages.bits; }
  int64_t rank_in_group(int64_t unit) const { return context_.parameters.replica_rank(unit).rank; }
  // Returns a piece by its place in the share, negative or beyond the share's end for those of other shares.
  const PieceMessage& piece(int64_t unit, int64_t in_share) const {
    return layout(unit).pieces[layout(unit).first_of_share + in_share];
  }
  int64_t place_in_share(int64_t unit) const { return rank_in_group(unit) - layout(unit).first_of_share; }
  const PieceMessage& own_piece(int64_t unit) const { return piece(unit, place_in_share(unit)); }
  // Return the message of a piece, by its place in the share, and the message from a peer, or the coded sum of a piece.
  std::byte* sent(int64_t unit, const UnitGradients& of, int64_t in_share) const {
    return of.narrow + in_share * layout(unit).stride;
  }
  std::byte* received(int64_t unit, const UnitGradients& of, int64_t in_share) const {
    const UnitPieces& pieces = layout(unit);
    return of.narrow + (pieces.num_of_share + (cuts_ ? 0 : pieces.first_of_share) + in_share) * pieces.stride;
  }
  Lane& lane() const { return context_.groups.lane(LaneKind::gradients); }
  Communicator* group(int64_t unit, GroupKind (*kind)(ReplicaGroup)) const {
    return context_.groups.group(LaneKind::gradients, kind(context_.parameters.layout().units[unit].replicas));
  }

  Lane::Ticket exchange(int64_t unit, const UnitGradients& of, const std::vector<PeerPart>& sent_parts,
                        const std::vector<PeerPart>& received_parts) const {
    return lane().all_to_all_v(group(unit, layout(unit).sums_in_node() ? nodes_kind_of : kind_of), sent(unit, of, 0),
                               sent_parts, received(unit, of, 0), received_parts, DType::u8);
  }

  void encode(const MessageRun& run, const Matrix& values, std::byte* message) const {
    if (!run.is_coded())
      return context_.backend.run(Cast{.from = values, .to = floats(message + run.values, 0, run.count)});
    encode_row(context_.backend, values, {message + run.values, message + run.scales, bits()});
  }
  void decode(const MessageRun& run, std::byte* message, const Matrix& values) const {
    if (!run.is_coded())
      return context_.backend.run(Cast{.from = floats(message + run.values, 0, run.count), .to = values});
    decode_row(context_.backend, {message + run.values, message + run.scales, bits()}, values);
  }

  // Turns the rank's gradients into its share of the next momentum.
  void take_momentum(int64_t unit, const UnitGradients& of) const {
    const ParameterStore& parameters = context_.parameters;
    const Matrix gradients = floats(of.whole, 0, parameters.layout().units[unit].elements);
    const double beta1 = compression_.momenta->beta1;
    context_.backend.run(
        WeightedSum{.a = gradients,
                    .a_factor = 1 - beta1,
                    .b = floats(parameters.column(compression_.momenta->moment, unit), 0, gradients.cols),
                    .b_factor = beta1 / static_cast<double>(parameters.replica_rank(unit).size),
                    .to = gradients});
  }

  // errors = values - errors, where `errors` holds the decoded values.
  void subtract_from(const Matrix& values, const Matrix& errors) const {
    context_.backend.run(WeightedSum{.a = values, .a_factor = 1, .b = errors, .b_factor = -1, .to = errors});
  }

  // Writes the messages with the gradients of this rank, or of its node, of the share's pieces. The first sum of a step
  // adds the errors that earlier steps left, each later sum the errors of the sum before it.
  void encode_all(int64_t unit, const UnitGradients& of) {
    const bool keeps = compression_.errors != nullptr;
    const bool is_first = !has_errors_[unit];
    std::byte* const before = is_first ? compression_.residuals : compression_.errors;
    for (int64_t i = 0; i < layout(unit).num_of_share; ++i) {
      std::byte* const message = sent(unit, of, i);
      for (const MessageRun& run : piece(unit, i).runs) {
        const Matrix values = floats(of.whole, run.first, run.count);
        const bool with_errors = keeps && run.is_coded();
        if (with_errors) context_.backend.run(Add{.from = floats(before, run.residual, run.count), .to = values});
        encode(run, values, message);
        if (!with_errors) continue;
        const Matrix errors = floats(compression_.errors, run.residual, run.count);
        decode(run, message, errors);
        subtract_from(values, errors);
      }
    }
    if (keeps) has_errors_[unit] = true;
  }

  // Returns the place of a run of this rank's piece in another rank's.
  Matrix in_piece(std::byte* unit_elements, int64_t unit, const MessageRun& run, int64_t rank) const {
    const ParameterStore& parameters = context_.parameters;
    return floats(unit_elements, parameters.piece(unit, rank).first + run.first - parameters.piece(unit).first,
                  run.count);
  }
  // Returns the rank with the next piece of the share.
  int64_t next_rank(int64_t unit) const {
    return layout(unit).first_of_share + (place_in_share(unit) + 1) % layout(unit).num_of_share;
  }
  // Returns memory of the unit's buffer that is free once its gradients are coded.
  Matrix spare(int64_t unit, const UnitGradients& of, const MessageRun& run) const {
    return in_piece(of.whole, unit, run, next_rank(unit));
  }
  Matrix server_errors(int64_t unit, const MessageRun& run, int64_t rank) const {
    return in_piece(context_.parameters.column(*compression_.server_errors, unit), unit, run, rank);
  }
  // Returns memory for the errors that this step leaves.
  Matrix new_server_errors(int64_t unit, const MessageRun& run) const {
    return server_errors(unit, run, next_rank(unit));
  }

  // Adds up the messages for this rank's piece in the order of ranks, or nodes.
  void add_up(int64_t unit, const UnitGradients& of) const {
    for (const MessageRun& run : own_piece(unit).runs) {
      const Matrix sum = floats(of.whole, run.first, run.count);
      decode(run, received(unit, of, 0), sum);
      for (int64_t rank = 1; rank < layout(unit).num_of_share; ++rank) {
        const Matrix other =
            run.is_coded() ? spare(unit, of, run) : floats(received(unit, of, rank) + run.values, 0, run.count);
        if (run.is_coded()) decode(run, received(unit, of, rank), other);
        context_.backend.run(Add{.from = other, .to = sum});
      }
    }
  }

  // Writes the message with the sum of this rank's piece. Adds its errors to those of the step, or keeps them apart.
  void encode_sum(int64_t unit, const UnitGradients& of) const {
    std::byte* const message = sent(unit, of, place_in_share(unit));
    for (const MessageRun& run : own_piece(unit).runs) {
      const Matrix sum = floats(of.whole, run.first, run.count);
      const bool apart = compression_.server_errors && run.is_coded();
      if (apart) context_.backend.run(Add{.from = server_errors(unit, run, rank_in_group(unit)), .to = sum});
      encode(run, sum, message);
      if (compression_.errors == nullptr || !run.is_coded()) continue;
      const Matrix errors = apart ? new_server_errors(unit, run) : spare(unit, of, run);
      decode(run, message, errors);
      subtract_from(sum, errors);
      if (apart) continue;
      context_.backend.run(Add{.from = errors, .to = floats(compression_.errors, run.residual, run.count)});
    }
  }

  const ReductionContext context_;
  const GradientCompression compression_;
  const bool cuts_;               // ranks keep pieces of the sums only
  std::vector<Parts> parts_;      // by unit
  std::vector<bool> has_errors_;  // by unit: a sum of this step has left errors
};

class LoneReducer final : public GradientReducer {
 public:
  LoneReducer(const ReductionContext& context, const GradientMessages& messages)
      : context_(context), messages_(messages) {}

  Lane::Ticket begin(int64_t unit, int, const UnitGradients& of) override {
    return is_alone(unit) ? Lane::done : plain_sum(context_, unit, of.whole, DType::f32);
  }
  void finish(int64_t unit, const UnitGradients& of) override {
    if (is_alone(unit)) return;
    const ParameterStore& parameters = context_.parameters;
    const Matrix gradients = floats(of.whole, 0, parameters.layout().units[unit].elements);
    const double share = 1 / static_cast<double>(parameters.replica_rank(unit).size);
    if (gradients.cols > 0)
      context_.backend.run(WeightedSum{.a = gradients, .a_factor = share, .b = {}, .b_factor = 0, .to = gradients});
  }

 private:
  bool is_alone(int64_t unit) const { return messages_.units[unit].is_coded(); }

  const ReductionContext context_;
  const GradientMessages& messages_;
};

}  // namespace

std::unique_ptr<GradientReducer> make_lone_reducer(const ReductionContext& context, const GradientMessages& messages) {
  return std::make_unique<LoneReducer>(context, messages);
}

const GradientSum coded_sum{.takes = nullptr, .lay_out = lay_out_pieces, .make_reducer = make_compressed_reducer};
const GradientSum signs_sum{.takes = is_of_block, .lay_out = lay_out_pieces, .make_reducer = make_compressed_reducer};

std::unique_ptr<GradientReducer> make_compressed_reducer(const ReductionContext& context,
                                                         const GradientCompression& compression) {
  return std::make_unique<CompressedReducer>(context, compression);
}

}  // namespace gptrain::parallel
