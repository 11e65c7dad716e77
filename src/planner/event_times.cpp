#include "planner/event_times.h"

#include <algorithm>

#include "ops/op_event.h"
#include "planner/op_times.h"

namespace gptrain {
namespace {

Operation operation_of(const Event& event) {
  const auto found = std::find(operation_names.begin(), operation_names.end(), event.name);
  return static_cast<Operation>(found - operation_names.begin());
}

}  // namespace

std::string_view spending_name(size_t spending) {
  constexpr std::array<std::string_view, lane_spending(0)> ops = {"matrix products", "attention", "memory-bound ops",
                                                                  "copies"};
  return spending < ops.size() ? ops[spending] : lane_names[spending - ops.size()];
}

size_t spending_of(const Event& event) {
  if (event.kind == Event::Kind::collective) return lane_spending(static_cast<size_t>(event.place.lane));
  if (event.kind == Event::Kind::copy) return static_cast<size_t>(Spending::copies);
  switch (event.products.kind) {
    case ProductShape::Kind::plain:
      return static_cast<size_t>(Spending::products);
    case ProductShape::Kind::attention_forward:
    case ProductShape::Kind::attention_backward:
      return static_cast<size_t>(Spending::attention);
    case ProductShape::Kind::none:
      break;
  }
  return static_cast<size_t>(Spending::memory);
}

EventTimes::EventTimes(const Machine& machine, const RunConfig& config, const Mesh& mesh, int64_t rank)
    : machine_(machine),
      tensor_ranks_(config.parallel.tensor),
      rows_(config.batch.micro * config.model.sequence_length) {
  for (size_t kind = 0; kind < num_group_kinds; ++kind) {
    places_[kind] = place_of(group_ranks(config, mesh, rank, static_cast<GroupKind>(kind)),
                             machine.cluster.gpus_per_node, mesh.world_size());
  }
}

CollectiveTime EventTimes::collective(const Event& event) const {
  return collective_time(machine_->cluster, places_[static_cast<size_t>(event.place.group)], operation_of(event),
                         static_cast<double>(event.bytes_moved));
}

double EventTimes::op_seconds(const Event& op) const {
  const Software& software = machine_->software;
  const bool is_piece = tensor_ranks_ > 1 && op.name == LinearForward::name && op.products.m * tensor_ranks_ == rows_;
  if (!software.gathers_before_products || !is_piece)
    return gptrain::op_seconds(machine_->device, op, software.fused_attention);
  Event whole = op;
  whole.products.m = rows_;
  return gptrain::op_seconds(machine_->device, whole, software.fused_attention) / static_cast<double>(tensor_ranks_);
}

double EventTimes::seconds_of(const Event& event) const {
  if (event.kind == Event::Kind::wait) return 0;
  if (!machine_) return 1e-6;
  if (event.kind == Event::Kind::collective) return collective(event).seconds;
  if (event.kind == Event::Kind::op) return op_seconds(event);
  const auto bytes = static_cast<double>(event.bytes_moved);
  if (event.name == copy_among_ops_name)
    return machine_->device.launch_seconds + memory_seconds(machine_->device, 2 * bytes);
  return machine_->device.launch_seconds + bytes / machine_->cluster.host_bytes_per_second;
}

}  // namespace gptrain
