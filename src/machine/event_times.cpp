#include "machine/event_times.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "machine/op_times.h"
#include "ops/op_event.h"

namespace gptrain::inline machine {
namespace {

Operation operation_of(const Event& event) {
  const auto found = std::find(operation_names.begin(), operation_names.end(), event.name);
  return static_cast<Operation>(found - operation_names.begin());
}

// Seconds of an op at the device's full rates, for ops that no table has.
double unmeasured_op_seconds(const DeviceProfile& device, const Event& op) {
  const double rate = op.products.dtype == DType::f32 ? device.f32.flops_per_second : device.half.flops_per_second;
  const double products = rate > 0 ? static_cast<double>(op.executed_flops) / rate : 0;
  return products + static_cast<double>(op.bytes_moved) / device.bytes_per_second;
}

}  // namespace

Machine machine_named(const MachineNames& names, bool of_processes) {
  Machine machine{.device = find_device(names.device), .cluster = {}};
  machine.cluster = cluster_of(machine.device, names.cluster);
  if (of_processes) machine.way = way_of_processes(machine.cluster);
  if (names.software.empty()) return machine;
  if (machine.device.measured)
    throw Error(ExitCode::usage, "--software {}: leave this out: {} is a machine on which gptrain was measured",
                names.software, machine.device.name);
  return run_by(std::move(machine), names.software);
}

Machine run_by(Machine machine, std::string_view software) {
  machine.software = find_software(software, machine.device.compute_capability);
  machine.cluster.nic_sustained *= machine.software.nic_share;
  return machine;
}

bool is_measured(const Machine& machine) { return machine.device.measured != nullptr; }

ExpectedError expected_error(const Machine& machine, int64_t zero) {
  const ExpectedError& own = machine.device.error;
  return own.share > 0 ? own : published_error(machine.device.compute_capability, zero);
}

LinkWay way_of_processes(const ClusterProfile& cluster) {
  const auto measured = [&](LinkWay way) { return cluster.measured && !cluster.measured->links[way].empty(); };
  return !measured(LinkWay::tcp) && measured(LinkWay::mpi) ? LinkWay::mpi : LinkWay::tcp;
}

void require_links(const Machine& machine, int64_t world_size) {
  if (!machine.cluster.measured || world_size == 1) return;
  if (!machine.cluster.measured->links[machine.way].empty()) return;
  if (!machine.cluster.measured->is_cpu)
    throw Error(ExitCode::usage, "{}: has no measured links between GPUs: name their cluster with --cluster",
                machine.device.name);
  throw Error(ExitCode::usage,
              "{}: has no measured links between {}: to add them, run gptrain bench comm --into FILE{}",
              machine.device.name, machine.way == LinkWay::threads ? "threads" : "processes",
              machine.way == LinkWay::threads ? "" : " with the launcher of the run");
}

PlaceRates place_rates(const Machine& machine, int64_t world_size) {
  const ClusterProfile& cluster = machine.cluster;
  const auto ranks = static_cast<double>(cluster.measured ? world_size : std::min(world_size, cluster.gpus_per_node));
  PlaceRates rates{.host_link = cluster.host_bytes_per_second,
                   .host_memory = cluster.host_memory_bytes_per_second * cluster.host_memory_sustained / ranks,
                   .disk_read = cluster.drives.all_read(),
                   .disk_write = cluster.drives.all_written()};
  if (cluster.host_links_bytes_per_second > 0)
    rates.host_link = std::min(rates.host_link, cluster.host_links_bytes_per_second / ranks);
  if (cluster.measured) {
    const MeasuredDisk& disk = cluster.measured->disk;
    rates.disk_read = disk.read_bytes_per_second;
    rates.disk_write = disk.write_bytes_per_second;
    rates.disk_both = disk.both_bytes_per_second / ranks;
  }
  for (double* const rate : {&rates.disk_read, &rates.disk_write}) {
    if (*rate == 0) *rate = cluster.storage_bytes_per_second;
    *rate /= ranks;
  }
  return rates;
}

// Reads and writes that take turns move as many bytes each in the time that both take alone, one after the other.
DriveShares PlaceRates::drive_shares() const {
  if (disk_read <= 0 || disk_write <= 0) return {};
  const double each = disk_both > 0 ? disk_both / 2 : disk_read * disk_write / (disk_read + disk_write);
  return {.read = std::min(each / disk_read, 1.0), .write = std::min(each / disk_write, 1.0)};
}

double PlaceRates::disk_seconds(double read, double written) const {
  const double reading = read / disk_read, writing = written / disk_write;  // seconds, each alone
  const DriveShares shares = drive_shares();
  const double both = std::min(reading / shares.read, writing / shares.write);
  return both + std::max(reading - both * shares.read, writing - both * shares.write);
}

std::string_view spending_name(size_t spending) {
  constexpr std::array<std::string_view, lane_spending(0)> ops = {"matrix products", "attention", "memory-bound ops",
                                                                  "copies"};
  return spending < ops.size() ? ops[spending] : lane_names[spending - ops.size()];
}

size_t spending_of(const Event& event) {
  if (event.kind == Event::Kind::collective) return lane_spending(static_cast<size_t>(event.channel.lane));
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

EventTimes::EventTimes(const Machine& machine, const StepConfig& config, int64_t threads, const Mesh& mesh,
                       int64_t rank, int64_t sharing)
    : machine_(machine),
      routes_{config.model.moe.experts, config.model.moe.top_k},
      tensor_ranks_(config.parallel.tensor),
      rows_(config.batch.micro * (config.model.sequence_length / config.parallel.context)),
      world_size_(std::max(mesh.world_size(), sharing)),
      places_of_state_(place_rates(machine, world_size_)),
      compute_(config.precision.compute),
      kinds_(op_kinds(config.model)) {
  if (const MeasuredMachine* const measured = machine.device.measured.get()) {
    threads_ = threads_of_rank(*measured, threads, world_size_);
    share_ = share_of_rank(*measured, world_size_, threads_);
  }
  if (config.parallel.sequence) machine_->software.overlaps[LaneKind::tensor] = machine.software.overlaps_sequence;
  for (size_t kind = 0; kind < num_group_kinds; ++kind) {
    spans_[kind] = span_of(group_ranks(config, mesh, rank, static_cast<GroupKind>(kind)), machine.cluster.gpus_per_node,
                           mesh.world_size());
  }
}

CollectiveTime EventTimes::collective(const Event& event) const {
  const GroupSpan& span = spans_[event.channel.group];
  const auto bytes = static_cast<double>(event.bytes_moved);
  const Operation operation = operation_of(event);
  // Ranks that share sequences send and receive together; the time of the send is that of both.
  if (operation == Operation::receive && static_cast<GroupKind>(event.channel.group) == GroupKind::context)
    return {0, Algorithm::direct};
  if (machine_->cluster.measured) {
    return {measured_collective_seconds(*machine_->cluster.measured, machine_->way, std::llround(span.ranks),
                                        world_size_, operation, bytes),
            Algorithm::direct};
  }
  const bool moves_tokens =
      static_cast<GroupKind>(event.channel.group) == GroupKind::expert && operation == Operation::all_to_all_v;
  CollectiveTime time =
      moves_tokens && machine_->software.sends_tokens_once && span.ranks > 1
          ? CollectiveTime{exchange_by_nodes_seconds(machine_->cluster, span, routes_, bytes), Algorithm::hierarchical}
          : collective_time(machine_->cluster, span, operation, bytes);
  if (moves_tokens) time.seconds *= 1 - machine_->software.hidden_exchange;
  return time;
}

double EventTimes::op_seconds(const Event& op) const {
  if (share_.share != nullptr) {
    const auto seconds = measured_op_seconds(share_, op, compute_, kinds_);
    return share_.share->between_ops_seconds +
           (seconds ? *seconds : share_.factor * unmeasured_op_seconds(machine_->device, op));
  }
  const Software& software = machine_->software;
  const bool is_piece = tensor_ranks_ > 1 && op.name == LinearForward::name && op.products.m * tensor_ranks_ == rows_;
  const AttentionKernels attention = !software.fused_attention ? AttentionKernels::unfused
                                     : software.own_attention  ? AttentionKernels::own
                                                               : AttentionKernels::library;
  if (!software.gathers_before_products || !is_piece) return gptrain::op_seconds(machine_->device, op, attention);
  Event whole = op;
  whole.products.m = rows_;
  return gptrain::op_seconds(machine_->device, whole, attention) / static_cast<double>(tensor_ranks_);
}

bool EventTimes::lanes_take_turns() const {
  const MeasuredMachine* const measured = machine_ ? machine_->device.measured.get() : nullptr;
  return measured != nullptr && measured->is_cpu && world_size_ * (threads_ + 1) > measured->cores;
}

double EventTimes::seconds_of(const Event& event) const {
  if (event.kind == Event::Kind::wait) return 0;
  if (!machine_) return 1e-6;
  return machine_->software.slowness * seconds_at_full_speed(event);
}

double EventTimes::seconds_at_full_speed(const Event& event) const {
  if (event.kind == Event::Kind::collective) return collective(event).seconds;
  const auto bytes = static_cast<double>(event.bytes_moved);
  const bool is_cpu = machine_->device.measured && machine_->device.measured->is_cpu;
  const bool runs_on_host = event.queue == Event::Queue::update && !is_cpu;
  if (event.kind == Event::Kind::op) return runs_on_host ? bytes / places_of_state_.host_memory : op_seconds(event);
  if (event.queue == Event::Queue::disk_read) return bytes / places_of_state_.disk_read;
  if (event.queue == Event::Queue::disk_write) return bytes / places_of_state_.disk_write;
  if (event.name == copy_among_ops_name)
    return machine_->device.launch_seconds + memory_seconds(machine_->device, 2 * bytes);
  return machine_->device.launch_seconds + bytes / places_of_state_.host_link;
}

}  // namespace gptrain::machine
