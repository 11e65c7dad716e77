#include "planner/link_needs.h"

#include <algorithm>
#include <cstddef>

#include "base/event.h"
#include "config/axis_sizes.h"
#include "config/parallelism.h"
#include "ops/op_event.h"

namespace gptrain::inline planner {
namespace {

// Adds an event of `times` actions. Copies of micro-batches and of the step's scalars are not counted.
void add_event(LinkBytes& sum, ActionKind action, const Event& event, int64_t times) {
  const bool is_copy =
      event.kind == Event::Kind::copy && (event.queue == Event::Queue::update || copies_record(action));
  if (event.queue == Event::Queue::disk_read) {
    sum.read += times * event.bytes_moved;
  } else if (event.queue == Event::Queue::disk_write) {
    sum.written += times * event.bytes_moved;
  } else if (is_copy && event.name == download_name) {
    sum.to_host += times * event.bytes_moved;
  } else if (is_copy && event.name == upload_name) {
    sum.to_device += times * event.bytes_moved;
  } else if (event.kind == Event::Kind::op && event.queue == Event::Queue::update) {
    sum.moved_by_updates += times * event.bytes_moved;
  }
}

}  // namespace

LinkBytes link_bytes(const StepLog& log) {
  struct Repeated {
    ActionKind action = ActionKind::load;
    int64_t times = 0;
  };
  std::vector<Repeated> blocks(log.blocks.size());
  for (const LoggedAction& action : log.actions) {
    blocks[action.block].action = action.kind;
    ++blocks[action.block].times;
  }
  LinkBytes sum;
  for (size_t i = 0; i < blocks.size(); ++i)
    for (const Event& event : log.blocks[i]) add_event(sum, blocks[i].action, event, blocks[i].times);
  return sum;
}

int64_t missing_on_drives(const MemoryPlan& memory, const Machine& machine, int64_t world_size) {
  const ClusterProfile& cluster = machine.cluster;
  if (cluster.drives.count == 0) return 0;
  const int64_t all = memory.total(MemoryPlace::disk) * std::min(world_size, cluster.gpus_per_node);
  return std::max<int64_t>(all - static_cast<int64_t>(cluster.drives.all_bytes()), 0);
}

double sustained_flops(const PrecisionConfig& precision, const Machine& machine, int64_t world_size) {
  const DeviceProfile& device = machine.device;
  const ProductRate& rate = precision.compute == DType::f32 ? device.f32 : device.half;
  const bool is_cpu = device.measured && device.measured->is_cpu;
  return rate.flops_per_second * rate.sustained / (is_cpu ? static_cast<double>(world_size) : 1);
}

std::vector<LinkNeed> link_needs(const StepConfig& config, const MemoryConfig& memory, const Machine& machine,
                                 int64_t world_size) {
  const PlaceRates rates = place_rates(machine, world_size);
  const bool is_cpu = machine.device.measured && machine.device.measured->is_cpu;
  const double device_memory = machine.device.bytes_per_second * machine.device.memory_sustained;
  const double disk = 2 / rates.disk_seconds(1, 1);  // as much is read as written
  const auto data_ranks = static_cast<double>(world_size / ranks_of_model(config.parallel));
  const auto tokens = static_cast<double>(config.batch.micro * config.model.sequence_length);
  const double tokens_of_step = tokens * static_cast<double>(config.batch.accumulation);
  std::vector<LinkNeed> needs(3);
  needs[0] = {.values = "parameters, gradients", .place = "device", .flops_per_byte = tokens, .there = device_memory};
  if (memory.offload_parameters != StatePlace::none) {
    needs[0].place = memory.away_name();
    needs[0].there = memory.uses_disk() ? rates.disk_read : rates.host_link;
    if (!is_cpu) needs[0].there = std::min(needs[0].there, rates.host_link);
  }
  // Data ranks have a part each of the state, but each computes with all parameters.
  needs[1] = {.values = "optimizer state",
              .place = memory.away_name(),
              .flops_per_byte = tokens_of_step / 4 * (cuts_state(config.parallel.zero) ? data_ranks : 1),
              .there = memory.uses_disk() ? disk : rates.host_memory};
  const bool moves_inputs = memory.offload.any() && !is_cpu;
  needs[2] = {.values = "inputs of blocks",
              .place = moves_inputs ? "host" : "device",
              .flops_per_byte = 24 * static_cast<double>(config.model.hidden_size),
              .there = moves_inputs ? rates.host_link : device_memory};
  const double flops = sustained_flops(config.precision, machine, world_size);
  for (LinkNeed& need : needs) {
    need.needed = flops / need.flops_per_byte * LinkNeed::aim / (1 - LinkNeed::aim);
    need.efficiency = need.flops_per_byte * need.there / (need.flops_per_byte * need.there + flops);
  }
  return needs;
}

}  // namespace gptrain::planner
