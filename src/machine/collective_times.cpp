#include "machine/collective_times.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

namespace gptrain::inline machine {
namespace {

// Bandwidth of one rank, in bytes/s.
struct Rates {
  double link;     // to other ranks of its node
  double network;  // to other nodes: the rank's share of the node's NICs
};

Rates rates_of(const ClusterProfile& cluster, const GroupPlace& place) {
  const double node = static_cast<double>(cluster.nics_per_node) * cluster.nic_bytes_per_second *
                      cluster.nic_sustained / cluster.oversubscription;
  return {cluster.link_bytes_per_second * cluster.link_sustained, node / place.sharing};
}

// Seconds until `bytes` have passed through every rank. The ranks of a node send to the next node in parallel.
double through_all(const GroupPlace& place, const Rates& rates, double bytes) {
  const double inside = place.on_a_node() > 1 ? bytes / rates.link : 0;
  const double between = place.nodes > 1 ? bytes / (rates.network * place.on_a_node()) : 0;
  return std::max(inside, between);
}

// Latency of one trip around all ranks, in seconds.
double ring_latency(const ClusterProfile& cluster, const GroupPlace& place) {
  const double between = place.nodes > 1 ? place.nodes : 0;
  return (place.ranks - between) * cluster.link_latency_seconds + between * cluster.nic_latency_seconds;
}

// Latency from a leaf to the root, in seconds.
double tree_latency(const ClusterProfile& cluster, const GroupPlace& place) {
  return (place.on_a_node() - 1) * cluster.link_latency_seconds +
         std::ceil(std::log2(place.nodes)) * cluster.nic_latency_seconds;
}

double ring_seconds(const ClusterProfile& cluster, const GroupPlace& place, Operation operation, double bytes) {
  const Rates rates = rates_of(cluster, place);
  const double once = (place.ranks - 1) / place.ranks;
  const double round = once * ring_latency(cluster, place);
  switch (operation) {
    case Operation::all_reduce:
      return 2 * (through_all(place, rates, once * bytes) + round);
    case Operation::reduce_scatter:
    case Operation::all_gather:
      return through_all(place, rates, once * bytes) + round;
    case Operation::broadcast:
      return through_all(place, rates, bytes) + round;
    default:
      return INFINITY;
  }
}

double tree_seconds(const ClusterProfile& cluster, const GroupPlace& place, Operation operation, double bytes) {
  const double once = through_all(place, rates_of(cluster, place), bytes) + tree_latency(cluster, place);
  switch (operation) {
    case Operation::all_reduce:
      return 2 * once;
    case Operation::broadcast:
      return once;
    case Operation::barrier:
      return 2 * tree_latency(cluster, place);
    default:
      return INFINITY;
  }
}

double hierarchical_seconds(const ClusterProfile& cluster, const GroupPlace& place, Operation operation, double bytes) {
  const double local = place.on_a_node();
  if (place.nodes == 1 || local == 1) return INFINITY;
  const Rates rates = rates_of(cluster, place);
  const double inside = (local - 1) / local * bytes / rates.link + (local - 1) * cluster.link_latency_seconds;
  const double between =
      (place.nodes - 1) / place.nodes * bytes / local / rates.network + (place.nodes - 1) * cluster.nic_latency_seconds;
  switch (operation) {
    case Operation::all_reduce:
      return 2 * (inside + between);
    case Operation::reduce_scatter:
    case Operation::all_gather:
      return inside + between;
    default:
      return INFINITY;
  }
}

double direct_seconds(const ClusterProfile& cluster, const GroupPlace& place, Operation operation, double bytes) {
  const Rates rates = rates_of(cluster, place);
  const bool crosses = place.nodes > 1;
  const double latency = crosses ? cluster.nic_latency_seconds : cluster.link_latency_seconds;
  const double one = bytes / (crosses ? rates.network : rates.link) + latency;
  switch (operation) {
    case Operation::send:
    case Operation::receive:
      return one;
    case Operation::broadcast:
      return place.ranks == 2 ? one : INFINITY;
    case Operation::all_to_all:
    case Operation::all_to_all_v: {
      // A rank holds bytes / ranks and sends an equal part of that to each rank.
      const double to_each = bytes / place.ranks / place.ranks;
      return std::max((place.on_a_node() - 1) * to_each / rates.link,
                      (place.ranks - place.on_a_node()) * to_each / rates.network) +
             latency;
    }
    default:
      return INFINITY;
  }
}

}  // namespace

GroupPlace place_of(const std::vector<int64_t>& ranks, int64_t gpus_per_node, int64_t world_size) {
  std::set<int64_t> nodes;
  for (const int64_t rank : ranks) nodes.insert(rank / gpus_per_node);
  return {.ranks = static_cast<double>(ranks.size()),
          .nodes = static_cast<double>(nodes.size()),
          .sharing = static_cast<double>(std::min(gpus_per_node, world_size))};
}

std::string_view algorithm_name(Algorithm algorithm) {
  constexpr std::array<std::string_view, 4> names = {"ring", "tree", "hierarchical", "direct"};
  return names[static_cast<size_t>(algorithm)];
}

double collective_seconds(const ClusterProfile& cluster, const GroupPlace& place, Operation operation, double bytes,
                          Algorithm algorithm) {
  if (place.ranks <= 1) return 0;
  switch (algorithm) {
    case Algorithm::ring:
      return ring_seconds(cluster, place, operation, bytes);
    case Algorithm::tree:
      return tree_seconds(cluster, place, operation, bytes);
    case Algorithm::hierarchical:
      return hierarchical_seconds(cluster, place, operation, bytes);
    case Algorithm::direct:
      return direct_seconds(cluster, place, operation, bytes);
  }
  return INFINITY;
}

CollectiveTime collective_time(const ClusterProfile& cluster, const GroupPlace& place, Operation operation,
                               double bytes) {
  CollectiveTime best{INFINITY};
  for (const Algorithm algorithm : {Algorithm::ring, Algorithm::tree, Algorithm::hierarchical, Algorithm::direct}) {
    const double seconds = collective_seconds(cluster, place, operation, bytes, algorithm);
    if (seconds < best.seconds) best = {seconds, algorithm};
  }
  return best;
}

}  // namespace gptrain::machine
