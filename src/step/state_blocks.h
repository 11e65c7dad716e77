// State in blocks that another number of tensor ranks has saved: theirs were made of other elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "checkpoint/slice.h"
#include "step/training_step.h"

namespace gptrain {

class OtherBlocks {
 public:
  // Does nothing where as many tensor ranks have saved the state, or where it has no blocks. Borrows the step.
  OtherBlocks(TrainingStep& step, int64_t saved_tensor_ranks);

  // Puts all scales of the tensors that this rank has in the place of its own, in memory of this.
  void take_scales(std::vector<Slice>& slices);
  // Once the slices are filled. A block of this rank that lies in one that was saved keeps its codes, and has that one's
  // scale. Any other is coded anew: what its elements then are differs from what was saved as much as a step's rounding
  // makes it differ.
  void settle();

 private:
  using Pieces = std::vector<StatePiece>;  // that this rank has of a tensor, one behind the other in memory
  std::vector<int64_t> saved_blocks(const Pieces& pieces) const;
  void settle(const Pieces& pieces, size_t codes, size_t scales, const std::vector<int64_t>& saved) const;

  TrainingStep& step_;
  int64_t saved_tensor_ranks_;
  std::map<size_t, Pieces> tensors_;                                   // by index in the spec
  std::map<std::pair<size_t, size_t>, std::vector<float>> of_saved_;  // scales by tensor and column
};

}  // namespace gptrain
