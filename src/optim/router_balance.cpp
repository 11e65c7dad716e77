#include "optim/router_balance.h"

#include <algorithm>

#include "model/record.h"

namespace gptrain::inline optim {
namespace {

struct BalancedSegments {
  std::vector<BalanceSegment> all;
  std::vector<int64_t> first;  // by unit, then the end

  explicit BalancedSegments(const ParameterStore& parameters) {
    const std::vector<TensorSpec>& tensors = parameters.spec().tensors;
    int64_t routed = 0, layer_end = 0;  // values of the layers before the tensor's, and with it
    int64_t last_unit = -1;
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (!tensors[i].follows_loads) continue;
      if (tensors[i].unit != last_unit) routed = layer_end;
      last_unit = tensors[i].unit;
      layer_end = routed + num_routing_sums(tensors[i].count());
      first.resize(static_cast<size_t>(last_unit) + 1, std::ssize(all));
      add(parameters, i, routed);
    }
    first.resize(static_cast<size_t>(parameters.num_parameter_units()) + 1, std::ssize(all));
  }
  int64_t bytes() const { return std::ssize(all) * static_cast<int64_t>(sizeof(BalanceSegment)); }

 private:
  void add(const ParameterStore& parameters, size_t index, int64_t routed) {
    const TensorSpec& tensor = parameters.spec().tensors[index];
    const UnitRange& range = parameters.layout().units[static_cast<size_t>(tensor.unit)];
    if (range.elements == 0) return;  // a unit of another stage
    const NormPiece held = parameters.norm_piece(tensor.unit);
    const int64_t start = parameters.layout().segments[index].offset - range.offset;
    const int64_t from = std::max(start, held.first);
    const int64_t to = std::min(start + tensor.count(), held.first + held.count);
    if (from >= to) return;
    all.push_back({.offset = from - held.first,
                   .count = to - from,
                   .first = from - start,
                   .experts = tensor.count(),
                   .first_routed = routed,
                   .is_excess = tensor.name.ends_with("router.excess") ? 1 : 0});
  }
};

}  // namespace

RouterBalance::RouterBalance(const UpdateContext& context, double rate, const Matrix& routed, std::byte* tables)
    : context_(context), rate_(rate), routed_(routed), segments_(reinterpret_cast<const BalanceSegment*>(tables)) {
  BalancedSegments segments(context.parameters);
  if (!segments.all.empty()) context.backend.upload(tables, segments.all.data(), segments.bytes());
  first_segment_ = std::move(segments.first);
}

int64_t RouterBalance::table_bytes(const ParameterStore& parameters) {
  return align_up(BalancedSegments(parameters).bytes());
}

void RouterBalance::update(int64_t unit) const {
  const int64_t first = first_segment_[static_cast<size_t>(unit)];
  const int64_t end = first_segment_[static_cast<size_t>(unit) + 1];
  if (first == end) return;
  const NormPiece held = context_.parameters.norm_piece(unit);
  context_.backend.run(BalanceRouters{.segments = segments_ + first,
                                      .num_segments = end - first,
                                      .rate = rate_,
                                      .state = context_.state,
                                      .routed = routed_,
                                      .values = Matrix(held.master, DType::f32, 1, held.count)});
}

}  // namespace gptrain::optim
