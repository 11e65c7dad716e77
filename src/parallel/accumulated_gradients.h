// Gradients that are accumulated in bf16 (Sharding::gradients): sums over micro-batches whose f32 result is rounded
// stochastically after each micro-batch.
//
// With ZeRO 0 and 1 a rank keeps the sum of its own micro-batches except the last. It adds this sum to the last
// micro-batch's gradients in f32, and then the ranks sum these: gradients are sent once in a step, and never in bf16
// between data ranks. With ZeRO 2 and 3 the ranks sum the gradients of every micro-batch in f32, and each rank keeps
// its piece. A tied table on two stages is the exception: the stages sum their bf16 gradients, rounded to
// nearest.
//
// The random bits of a rounding follow from its number in the step. A sum over ranks that ends with micro-batch m has
// number m. Rank r's own sum up to micro-batch m has number r M + m, for rank r of the unit's group and M
// micro-batches. If two stages hold a tied table, each draws with a key of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/backend.h"
#include "parallel/parameters.h"

namespace gptrain::inline parallel {

class AccumulatedGradients {
 public:
  // Uploads a table to `table`, device memory of table_bytes() that must outlive this. Borrows parameters' buffers,
  // `state` and `backend`.
  AccumulatedGradients(const ParameterStore& parameters, uint64_t seed, int64_t micro_batches, std::byte* table,
                       const StepState* state, Backend& backend);
  // Returns the size of the table; 0 if gradients are accumulated in f32.
  static int64_t table_bytes(const ParameterStore& parameters);

  // All three methods take `whole`, a unit's f32 gradients of one micro-batch.
  //
  // Adds `whole` to the accumulated sum. REQUIRES: ZeRO 0 or 1, and not the last micro-batch.
  void add_own(int64_t unit, std::byte* whole, int64_t micro_batch) const;
  // Adds the accumulated sum to `whole`, for the last micro-batch. No effect with ZeRO 2 and 3 or a single micro-batch.
  void add_accumulated_to(int64_t unit, std::byte* whole) const;
  // Keeps the part of `whole` that this rank updates; with ZeRO 2 and 3 adds it to the part of earlier micro-batches.
  // REQUIRES: the ranks have summed `whole`. Called with ZeRO 0 and 1 for the last micro-batch, else for each.
  void add_sum(int64_t unit, std::byte* whole, int64_t micro_batch) const;

 private:
  // A range of a unit's gradients.
  struct Range {
    int64_t first, elements;            // elements from the unit's start; number of elements
    std::byte* sums;                    // start of the accumulated sum
    size_t first_segment, end_segment;  // range in segments_
    int64_t first_draw;                 // number of the rounding of the rank's first micro-batch
  };
  void add(const Range& range, std::byte* whole, bool accumulate, int64_t draw) const;

  const Sharding sharding_;
  int64_t micro_batches_;
  const KeptSegment* segments_;  // device memory
  std::vector<Range> own_;       // by unit: the range that this rank sums alone; empty with ZeRO 2 and 3
  std::vector<Range> summed_;    // by unit: the range of the sum over ranks that this rank keeps
  const StepState* state_;
  Backend& backend_;
};

}  // namespace gptrain::parallel
