// Profiles of devices and of the clusters that connect them. Their figures, each with its source, are in
// configs/devices and configs/clusters.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "config/run_config.h"
#include "machine/expected_error.h"
#include "machine/measured_machine.h"
#include "machine/profile_reader.h"
#include "ops/target.h"

namespace gptrain::inline machine {

// Speed of matrix products of one dtype.
struct ProductRate {
  double flops_per_second = 0;  // dense, from the data sheet; 0: the device has no such products
  double sustained = 0;         // share of flops_per_second that large products reach
};

struct DeviceProfile {
  std::string name;
  std::string cluster;  // name of the cluster used unless another is named
  double compute_capability = 0;
  int64_t multiprocessors = 0;
  // Bytes that the driver reports; for a measured machine those that plans may use.
  double memory_bytes = 0;

  double bytes_per_second = 0;  // memory bandwidth, from the data sheet
  double memory_sustained = 0;  // share of the bandwidth that large ops reach
  double half_rate_bytes = 0;   // an op that moves this many bytes reaches half of the sustained bandwidth

  ProductRate f32, half, fp8;  // half: bf16 and f16
  double fill_depth = 0;       // filling and emptying a tile takes as long as this much depth (k) of its product

  // Shares of the 16-bit matrix rate that fused attention reaches on long sequences, by head size. A sequence of
  // attention_half_length tokens reaches half of them.
  double attention_forward_64 = 0, attention_forward_128 = 0;
  double attention_backward_64 = 0, attention_backward_128 = 0;
  double attention_half_length = 0;
  // Shares of the matrix rate that gptrain's own kernels of attention reach on long sequences.
  double own_attention_forward = 0, own_attention_backward = 0;

  double launch_seconds = 0;            // between one kernel's end and the next one's start
  double slow_down_beside_traffic = 0;  // share of its speed that an op loses while a collective runs

  ExpectedError error = {};  // error of predicted steps; share 0: published_error()

  // Tables of a machine that was measured; null for other devices. The figures above then hold for ops without a table.
  std::shared_ptr<const MeasuredMachine> measured = {};
};

// A node's own drives, for state that lies on disk and for checkpoints.
struct Drives {
  int64_t count = 0;                                             // 0: not known
  double bytes = 0;                                              // size of each drive
  double read_bytes_per_second = 0, write_bytes_per_second = 0;  // rates of each drive

  double all_bytes() const { return static_cast<double>(count) * bytes; }
  double all_read() const { return static_cast<double>(count) * read_bytes_per_second; }
  double all_written() const { return static_cast<double>(count) * write_bytes_per_second; }
};

struct ClusterProfile {
  std::string name;
  int64_t gpus_per_node = 0;
  double link_bytes_per_second = 0;         // from a GPU to all others of its node together (NVLink, PCIe); data sheet
  double link_sustained = 0;                // share of the links' rate that collectives reach
  double link_latency_seconds = 0;          // per step of a collective within a node
  double host_bytes_per_second = 0;         // between a GPU and the host's memory, one way
  double host_memory_bytes = 0;             // memory of a node's host; 0: not known
  double host_memory_bytes_per_second = 0;  // into a node's memory from all its GPUs together; data sheet
  double host_memory_sustained = 0;         // share of it that updates of weights on the host reach
  double host_links_bytes_per_second = 0;   // between the host and all GPUs of a node together; 0: no limit
  int64_t nics_per_node = 0;
  double nic_bytes_per_second = 0;      // per NIC, one way; data sheet
  double nic_sustained = 0;             // share of the NICs' rate that collectives reach
  double nic_latency_seconds = 0;       // per step of a collective between nodes
  double oversubscription = 1;          // bandwidth of all NICs over the bandwidth of the network between the nodes
  double storage_bytes_per_second = 0;  // written by a node to the storage of checkpoints
  Drives drives = {};
  double node_mtbf_seconds = 0;                          // mean time between failures of a node
  double restart_seconds = 0;                            // from a failure to the first step after the checkpoint
  std::shared_ptr<const MeasuredMachine> measured = {};  // set if the cluster is one measured machine, otherwise null
};

// Returns the profile of that name (case-insensitive) or file; a device may also be a file of `gptrain bench device`.
// THROWS Error(usage) if there is none, or with all faults of the file.
DeviceProfile find_device(std::string_view name);
ClusterProfile find_cluster(std::string_view name);
// Returns the cluster `name`; if it is empty, the device's usual cluster, or a measured machine by itself. THROWS
// Error(usage) as find_cluster does, and if a cluster is named for a measured CPU.
ClusterProfile cluster_of(const DeviceProfile& device, std::string_view name = {});
// Returns the measurements in a file of `gptrain bench device`. THROWS Error(usage) if the file holds anything else.
MeasuredMachine find_machine(const std::string& path);

// Returns the target of the `plan` backend for a rank that has the whole device, in nodes of the cluster. The memory of
// a GPU and of a host is the part that plans may use.
Target target_of(const DeviceProfile& device, const ClusterProfile& cluster);
// Returns the same for one of `world_size` ranks with run.threads = `threads`. Both matter on a measured CPU only: the
// ranks share its memory, and each has an equal part of its rates.
Target target_of(const DeviceProfile& device, const ClusterProfile& cluster, int64_t threads, int64_t world_size);
// Returns `threads` (run.threads), or if that is 0 an equal share of the machine's cores, at least 1.
int64_t threads_of_rank(const MeasuredMachine& machine, int64_t threads, int64_t world_size);

// Return the profiles that were built in: the texts of configs/devices and configs/clusters, aliases included.
const std::vector<BuiltInProfile>& built_in_devices();
const std::vector<BuiltInProfile>& built_in_clusters();

}  // namespace gptrain::machine
