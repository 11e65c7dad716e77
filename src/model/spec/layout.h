// Where each tensor lies in a rank's flat parameter buffers. Weights, gradients, master weights and moments share one
// layout, in elements.
#pragma once

#include <cstdint>
#include <vector>

#include "model/spec/shard.h"

namespace gptrain {

// Every tensor starts at a multiple of this many elements: 256 bytes in the narrowest dtype.
constexpr int64_t segment_multiple = 128;

struct Segment {
  int64_t offset;  // elements from the start of the whole buffer
  int64_t count;   // elements of the rank's shard, padded rows included
};

// A unit begins with the weights of its norms, so that they can be kept in f32 apart from the rest.
struct UnitRange {
  int64_t offset;         // elements; the unit's tensors fill [offset, offset + elements)
  int64_t elements;       // a multiple of segment_multiple times `pieces`
  int64_t norm_elements;  // of which the first hold the norms, padding included
  int64_t first_tensor;   // index in ModelSpec::tensors
  int64_t num_tensors;
};

// ZeRO (arXiv 1910.02054) cuts every unit into `pieces` equal pieces, one per data-parallel rank: rank d has piece d of
// each. A buffer of one rank's pieces only, back to back, has elements / pieces, unit u's at units[u].offset / pieces.
struct ParameterLayout {
  std::vector<Segment> segments;  // one per tensor of the spec
  std::vector<UnitRange> units;   // one per unit, back to back
  int64_t elements = 0;           // of the whole buffer
  int64_t pieces = 1;

  int64_t piece_elements(const UnitRange& unit) const { return unit.elements / pieces; }
};

ParameterLayout make_layout(const ModelSpec& spec, const std::vector<TensorShard>& shards, int64_t pieces);

}  // namespace gptrain
