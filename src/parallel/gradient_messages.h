// Messages in which ranks exchange compressed gradients: their parts, their bytes, and the errors of their codes.
#pragma once

#include <cstdint>
#include <vector>

#include "config/run_config.h"
#include "parallel/parameters.h"

namespace gptrain::inline parallel {

// Elements of a unit that lie together in a message: coded (ops/block_codes.h), or as they are, in f32.
struct MessageRun {
  int64_t first;     // elements from the unit's start
  int64_t count;     // number of elements
  int64_t residual;  // coded: place of the elements' errors in a buffer of all errors, in elements; -1: not coded
  int64_t scales;    // coded: bytes from the message's start to the scales
  int64_t values;    // bytes from the message's start to the codes or the elements

  bool is_coded() const { return residual >= 0; }
};

// The message with one piece of a unit.
struct PieceMessage {
  std::vector<MessageRun> runs;
  int64_t bytes = 0;
};

// The messages of a unit, one for each piece.
struct UnitMessages {
  std::vector<PieceMessage> pieces;  // empty: the unit has no coded elements and is summed as it is
  int64_t stride = 0;                // bytes from one message to the next in a buffer, at least those of the longest
  int64_t first_residual = 0;        // place of the unit's errors
  int64_t num_residuals = 0;         // number of coded elements

  bool is_coded() const { return !pieces.empty(); }
  // Returns the bytes of a sum's buffer: the messages that the rank sends, then those that it receives.
  int64_t buffer_bytes() const { return 2 * std::ssize(pieces) * stride; }
};

// The elements of one tensor whose errors a rank keeps: a box of the global tensor, contiguous in the buffer of errors.
struct ResidualBox {
  int64_t tensor;  // index in the spec
  std::vector<int64_t> offset, shape;
  int64_t first;  // place in the buffer of errors

  int64_t count() const { return element_count(shape); }
};

struct GradientMessages {
  std::vector<UnitMessages> units;
  std::vector<ResidualBox> boxes;
  int64_t num_residuals = 0;  // elements of a buffer of errors

  // Returns the bytes of such a buffer.
  int64_t residual_bytes() const { return num_residuals * dtype_bytes(DType::f32); }
  // Returns the bytes of a copy of `boxes` in which each starts at a multiple of memory_alignment.
  int64_t snapshot_bytes() const;
};

// Whether gradients of a tensor are coded: those of large matrices, unless several tensor ranks must have the same
// sum of them, which codes in other blocks would make differ.
bool codes_gradients(const CompressionConfig& compression, const TensorSpec& tensor, int64_t tensor_ranks);

// Returns the messages of a rank; none if nothing is compressed. Tensors of which another stage has the checkpointed
// copy are not coded.
GradientMessages make_gradient_messages(const CompressionConfig& compression, const ModelSpec& spec,
                                        const std::vector<TensorShard>& shards, const ParameterLayout& layout,
                                        int64_t tensor_ranks);

// Returns the bytes of the errors in a checkpoint that the ranks of one copy of the model keep.
int64_t all_residual_bytes(const CompressionConfig& compression, const ModelSpec& spec, int64_t tensor_ranks);

}  // namespace gptrain::parallel
