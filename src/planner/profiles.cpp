#include "planner/profiles.h"

namespace gptrain {
namespace {

ProductRate read_rate(ProfileReader& reader, const std::string& path) {
  return {reader.figure(path + ".flops_per_second"), reader.share(path + ".sustained")};
}

std::vector<std::string> names_of(const std::vector<BuiltInProfile>& profiles) {
  std::vector<std::string> names;
  for (const BuiltInProfile& profile : profiles) names.emplace_back(profile.name);
  return names;
}

}  // namespace

DeviceProfile find_device(std::string_view name) {
  const ProfileText found = find_profile("target", name, built_in_devices());
  ProfileReader reader(found.text, found.origin);
  DeviceProfile device;
  device.name = reader.word("name");
  // An alias is shown as it was given.
  for (const BuiltInProfile& profile : built_in_devices())
    if (profile.name == found.origin) device.name = found.origin;
  device.cluster = reader.word("cluster");
  device.compute_capability = reader.figure("compute_capability");
  device.multiprocessors = static_cast<int64_t>(reader.figure("multiprocessors"));
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
  device.launch_seconds = reader.figure_from_0("launch_seconds");
  device.slow_down_beside_traffic = reader.figure_from_0("slow_down_beside_traffic");
  reader.finish();
  return device;
}

ClusterProfile find_cluster(std::string_view name) {
  const ProfileText found = find_profile("cluster", name, built_in_clusters());
  ProfileReader reader(found.text, found.origin);
  ClusterProfile cluster;
  cluster.name = reader.word("name");
  cluster.gpus_per_node = static_cast<int64_t>(reader.figure("gpus_per_node"));
  cluster.link_bytes_per_second = reader.figure("links.bytes_per_second");
  cluster.link_sustained = reader.share("links.sustained");
  cluster.link_latency_seconds = reader.figure_from_0("links.latency_seconds");
  cluster.host_bytes_per_second = reader.figure("host.bytes_per_second");
  cluster.nics_per_node = static_cast<int64_t>(reader.figure("nics.per_node"));
  cluster.nic_bytes_per_second = reader.figure("nics.bytes_per_second");
  cluster.nic_sustained = reader.share("nics.sustained");
  cluster.nic_latency_seconds = reader.figure_from_0("nics.latency_seconds");
  cluster.oversubscription = reader.figure("nics.oversubscription");
  cluster.storage_bytes_per_second = reader.figure("storage.bytes_per_second");
  cluster.node_mtbf_seconds = reader.figure("faults.node_mtbf_seconds");
  cluster.restart_seconds = reader.figure_from_0("faults.restart_seconds");
  reader.finish();
  return cluster;
}

std::vector<std::string> device_names() { return names_of(built_in_devices()); }

std::vector<std::string> cluster_names() { return names_of(built_in_clusters()); }

Target target_of(const DeviceProfile& device, const ClusterProfile& cluster) {
  Target target;
  target.name = device.name;
  target.kind = Target::Kind::gpu;
  target.memory_bytes = static_cast<int64_t>(device.memory_bytes);
  target.f32_flops = device.f32.flops_per_second;
  target.bf16_flops = device.half.flops_per_second;
  target.fp8_flops = device.fp8.flops_per_second;
  target.fp8_products = device.fp8.flops_per_second > 0;
  target.bf16_products = device.compute_capability >= 8;
  target.bytes_per_second = device.bytes_per_second;
  target.ranks_per_node = static_cast<int>(cluster.gpus_per_node);
  return target;
}

Target find_target(std::string_view name) {
  const DeviceProfile device = find_device(name);
  return target_of(device, find_cluster(device.cluster));
}

}  // namespace gptrain
