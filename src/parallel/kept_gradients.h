// Gradients in bf16 (Sharding::gradients): the sums of what micro-batches have, in f32, rounded stochastically.
//
// With ZeRO 0 and 1 a rank keeps the sum of its own micro-batches but for the last one's, to which it is added in f32
// before the ranks sum that: gradients travel once in a step, and data ranks do not sum bf16 numbers. With ZeRO 2 and
// 3 the ranks sum every micro-batch's in f32, and each keeps its piece. A tied table of two stages is the exception: what
// both have kept is summed in bf16, to nearest.
//
// Every rounding of a step has a number, which its random bits are drawn by: micro-batch m of all ranks together has m,
// and so has the sum over ranks that ends with it; micro-batch m of rank r alone has r M + m, of M. Each stage of a table
// that two have draws by a key of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/backend.h"
#include "parallel/parameters.h"

namespace gptrain {

class KeptGradients {
 public:
  // Uploads the segments to `table`, device memory of table_bytes. All else is borrowed.
  KeptGradients(const ParameterStore& parameters, uint64_t seed, int64_t micro_batches, std::byte* table,
                const StepState* state, Backend& backend);
  // 0 where gradients are kept as they are made.
  static int64_t table_bytes(const ParameterStore& parameters);

  // `whole` are the unit's gradients of one micro-batch, f32. With ZeRO 0 and 1, of all micro-batches but the last:
  void add_own(int64_t unit, std::byte* whole, int64_t micro_batch) const;
  // of the last: whole += what is kept;
  void add_kept_to(int64_t unit, std::byte* whole) const;
  // and when the ranks have summed it, of what this rank updates; with ZeRO 2 and 3 of every micro-batch.
  void add_sum(int64_t unit, std::byte* whole, int64_t micro_batch) const;

 private:
  // A range of a unit, in what is made and where it is kept, and its segments.
  struct Range {
    int64_t first, elements;  // of the unit
    std::byte* kept;
    size_t first_segment, end_segment;
  };
  void add(const Range& range, std::byte* whole, bool accumulate, int64_t draw) const;

  const Sharding sharding_;
  int64_t micro_batches_;
  const KeptSegment* segments_;  // device memory
  std::vector<Range> own_;       // by unit: what this rank adds up alone; empty with ZeRO 2 and 3
  std::vector<Range> summed_;    // by unit: what this rank has of the sum
  const StepState* state_;
  Backend& backend_;
};

}  // namespace gptrain
