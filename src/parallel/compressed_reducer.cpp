#include "parallel/compressed_reducer.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "ops/block_codes.h"

namespace gptrain::inline parallel {
namespace {

constexpr int64_t f32_bytes = dtype_bytes(DType::f32);

Matrix floats(std::byte* values, int64_t first, int64_t count) {
  return {values + first * f32_bytes, DType::f32, 1, count};
}

class CompressedReducer final : public GradientReducer {
 public:
  CompressedReducer(const ReductionContext& context, const GradientCompression& compression)
      : context_(context), compression_(compression), has_errors_(compression.messages.units.size(), false) {
    for (size_t unit = 0; unit < has_errors_.size(); ++unit) {
      const UnitMessages& messages = compression.messages.units[unit];
      Parts& parts = parts_.emplace_back();
      if (!messages.is_coded()) continue;
      const auto own = static_cast<size_t>(rank_in_group(static_cast<int64_t>(unit)));
      for (int64_t peer = 0; peer < std::ssize(messages.pieces); ++peer) {
        const int64_t start = peer * messages.stride;
        const PeerPart part{start, messages.pieces[peer].bytes};
        const int64_t own_bytes = messages.pieces[own].bytes;
        parts.pieces.push_back(part);
        parts.own_from_all.push_back({start, own_bytes});
        parts.own_to_all.push_back({static_cast<int64_t>(own) * messages.stride, own_bytes});
      }
    }
  }

  int phases(int64_t unit) const override {
    return messages(unit).is_coded() && !context_.parameters.sharding().cuts_state() ? 2 : 1;
  }
  bool begins_with_ops() const override { return true; }

  Lane::Ticket begin(int64_t unit, int phase, const UnitGradients& of) override {
    if (!messages(unit).is_coded()) return plain_sum(context_, unit, of.whole, DType::f32);
    const Parts& parts = parts_[unit];
    if (phase == 0) {
      encode_all(unit, of);
      return exchange(unit, of, parts.pieces, parts.own_from_all);
    }
    add_up(unit, of);
    encode_sum(unit, of);
    return exchange(unit, of, parts.own_to_all, parts.pieces);
  }

  void finish(int64_t unit, const UnitGradients& of) override {
    if (!messages(unit).is_coded()) return;
    if (phases(unit) == 1) return add_up(unit, of);
    const std::vector<PieceMessage>& pieces = messages(unit).pieces;
    for (size_t piece = 0; piece < pieces.size(); ++piece) {
      for (const MessageRun& run : pieces[piece].runs)
        decode(run, received(unit, of, static_cast<int64_t>(piece)), floats(of.whole, run.first, run.count));
    }
  }

  void end_step(int64_t unit) override {
    if (!has_errors_[unit]) return;
    has_errors_[unit] = false;
    const UnitMessages& of = messages(unit);
    context_.backend.run(KeepResidual{.state = compression_.state,
                                      .errors = floats(compression_.errors, of.first_residual, of.num_residuals),
                                      .residual = floats(compression_.residuals, of.first_residual, of.num_residuals)});
  }

 private:
  // Parts of buffers with messages: those of all pieces, this rank's from each peer, and this rank's for each peer.
  struct Parts {
    std::vector<PeerPart> pieces, own_from_all, own_to_all;
  };

  const UnitMessages& messages(int64_t unit) const { return compression_.messages.units[unit]; }
  int64_t rank_in_group(int64_t unit) const { return context_.parameters.replica_rank(unit).rank; }
  const PieceMessage& own_piece(int64_t unit) const { return messages(unit).pieces[rank_in_group(unit)]; }
  std::byte* sent(int64_t unit, const UnitGradients& of, int64_t piece) const {
    return of.narrow + piece * messages(unit).stride;
  }
  std::byte* received(int64_t unit, const UnitGradients& of, int64_t from) const {
    return of.narrow + (std::ssize(messages(unit).pieces) + from) * messages(unit).stride;
  }

  Lane::Ticket exchange(int64_t unit, const UnitGradients& of, const std::vector<PeerPart>& sent_parts,
                        const std::vector<PeerPart>& received_parts) const {
    Communicator* const replicas =
        context_.groups.group(LaneKind::gradients, kind_of(context_.parameters.layout().units[unit].replicas));
    return context_.groups.lane(LaneKind::gradients)
        .all_to_all_v(replicas, sent(unit, of, 0), sent_parts, received(unit, of, 0), received_parts, DType::u8);
  }

  // Calls body(first, rows, cols) for parts of `count` elements: rows that threads can share, then the rest.
  template <typename Body>
  static void for_each_rows(int64_t count, const Body& body) {
    constexpr int64_t cols = 128 * code_block;
    if (const int64_t rows = count / cols; rows > 0) body(int64_t{0}, rows, cols);
    if (const int64_t rest = count % cols; rest > 0) body(count - rest, int64_t{1}, rest);
  }

