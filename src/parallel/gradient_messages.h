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
  int64_t residual;  // coded: offset of the elements' errors in a buffer of all errors, in elements; -1: not coded
  int64_t scales;    // coded: bytes from the message's start to the scales
  int64_t values;    // bytes from the message's start to the codes or the elements

  bool is_coded() const { return residual >= 0; }
};

// The message with one piece of a unit.
struct PieceMessage {
  std::vector<MessageRun> runs;
  int64_t bytes = 0;
};

// A matrix that is summed as two factors (parallel/low_rank_reducer.h).
struct LowRankMatrix {
  int64_t tensor;       // index in the spec
  int64_t first;        // elements from the unit's start
  int64_t rows, cols;   // padding included
  int64_t residual;     // offset of its errors in a buffer of all errors, in elements
  int64_t factor;       // offset of the right factor of the last sum in that buffer
  int64_t left, right;  // offsets of the factors in a sum's buffer, in elements
};

// Elements of a unit that lie together and are summed as they are, with the left factors.
struct PlainRun {
  int64_t first, count;  // elements from the unit's start
  int64_t at;            // offset in a sum's buffer, in elements
};

// The factors of a unit's matrices. A sum's buffer has all left factors and plain runs, then all right factors.
struct UnitFactors {
  std::vector<LowRankMatrix> matrices;
  std::vector<PlainRun> plain;
  int64_t first_phase = 0, second_phase = 0;  // elements that ranks sum in each phase
};

// A matrix of which each rank sends its largest elements (parallel/sparse_reducer.h).
struct SparseMatrix {
  int64_t tensor;           // index in the spec
  int64_t first, count;     // elements from the unit's start
  int64_t residual;         // offset of its errors in a buffer of all errors, in elements
  int64_t kept;             // elements that a rank sends
  int64_t indices, values;  // bytes from a message's start
};

// The unit's matrices of which ranks send elements. A sum's buffer has the plain runs, the rank's message, and those of
// all ranks.
struct UnitSparse {
  std::vector<SparseMatrix> matrices;
  std::vector<PlainRun> plain;
  int64_t plain_elements = 0;
  int64_t message_bytes = 0;
  int64_t ranks = 0;

  int64_t own_message() const { return plain_elements * dtype_bytes(DType::f32); }
  int64_t message_of(int64_t rank) const { return own_message() + (1 + rank) * message_bytes; }
};

// The messages of a unit: one for each piece, factors, or the largest elements.
struct UnitMessages {
  std::vector<PieceMessage> pieces = {};
  int64_t stride = 0;          // bytes from one message to the next in a buffer, at least those of the longest
  UnitFactors factors = {};    // with a low rank
  UnitSparse sparse = {};      // with CompressionConfig::is_sparse
  int64_t first_residual = 0;  // offset of the unit's errors, and behind them of its factors
  int64_t num_residuals = 0;   // number of these elements

  // Returns false if the unit has no coded elements and is summed as it is.
  bool is_coded() const { return !pieces.empty() || !factors.matrices.empty() || !sparse.matrices.empty(); }
  // Returns the bytes of a sum's buffer: the messages that the rank sends, then those that it receives; or factors;
  // or as in UnitSparse.
  int64_t buffer_bytes() const;
};

// The elements of one tensor whose errors a rank keeps: a box of the global tensor, contiguous in the buffer of errors.
// Or a right factor of the tensor, which all ranks keep alike.
struct ResidualBox {
  int64_t tensor;  // index in the spec
  std::vector<int64_t> offset, shape;
  int64_t first;  // offset in the buffer of errors
  bool is_factor = false;

  int64_t count() const { return element_count(shape); }
};

struct GradientMessages {
  int bits = 8;  // bits of an element's code
  std::vector<UnitMessages> units = {};
  std::vector<ResidualBox> boxes = {};
  int64_t num_residuals = 0;  // elements of a buffer of errors and factors

  // Returns whether matrices are summed as factors, and whether as their largest elements.
  bool is_low_rank() const;
  bool is_sparse() const;
  // Returns the number of phases of a coded unit's sums. `cuts_state`: each rank needs its piece only.
  int phases(bool cuts_state) const { return is_low_rank() ? 2 : is_sparse() || cuts_state ? 1 : 2; }
  // Returns the bytes of a buffer of errors and factors.
  int64_t residual_bytes() const { return num_residuals * dtype_bytes(DType::f32); }
  // Returns the bytes of a copy of `boxes` in which each starts at a multiple of memory_alignment.
  int64_t snapshot_bytes(bool with_factors) const;
};

// RETURNS true if gradients of a tensor are coded: those of a large matrix of which no two tensor ranks hold the same
// part (blocks of codes differ by rank, so its sums would). Low rank: only if the factors have less than half of the
// matrix' elements. Signs: only matrices of blocks, as a step has gradients only of those rows of the tables whose
// tokens are in its batch.
bool codes_gradients(const CompressionConfig& compression, const TensorSpec& tensor, int64_t tensor_ranks);

// Returns the messages of a rank; none if nothing is compressed. Tensors of which another stage has the checkpointed
// copy are not coded.
GradientMessages make_gradient_messages(const CompressionConfig& compression, const ModelSpec& spec,
                                        const std::vector<TensorShard>& shards, const ParameterLayout& layout,
                                        int64_t tensor_ranks);

// Returns the bytes of errors and factors in a checkpoint.
int64_t all_residual_bytes(const CompressionConfig& compression, const ModelSpec& spec, int64_t tensor_ranks,
                           int64_t data_ranks);

}  // namespace gptrain::parallel
