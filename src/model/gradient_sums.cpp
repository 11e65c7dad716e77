#include "model/gradient_sums.h"

namespace gptrain::inline model {

GradientSums::GradientSums(const LayerContext& context, LayerLayout& layout, const std::string& name,
                           const std::vector<Parameter>& parameters)
    : context_(context), layout_(layout) {
  for (const Parameter& parameter : parameters) {
    if (!parameter.given()) {
      entries_.push_back({});
      continue;
    }
    const bool follows =
        !runs_.empty() && runs_.back().parameters.offset + runs_.back().parameters.cols == parameter.offset;
    if (!follows) runs_.push_back({{.offset = parameter.offset, .rows = 1}, LayerLayout::none});
    Parameter& run = runs_.back().parameters;
    entries_.push_back({runs_.size() - 1, run.cols, parameter.cols});
    run.cols += parameter.cols;
  }
  for (Run& run : runs_) run.field = layout.leave({name + ".sums", DType::f64, 1, run.parameters.cols});
}

Matrix GradientSums::at(const LayerCall& call, size_t index) const {
  const Entry& entry = entries_[index];
  if (entry.count == 0) return {};
  return layout_.at(call, runs_[entry.run].field).column_range(entry.first, entry.count);
}

void GradientSums::add(const LayerCall& call) {
  for (const Run& run : runs_) {
    context_.backend.run(AddSums{
        .sums = layout_.at(call, run.field), .gradient = run.parameters.gradient(call), .accumulate = call.accumulate});
  }
}

}  // namespace gptrain::model