  void encode(const MessageRun& run, const Matrix& values, std::byte* message) const {
    if (!run.is_coded())
      return context_.backend.run(Cast{.from = values, .to = floats(message + run.values, 0, run.count)});
    for_each_rows(run.count, [&](int64_t first, int64_t rows, int64_t cols) {
      context_.backend.run(EncodeBlocks{.x = Matrix(values.as<float>() + first, DType::f32, rows, cols),
                                        .codes = Matrix(message + run.values + first, DType::u8, rows, cols),
                                        .scales = scales(run, message, first, rows, cols)});
    });
  }
  void decode(const MessageRun& run, std::byte* message, const Matrix& values) const {
    if (!run.is_coded())
      return context_.backend.run(Cast{.from = floats(message + run.values, 0, run.count), .to = values});
    for_each_rows(run.count, [&](int64_t first, int64_t rows, int64_t cols) {
      context_.backend.run(DecodeBlocks{.codes = Matrix(message + run.values + first, DType::u8, rows, cols),
                                        .scales = scales(run, message, first, rows, cols),
                                        .x = Matrix(values.as<float>() + first, DType::f32, rows, cols)});
    });
  }
  static Matrix scales(const MessageRun& run, std::byte* message, int64_t first, int64_t rows, int64_t cols) {
    return {message + run.scales + first / code_block * f32_bytes, DType::f32, rows, code_blocks(cols)};
  }

  // errors = values - errors, where `errors` holds the decoded values.
  void subtract_from(const Matrix& values, const Matrix& errors) const {
    context_.backend.run(WeightedSum{.a = values, .a_factor = 1, .b = errors, .b_factor = -1, .to = errors});
  }

  // Writes the messages with this rank's gradients of all pieces. The first sum of a step adds the errors that earlier
  // steps left, each later sum the errors of the sum before it.
  void encode_all(int64_t unit, const UnitGradients& of) {
    const bool keeps = compression_.errors != nullptr;
    const bool is_first = !has_errors_[unit];
    std::byte* const before = is_first ? compression_.residuals : compression_.errors;
    const std::vector<PieceMessage>& pieces = messages(unit).pieces;
    for (size_t piece = 0; piece < pieces.size(); ++piece) {
      std::byte* const message = sent(unit, of, static_cast<int64_t>(piece));
      for (const MessageRun& run : pieces[piece].runs) {
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

  // Returns the offset of a run in the piece after this rank's: memory of the unit's buffer that is free once its
  // gradients are coded.
  Matrix spare(int64_t unit, const UnitGradients& of, const MessageRun& run) const {
    const ParameterStore& parameters = context_.parameters;
    const int64_t other = (rank_in_group(unit) + 1) % std::ssize(messages(unit).pieces);
    const int64_t in_piece = run.first - parameters.piece(unit).first;
    return floats(of.whole, parameters.piece(unit, other).first + in_piece, run.count);
  }

  // Adds up the messages for this rank's piece in rank order.
  void add_up(int64_t unit, const UnitGradients& of) const {
    for (const MessageRun& run : own_piece(unit).runs) {
      const Matrix sum = floats(of.whole, run.first, run.count);
      decode(run, received(unit, of, 0), sum);
      for (int64_t rank = 1; rank < std::ssize(messages(unit).pieces); ++rank) {
        const Matrix other =
            run.is_coded() ? spare(unit, of, run) : floats(received(unit, of, rank) + run.values, 0, run.count);
        if (run.is_coded()) decode(run, received(unit, of, rank), other);
        context_.backend.run(Add{.from = other, .to = sum});
      }
    }
  }

  // Writes the message with the sum of this rank's piece, and adds its errors to those of the step.
  void encode_sum(int64_t unit, const UnitGradients& of) const {
    std::byte* const message = sent(unit, of, rank_in_group(unit));
    for (const MessageRun& run : own_piece(unit).runs) {
      const Matrix sum = floats(of.whole, run.first, run.count);
      encode(run, sum, message);
      if (compression_.errors == nullptr || !run.is_coded()) continue;
      const Matrix errors = spare(unit, of, run);
      decode(run, message, errors);
      subtract_from(sum, errors);
      context_.backend.run(Add{.from = errors, .to = floats(compression_.errors, run.residual, run.count)});
    }
  }

  const ReductionContext context_;
  const GradientCompression compression_;
  std::vector<Parts> parts_;      // by unit
  std::vector<bool> has_errors_;  // by unit: a sum of this step has left errors
};

}  // namespace

std::unique_ptr<GradientReducer> make_compressed_reducer(const ReductionContext& context,
                                                         const GradientCompression& compression) {
  return std::make_unique<CompressedReducer>(context, compression);
}

}  // namespace gptrain::parallel
