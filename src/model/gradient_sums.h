// Gradients of small tensors that ops of B compute beside their main result: B stores sums, W adds them to the
// gradients.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/layer.h"

namespace gptrain::inline model {

// Sums in f64, so that W's result is rounded once, as if W had computed the sums.
class GradientSums {
 public:
  // Declares the sums of the given `parameters` in `layout`. REQUIRES: context and layout outlive it.
  GradientSums(const LayerContext& context, LayerLayout& layout, const std::string& name,
               const std::vector<Parameter>& parameters);

  // RETURNS the memory for B's sums of parameter `index`, [1, n] f64; not given if the model has no such parameter.
  Matrix at(const LayerCall& call, size_t index) const;
  // gradients (+)= sums, for all parameters.
  void add(const LayerCall& call);

 private:
  // Contiguous parameters, which are also contiguous in the record and added by one op.
  struct Run {
    Parameter parameters;
    LayerLayout::Field field;
  };
  struct Entry {
    size_t run;
    int64_t first, count;  // elements in the run; count 0: the model has no such parameter
  };

  const LayerContext& context_;
  const LayerLayout& layout_;
  std::vector<Run> runs_;
  std::vector<Entry> entries_;
};

}  // namespace gptrain::model
