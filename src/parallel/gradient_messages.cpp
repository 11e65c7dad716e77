#include "parallel/gradient_messages.h"

#include <algorithm>
#include <cmath>

#include "model/record.h"
#include "ops/block_codes.h"

namespace gptrain::inline parallel {
namespace {

// A tensor's elements within its unit, and the offset of their errors.
struct CodedTensor {
  int64_t tensor;  // index in the spec
  int64_t first, count, residual;
};

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
    add_run(message, from, to, tensor.residual + from - tensor.first);
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

bool all_owned(const TensorShard& shard) {
  return !shard.boxes.empty() &&
         std::all_of(shard.boxes.begin(), shard.boxes.end(), [](const ShardBox& box) { return box.owned; });
}

int64_t whole_units(int64_t elements) { return (elements + unit_multiple - 1) / unit_multiple * unit_multiple; }

void take_messages(UnitMessages& of_unit, const std::vector<CodedTensor>& coded, const UnitRange& range, int bits) {
  for (int64_t piece = 0; piece < range.pieces; ++piece) {
    PieceMessage& message = of_unit.pieces.emplace_back(
        runs_of(coded, piece * range.piece_elements(), (piece + 1) * range.piece_elements()));
    assign_offsets(message, bits);
    of_unit.stride = std::max(of_unit.stride, align_up(message.bytes));
  }
}

// Lays out the elements of a unit that are summed as they are, from the offset `at` on, which it moves on.
std::vector<PlainRun> plain_runs(const std::vector<CodedTensor>& coded, const UnitRange& range, int64_t& at) {
  std::vector<PlainRun> plain;
  for (const MessageRun& run : runs_of(coded, 0, range.elements).runs) {
    if (run.is_coded()) continue;
    plain.push_back({.first = run.first, .count = run.count, .at = at});
    at += whole_units(run.count);
  }
  return plain;
}

void take_sparse(UnitSparse& sparse, const std::vector<CodedTensor>& coded, const UnitRange& range, double share) {
  sparse.ranks = range.pieces;
  for (const CodedTensor& tensor : coded) {
    const auto kept = static_cast<int64_t>(std::ceil(share * static_cast<double>(tensor.count)));
    const int64_t indices = sparse.message_bytes, values = indices + kept * dtype_bytes(DType::i32);
    sparse.matrices.push_back({.tensor = tensor.tensor,
                               .first = tensor.first,
                               .count = tensor.count,
                               .residual = tensor.residual,
                               .kept = kept,
                               .indices = indices,
                               .values = values});
    sparse.message_bytes = values + kept * dtype_bytes(DType::f32);
  }
  sparse.plain = plain_runs(coded, range, sparse.plain_elements);
}

// Lays out the factors in the buffer of errors, behind the unit's errors, and in a sum's buffer.
void take_factors(GradientMessages& messages, UnitMessages& of_unit, const std::vector<CodedTensor>& coded,
                  const UnitRange& range, const CompressionConfig& compression, const ModelSpec& spec) {
  UnitFactors& factors = of_unit.factors;
  for (const CodedTensor& tensor : coded) {
    const int64_t cols = spec.tensors[tensor.tensor].shape.back(), rows = tensor.count / cols;
    factors.matrices.push_back({.tensor = tensor.tensor,
                                .first = tensor.first,
                                .rows = rows,
                                .cols = cols,
                                .residual = tensor.residual,
                                .factor = messages.num_residuals,
                                .left = factors.first_phase,
                                .right = factors.second_phase});
    messages.boxes.push_back({.tensor = tensor.tensor,
                              .offset = {0, 0},
                              .shape = {compression.rank, cols},
                              .first = messages.num_residuals,
                              .is_factor = true});
    messages.num_residuals += whole_units(cols * compression.rank);
    factors.first_phase += whole_units(rows * compression.rank);
    factors.second_phase += whole_units(cols * compression.rank);
  }
  factors.plain = plain_runs(coded, range, factors.first_phase);
  for (LowRankMatrix& matrix : factors.matrices) matrix.right += factors.first_phase;
}

}  // namespace

int64_t UnitMessages::buffer_bytes() const {
  return 2 * std::ssize(pieces) * stride + (factors.first_phase + factors.second_phase) * dtype_bytes(DType::f32) +
         sparse.message_of(sparse.ranks);
}

bool codes_gradients(const CompressionConfig& compression, const TensorSpec& tensor, int64_t tensor_ranks) {
  if (!compression.is_on() || !tensor.is_matrix() || tensor.count() < compression.min_elements) return false;
  if (compression.kind == GradientCodec::signs && !tensor.of_block_matrix) return false;
  if (compression.is_low_rank()) {
    const int64_t cols = tensor.shape.back(), rows = tensor.count() / cols;
    if (2 * (rows + cols) * compression.rank >= tensor.count()) return false;
  }
  return tensor_ranks == 1 || (tensor.split != Split::none && shard_of(tensor, {tensor_ranks, 0}).shared_kv_count == 0);
}

GradientMessages make_gradient_messages(const CompressionConfig& compression, const ModelSpec& spec,
                                        const std::vector<TensorShard>& shards, const ParameterLayout& layout,
                                        int64_t tensor_ranks) {
  GradientMessages messages{.bits = compression.bits()};
  messages.units.resize(layout.units.size());
  for (size_t unit = 0; unit < layout.units.size(); ++unit) {
    const UnitRange& range = layout.units[unit];
    UnitMessages& of_unit = messages.units[unit];
    of_unit.first_residual = messages.num_residuals;
    if (range.elements == 0 || range.pieces == 1) continue;
    std::vector<CodedTensor> coded;
    for (auto i = static_cast<size_t>(range.first_tensor);
         i < static_cast<size_t>(range.first_tensor + range.num_tensors); ++i) {
      if (!codes_gradients(compression, spec.tensors[i], tensor_ranks) || !all_owned(shards[i])) continue;
      const Segment& segment = layout.segments[i];
      coded.push_back({.tensor = static_cast<int64_t>(i),
                       .first = segment.offset - range.offset,
                       .count = segment.count,
                       .residual = messages.num_residuals});
      for (const ShardBox& box : shards[i].boxes)
        messages.boxes.push_back({.tensor = static_cast<int64_t>(i),
                                  .offset = box.offset,
                                  .shape = box.shape,
                                  .first = messages.num_residuals + box.local_offset});
      messages.num_residuals += whole_units(segment.count);
    }
    if (coded.empty()) continue;
    std::sort(coded.begin(), coded.end(), [](const CodedTensor& a, const CodedTensor& b) { return a.first < b.first; });
    if (compression.is_low_rank()) {
      take_factors(messages, of_unit, coded, range, compression, spec);
    } else if (compression.is_sparse()) {
      take_sparse(of_unit.sparse, coded, range, compression.share);
    } else {
      take_messages(of_unit, coded, range, messages.bits);
    }
    of_unit.num_residuals = messages.num_residuals - of_unit.first_residual;
  }
  return messages;
}

bool GradientMessages::is_low_rank() const {
  return std::any_of(units.begin(), units.end(),
                     [](const UnitMessages& unit) { return !unit.factors.matrices.empty(); });
}

bool GradientMessages::is_sparse() const {
  return std::any_of(units.begin(), units.end(),
                     [](const UnitMessages& unit) { return !unit.sparse.matrices.empty(); });
}

int64_t GradientMessages::snapshot_bytes(bool with_factors) const {
  int64_t bytes = 0;
  for (const ResidualBox& box : boxes)
    if (with_factors || !box.is_factor) bytes += align_up(box.count() * dtype_bytes(DType::f32));
  return bytes;
}

int64_t all_residual_bytes(const CompressionConfig& compression, const ModelSpec& spec, int64_t tensor_ranks,
                           int64_t data_ranks) {
  if (!compression.error || data_ranks == 1) return 0;
  int64_t elements = 0;
  for (const TensorSpec& tensor : spec.tensors) {
    if (!codes_gradients(compression, tensor, tensor_ranks)) continue;
    elements += data_ranks * tensor.count() + compression.rank * tensor.shape.back();
  }
  return elements * dtype_bytes(DType::f32);
}

}  // namespace gptrain::parallel
