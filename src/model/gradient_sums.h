// Gradients of small tensors that ops of B find on their way: B leaves their sums, W adds them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/layer.h"

namespace gptrain {

// Sums in f64, so that what W makes of them is rounded once, as if it had been added up in W.
class GradientSums {
 public:
  // Of those parameters that the model has. Declares their place; context and layout outlive it.
  GradientSums(const LayerContext& context, LayerLayout& layout, const std::string& name,
               const std::vector<Parameter>& parameters);

  // Where B leaves the sums of the parameter of that index, [1, n] f64; not given where the model has none.
  Matrix at(const LayerCall& call, size_t index) const;
  // gradients (+)= sums, for all of them.
  void add(const LayerCall& call);

 private:
  // Parameters that follow one another without a gap are one in the record, too, and added by one op.
  struct Run {
    Parameter parameters;
    LayerLayout::Field field;
  };
  struct Entry {
    size_t run;
    int64_t first, count;  // elements of the run; a count of 0: not given
  };

  const LayerContext& context_;
  const LayerLayout& layout_;
  std::vector<Run> runs_;
  std::vector<Entry> entries_;
};

}  // namespace gptrain
