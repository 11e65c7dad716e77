// Loads 8-bit optimizer state of tensors that another number of ranks shared when it was saved. Their blocks, each with
// one scale, consist of other elements than this run's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "checkpoint/slice.h"
#include "step/training_step.h"

namespace gptrain::inline step {

class OtherBlocks {
 public:
  // Borrows the step. `saved`: the layout of the run that saved the checkpoint. All functions do nothing if that
  // run cut tensors over as many ranks as this one, or if the state has no blocks.
  OtherBlocks(TrainingStep& step, const ParallelConfig& saved);

  // Replaces the slices for this rank's own scales by slices that load all saved scales of its tensors into this
  // object.
  void take_scales(std::vector<Slice>& slices);
  // Writes this rank's codes and scales. REQUIRES: the slices have been loaded. A block that lies within one saved
  // block keeps its codes and gets that block's scale. Any other block is encoded anew, with rounding like that of a
  // step.
  void reencode();

 private:
  using Pieces = std::vector<StateSlice>;  // this rank's pieces of a tensor, contiguous in memory
  std::vector<int64_t> saved_blocks(const Pieces& pieces) const;
  void reencode(const Pieces& pieces, size_t codes, size_t scales, const std::vector<int64_t>& saved) const;

  // Returns the number of ranks over which the tensor was cut.
  int64_t saved_ranks(const TensorSpec& tensor) const { return ranks_of_tensor(tensor, saved_); }

  TrainingStep& step_;
  const ParallelConfig saved_;
  std::map<size_t, Pieces> tensors_;                                      // by index in the spec
  std::map<std::pair<size_t, size_t>, std::vector<float>> saved_scales_;  // by tensor and column
};

}  // namespace gptrain::step
