#include "machine/profiles.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <utility>

#include "base/error.h"

namespace gptrain::inline machine {
namespace {

ProductRate read_rate(ProfileReader& reader, const std::string& path) {
  return {reader.figure(path + ".flops_per_second"), reader.share(path + ".sustained")};
}

Drives read_drives(ProfileReader& reader) {
  return {.count = reader.count("drives.count"),
          .bytes = reader.figure("drives.bytes"),
          .read_bytes_per_second = reader.figure("drives.read_bytes_per_second"),
          .write_bytes_per_second = reader.figure("drives.write_bytes_per_second")};
}

// THROWS Error(usage) if the name is that of a GPU of AMD, such as mi300x or radeon-vii.
void refuse_other_makers(std::string_view name) {
  std::string word(name);
  std::transform(word.begin(), word.end(), word.begin(), [](unsigned char c) { return std::tolower(c); });
  const bool is_instinct = word.size() > 2 && word.starts_with("mi") && word[2] >= '0' && word[2] <= '9';
  const bool is_amd = is_instinct || word.starts_with("amd") || word.starts_with("instinct") ||
                      word.starts_with("radeon") || word.starts_with("rx-") || word.starts_with("gfx");
  if (is_amd && word.find_first_of("./") == std::string::npos)
    throw Error(ExitCode::usage, "--target {}: is a GPU of AMD, and gptrain runs on GPUs of NVIDIA only", name);
}

// Share of a step: larger than any of the ten errors that tools/bench_prediction.py has found.
constexpr double measured_error = 0.15;

// The measured machine as a device. Rates are for ops without a table.
DeviceProfile measured_device(std::shared_ptr<const MeasuredMachine> machine) {
  DeviceProfile device;
  device.name = machine->name;
  device.compute_capability = machine->compute_capability;
  device.memory_bytes = machine->memory_bytes;
  device.bytes_per_second = machine->bytes_per_second;
  device.memory_sustained = 1;
  device.f32 = {machine->f32_flops, 1};
  device.half = {machine->half_flops, 1};
  device.slow_down_beside_traffic = machine->slow_down_beside_traffic;
  device.error = {measured_error, "measured: ten configs on a CPU, tests/bench/NOTES.md"};
  device.measured = std::move(machine);
  return device;
}

// A measured machine as a cluster of one node, which fails as often as nodes in configs/clusters are assumed to.
ClusterProfile measured_cluster(std::shared_ptr<const MeasuredMachine> machine) {
  ClusterProfile cluster;
  cluster.name = "this-machine";
  cluster.gpus_per_node = int64_t{1} << 30;
  cluster.host_bytes_per_second = machine->host_bytes_per_second;
  // Ranks on a CPU share the measured rate. On a machine with GPUs only the copies of one GPU were measured.
  cluster.host_memory_bytes_per_second =
      machine->is_cpu ? machine->host_bytes_per_second : std::numeric_limits<double>::infinity();
  cluster.host_memory_sustained = 1;
  cluster.storage_bytes_per_second = machine->storage_bytes_per_second;
  cluster.node_mtbf_seconds = 22'800'000;
  cluster.restart_seconds = 600;
  cluster.measured = std::move(machine);
  return cluster;
}

}  // namespace

DeviceProfile find_device(std::string_view name) {
  refuse_other_makers(name);
  const ProfileText found = find_profile("target", name, built_in_devices());
  ProfileReader reader(found.text, found.origin);
  if (is_measured_machine(reader)) {
    auto machine = std::make_shared<const MeasuredMachine>(read_machine(reader));
    reader.finish();
    return measured_device(std::move(machine));
  }
  DeviceProfile device;
  device.name = reader.word("name");
  // An alias ("h100") is shown instead of the name in the file ("h100-sxm").
  for (const BuiltInProfile& profile : built_in_devices())
    if (profile.name == found.origin) device.name = found.origin;
  device.cluster = reader.word("cluster");
  device.compute_capability = reader.figure("compute_capability");
  device.multiprocessors = reader.count("multiprocessors");
  device.memory_bytes = reader.figure("memory.bytes");
  device.bytes_per_second = reader.figure("memory.bytes_per_second");
  device.memory_sustained = reader.share("memory.sustained");
  device.half_rate_bytes = reader.figure_from_0("memory.half_rate_bytes");
  device.f32 = read_rate(reader, "products.f32");
  device.half = read_rate(reader, "products.half");
  if (reader.has("products.fp8")) device.fp8 = read_rate(reader, "products.fp8");
  device.fill_depth = reader.figure_from_0("products.fill_depth");
  device.attention_forward_64 = reader.share("attention.forward_64");
  device.attention_forward_128 = reader.share("attention.forward_128");
  device.attention_backward_64 = reader.share("attention.backward_64");
  device.attention_backward_128 = reader.share("attention.backward_128");
  device.attention_half_length = reader.figure_from_0("attention.half_length");
  device.own_attention_forward = reader.share("attention.own_forward");
  device.own_attention_backward = reader.share("attention.own_backward");
  device.launch_seconds = reader.figure_from_0("launch_seconds");
  device.slow_down_beside_traffic = reader.figure_from_0("slow_down_beside_traffic");
  if (reader.has("expected_error")) device.error = {reader.share("expected_error"), reader.source("expected_error")};
  reader.finish();
  return device;
}

MeasuredMachine find_machine(const std::string& path) {
  ProfileReader reader(read_profile(path), path);
  if (!is_measured_machine(reader))
    throw Error(ExitCode::usage, "{}: not written by gptrain bench device: it has no \"shares\"", path);
  MeasuredMachine machine = read_machine(reader);
  reader.finish();
  return machine;
}

ClusterProfile cluster_of(const DeviceProfile& device, std::string_view name) {
  if (device.measured && name.empty()) return measured_cluster(device.measured);
  if (device.measured && device.measured->is_cpu)
    throw Error(ExitCode::usage,
                "--cluster {}: leave this out: {} is one machine, and its profile has the speed of its links", name,
                device.name);
  return find_cluster(name.empty() ? device.cluster : name);
}

ClusterProfile find_cluster(std::string_view name) {
  const ProfileText found = find_profile("cluster", name, built_in_clusters());
  ProfileReader reader(found.text, found.origin);
  ClusterProfile cluster;
  cluster.name = reader.word("name");
  cluster.gpus_per_node = reader.count("gpus_per_node");
  cluster.link_bytes_per_second = reader.figure("links.bytes_per_second");
  cluster.link_sustained = reader.share("links.sustained");
  cluster.link_latency_seconds = reader.figure_from_0("links.latency_seconds");
  cluster.host_bytes_per_second = reader.figure("host.bytes_per_second");
  if (reader.has("host.memory_bytes")) cluster.host_memory_bytes = reader.figure("host.memory_bytes");
  cluster.host_memory_bytes_per_second = reader.figure("host.memory_bytes_per_second");
  cluster.host_memory_sustained = reader.share("host.memory_sustained");
  if (reader.has("host.links_bytes_per_second"))
    cluster.host_links_bytes_per_second = reader.figure("host.links_bytes_per_second");
  cluster.nics_per_node = reader.count("nics.per_node");
  cluster.nic_bytes_per_second = reader.figure("nics.bytes_per_second");
  cluster.nic_sustained = reader.share("nics.sustained");
  cluster.nic_latency_seconds = reader.figure_from_0("nics.latency_seconds");
  cluster.oversubscription = reader.figure("nics.oversubscription");
  cluster.storage_bytes_per_second = reader.figure("storage.bytes_per_second");
  cluster.drives = read_drives(reader);
  cluster.node_mtbf_seconds = reader.figure("faults.node_mtbf_seconds");
  cluster.restart_seconds = reader.figure_from_0("faults.restart_seconds");
  reader.finish();
  return cluster;
}

Target target_of(const DeviceProfile& device, const ClusterProfile& cluster) {
  Target target;
  target.name = device.name;
  target.kind = device.measured && device.measured->is_cpu ? Target::Kind::cpu : Target::Kind::gpu;
  const auto memory_bytes = static_cast<int64_t>(device.memory_bytes);
  target.memory_bytes = device.measured ? memory_bytes : planned_part_of_gpu(memory_bytes);
  target.host_bytes = planned_part_of_host(static_cast<int64_t>(cluster.host_memory_bytes));
  target.f32_flops = device.f32.flops_per_second;
  target.bf16_flops = device.half.flops_per_second;
  target.fp8_flops = device.fp8.flops_per_second;
  target.compute_capability = device.compute_capability;
  target.fp8_products = device.fp8.flops_per_second > 0;
  target.bf16_products = device.measured ? device.half.flops_per_second > 0 : device.compute_capability >= 8;
  target.bytes_per_second = device.bytes_per_second;
  target.ranks_per_node = cluster.measured ? 0 : static_cast<int>(cluster.gpus_per_node);
  return target;
}

int64_t threads_of_rank(const MeasuredMachine& machine, int64_t threads, int64_t world_size) {
  return threads > 0 ? threads : std::max<int64_t>(1, machine.cores / world_size);
}

Target target_of(const DeviceProfile& device, const ClusterProfile& cluster, int64_t threads, int64_t world_size) {
  Target target = target_of(device, cluster);
  if (target.kind == Target::Kind::gpu) return target;
  target.num_threads = static_cast<int>(threads_of_rank(*device.measured, threads, world_size));
  target.sharing = world_size;
  for (double* const rate : {&target.f32_flops, &target.bf16_flops, &target.bytes_per_second})
    *rate /= static_cast<double>(world_size);
  return target;
}

}  // namespace gptrain::machine
