// What machines are like: the devices that steps are planned for, and how they are joined. The files in
// configs/devices and configs/clusters have the figures, and where each is from.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "config/run_config.h"
#include "ops/target.h"
#include "machine/measured_machine.h"
#include "machine/profile_reader.h"
#include "machine/expected_error.h"

namespace gptrain {

// Matrix products with factors of one dtype.
struct ProductRate {
  double flops_per_second = 0;  // dense, of the data sheet; 0: the device has none
  double sustained = 0;         // share of it that large products reach
};

struct DeviceProfile {
  std::string name;
  std::string cluster;  // what such devices usually stand in
  double compute_capability = 0;
  int64_t multiprocessors = 0;
  double memory_bytes =
      0;  // 1e9 bytes a GB: a few percent less than devices report, about what driver and context take

  double bytes_per_second = 0;  // of memory, data sheet
  double memory_sustained = 0;  // share of it that large ops reach
  double half_rate_bytes = 0;   // an op that moves so much reaches half of that

  ProductRate f32, half, fp8;  // half: bf16 and f16
  double fill_depth = 0;       // filling and emptying a tile costs as much as this depth of its product

  // Shares of the 16-bit matrix rate that fused attention reaches on long sequences, by size of the head; of a sequence
  // of half_length half of it.
  double attention_forward_64 = 0, attention_forward_128 = 0;
  double attention_backward_64 = 0, attention_backward_128 = 0;
  double attention_half_length = 0;

  double launch_seconds = 0;            // between one kernel's end and the next one's start
  double slow_down_beside_traffic = 0;  // share of its speed that an op loses while a collective runs

  ExpectedError error = {};

  // A machine at hand, by whose tables ops take as long as they were measured to. The figures above are then of what
  // was not measured: the full rate.
  std::shared_ptr<const MeasuredMachine> measured = {};
};

struct ClusterProfile {
  std::string name;
  int64_t gpus_per_node = 0;
  double link_bytes_per_second = 0;  // that a GPU sends to others of its node, in all (NVLink, PCIe); data sheet
  double link_sustained = 0;         // share of it that collectives reach
  double link_latency_seconds = 0;   // of one step of a collective in a node
  double host_bytes_per_second = 0;         // between a GPU and the host's memory, one way
  double host_memory_bytes_per_second = 0;  // into the memory of a node, by all its GPUs together; data sheet
  int64_t nics_per_node = 0;
  double nic_bytes_per_second = 0;  // one way; data sheet
  double nic_sustained = 0;
  double nic_latency_seconds = 0;       // of one step between nodes
  double oversubscription = 1;          // what nodes could send over what the network between them carries
  double storage_bytes_per_second = 0;  // that a node writes to the storage of checkpoints
  double local_bytes_per_second = 0;    // and to drives of its own; 0: not known
  double node_mtbf_seconds = 0;
  double restart_seconds = 0;  // from a failure to the step after the checkpoint
  std::shared_ptr<const MeasuredMachine> measured = {};  // one machine, whose links were measured
};

// By name (case-insensitive) or file, which may be that of a machine that was measured. Error(usage): neither, or what
// is wrong with the file.
DeviceProfile find_device(std::string_view name);
ClusterProfile find_cluster(std::string_view name);
// `name`, or where it is empty what the device usually stands in: a machine that was measured is its own. Error(usage)
// as above, and where a machine without GPUs should stand in another cluster.
ClusterProfile cluster_of(const DeviceProfile& device, std::string_view name = {});
// As above, in the same way. `measured`: what the file at that path holds. Error(usage): it holds another kind of profile.
MeasuredMachine find_machine(const std::string& path);

std::vector<std::string> device_names();
std::vector<std::string> cluster_names();

// The device as the plan's target, in nodes of such a cluster.
Target target_of(const DeviceProfile& device, const ClusterProfile& cluster);
// The same for one of `world_size` ranks of a run, which share the memory and the rates of a machine without GPUs.
Target target_of(const DeviceProfile& device, const ClusterProfile& cluster, const RunConfig& config,
                 int64_t world_size);
// Threads of each of so many ranks on the machine.
int64_t threads_of_rank(const MeasuredMachine& machine, const RunConfig& config, int64_t world_size);

// Both at once; the cluster is the usual one of the device.
Target find_target(std::string_view name);

const std::vector<BuiltInProfile>& built_in_devices();
const std::vector<BuiltInProfile>& built_in_clusters();

}  // namespace gptrain
