#include "model/gradient_sums.h"

namespace gptrain::inline model {

GradientSums::GradientSums(const LayerContext& context, LayerLayout& layout, const std::string& name,
                           const std::vector<SummedParameter>& parameters)
    : context_(context), layout_(layout) {
  for (const SummedParameter& summed : parameters) {
    const Parameter& parameter = summed.parameter;
    if (!parameter.given()) {
      entries_.push_back({});
      continue;
    }
    const bool follows = summed.is_whole() && !runs_.empty() && runs_.back().is_whole &&
                         runs_.back().parameters.offset + runs_.back().parameters.cols == parameter.offset;
    if (!follows)
      runs_.push_back({.parameters = {.offset = parameter.offset, .rows = 1},
                       .is_whole = summed.is_whole(),
                       .num_sums = summed.num_sums,
                       .first = summed.first,
                       .count = 0});
    Run& run = runs_.back();
    entries_.push_back({runs_.size() - 1, run.count, summed.count});
    run.parameters.cols += parameter.cols;
    run.count += summed.count;
  }
  for (Run& run : runs_) run.field = layout.leave({name + ".sums", DType::f64, run.num_sums, run.count});
}

Matrix GradientSums::at(const LayerCall& call, size_t index) const {
  const Entry& entry = entries_[index];
  if (entry.count == 0) return {};
  return layout_.at(call, runs_[entry.run].field).column_range(entry.first, entry.count);
}

void GradientSums::add(const LayerCall& call) {
  for (const Run& run : runs_)
    context_.backend.run(AddSums{.sums = layout_.at(call, run.field),
                                 .gradient = run.parameters.gradient(call),
                                 .accumulate = call.accumulate,
                                 .first = run.first});
}

}  // namespace gptrain::model
