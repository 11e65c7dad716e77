// The kinds of compressed sums by name, and the messages that they make.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/gradient_sum.h"

namespace gptrain::inline parallel {

// Returns the functions of a kind. REQUIRES: not GradientCodec::none.
const GradientSum& gradient_sum(GradientCodec kind);

// RETURNS true if gradients of a tensor are coded: those of a large matrix of which no two tensor ranks hold the same
// part (blocks of codes differ by rank, so its sums would), if the kind takes it (GradientSum::takes).
bool codes_gradients(const CompressionConfig& compression, const TensorSpec& tensor, int64_t tensor_ranks);

// Returns the messages of a rank; none if nothing is compressed. Tensors of which another stage has the checkpointed
// copy are not coded. `in_node`: GradientMessages::in_node. REQUIRES: its size divides the pieces of all units.
GradientMessages make_gradient_messages(const CompressionConfig& compression, const ModelSpec& spec,
                                        const std::vector<TensorShard>& shards, const ParameterLayout& layout,
                                        int64_t tensor_ranks, const ReplicaRank& in_node = {});

// Returns the bytes of `copies` copies of errors, and of factors, in a checkpoint.
int64_t all_residual_bytes(const CompressionConfig& compression, const ModelSpec& spec, int64_t tensor_ranks,
                           int64_t copies);

}  // namespace gptrain::parallel
