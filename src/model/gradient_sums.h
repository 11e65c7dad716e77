// Gradients of small tensors that ops of B compute beside their main result: B stores sums, W adds them to the
// gradients.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/layer.h"

namespace gptrain::inline model {

// The sums that B stores for a parameter, a vector: for a range of its elements, or of all, by one or several ops.
struct SummedParameter {
  Parameter parameter;
  int64_t num_sums = 1;
  int64_t first, count;  // elements

  SummedParameter(const Parameter& of) : SummedParameter(of, 1, 0, of.cols) {}
  SummedParameter(const Parameter& of, int64_t sums, int64_t first_element, int64_t elements)
      : parameter(of), num_sums(sums), first(first_element), count(elements) {}

  bool is_whole() const { return num_sums == 1 && count == parameter.cols; }
};

// Sums in f64, so that W's result is rounded once, as if W had computed the sums.
class GradientSums {
 public:
  // Declares the sums of the given `parameters` in `layout`. REQUIRES: context and layout outlive it.
  GradientSums(const LayerContext& context, LayerLayout& layout, const std::string& name,
               const std::vector<SummedParameter>& parameters);

  // RETURNS the memory for B's sums of parameter `index`, [num_sums, count] f64; not given if the model has no such
  // parameter.
  Matrix at(const LayerCall& call, size_t index) const;
  // gradients (+)= sums, for all parameters.
  void add(const LayerCall& call);

 private:
  // Contiguous parameters, which are also contiguous in the record and added by one op, or one with parts of sums.
  struct Run {
    Parameter parameters;
    bool is_whole;
    int64_t num_sums, first, count;  // as in SummedParameter
    LayerLayout::Field field = LayerLayout::none;
  };
  struct Entry {
    size_t run;
    int64_t first, count;  // sums in the run; count 0: the model has no such parameter
  };

  const LayerContext& context_;
  const LayerLayout& layout_;
  std::vector<Run> runs_;
  std::vector<Entry> entries_;
};

}  // namespace gptrain::model
