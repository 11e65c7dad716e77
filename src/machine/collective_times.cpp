#include "machine/collective_times.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/enum_array.h"

namespace gptrain::inline machine {
namespace {

// Bandwidth of one rank, in bytes/s.
struct Rates {
  double link;     // to other ranks of its node
  double network;  // to other nodes: the rank's share of the node's NICs
};

Rates rates_of(const ClusterProfile& cluster, const GroupSpan& span) {
  const double node = static_cast<double>(cluster.nics_per_node) * cluster.nic_bytes_per_second *
                      cluster.nic_sustained / cluster.oversubscription;
  return {cluster.link_bytes_per_second * cluster.link_sustained, node / span.sharing};
}

// Seconds until `bytes` have passed through every rank. The ranks of a node send to the next node in parallel.
double through_all(const GroupSpan& span, const Rates& rates, double bytes) {
  const double inside = span.on_a_node() > 1 ? bytes / rates.link : 0;
  const double between = span.nodes > 1 ? bytes / (rates.network * span.on_a_node()) : 0;
  return std::max(inside, between);
}

// Latency of one trip around all ranks, in seconds.
double ring_latency(const ClusterProfile& cluster, const GroupSpan& span) {
  const double between = span.nodes > 1 ? span.nodes : 0;
  return (span.ranks - between) * cluster.link_latency_seconds + between * cluster.nic_latency_seconds;
}

// Latency from a leaf to the root, in seconds.
double tree_latency(const ClusterProfile& cluster, const GroupSpan& span) {
  return (span.on_a_node() - 1) * cluster.link_latency_seconds +
         std::ceil(std::log2(span.nodes)) * cluster.nic_latency_seconds;
}

double ring_seconds(const ClusterProfile& cluster, const GroupSpan& span, Operation operation, double bytes) {
  const Rates rates = rates_of(cluster, span);
  const double once = (span.ranks - 1) / span.ranks;
  const double round = once * ring_latency(cluster, span);
  switch (operation) {
    case Operation::all_reduce:
      return 2 * (through_all(span, rates, once * bytes) + round);
    case Operation::reduce_scatter:
    case Operation::all_gather:
      return through_all(span, rates, once * bytes) + round;
    case Operation::broadcast:
      return through_all(span, rates, bytes) + round;
    default:
      return INFINITY;
  }
}

double tree_seconds(const ClusterProfile& cluster, const GroupSpan& span, Operation operation, double bytes) {
  const double once = through_all(span, rates_of(cluster, span), bytes) + tree_latency(cluster, span);
  switch (operation) {
    case Operation::all_reduce:
      return 2 * once;
    case Operation::broadcast:
      return once;
    case Operation::barrier:
      return 2 * tree_latency(cluster, span);
    default:
      return INFINITY;
  }
}

double hierarchical_seconds(const ClusterProfile& cluster, const GroupSpan& span, Operation operation, double bytes) {
  const double local = span.on_a_node();
  if (span.nodes == 1 || local == 1) return INFINITY;
  const Rates rates = rates_of(cluster, span);
  const double inside = (local - 1) / local * bytes / rates.link + (local - 1) * cluster.link_latency_seconds;
  const double between =
      (span.nodes - 1) / span.nodes * bytes / local / rates.network + (span.nodes - 1) * cluster.nic_latency_seconds;
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

double direct_seconds(const ClusterProfile& cluster, const GroupSpan& span, Operation operation, double bytes) {
  const Rates rates = rates_of(cluster, span);
  const bool crosses = span.nodes > 1;
  const double latency = crosses ? cluster.nic_latency_seconds : cluster.link_latency_seconds;
  const double one = bytes / (crosses ? rates.network : rates.link) + latency;
  switch (operation) {
    case Operation::send:
    case Operation::receive:
      return one;
    case Operation::broadcast:
      return span.ranks == 2 ? one : INFINITY;
    case Operation::all_to_all:
    case Operation::all_to_all_v: {
      const double to_each = bytes / span.ranks;
      return std::max((span.on_a_node() - 1) * to_each / rates.link,
                      (span.ranks - span.on_a_node()) * to_each / rates.network) +
             latency;
    }
    default:
      return INFINITY;
  }
}

}  // namespace

GroupSpan span_of(const std::vector<int64_t>& ranks, int64_t gpus_per_node, int64_t world_size) {
  std::set<int64_t> nodes;
  for (const int64_t rank : ranks) nodes.insert(rank / gpus_per_node);
  return {.ranks = static_cast<double>(ranks.size()),
          .nodes = static_cast<double>(nodes.size()),
          .sharing = static_cast<double>(std::min(gpus_per_node, world_size))};
}

std::string_view algorithm_name(Algorithm algorithm) {
  constexpr EnumArray<Algorithm, std::string_view, 4> names = {"ring", "tree", "hierarchical", "direct"};
  return names[algorithm];
}

double collective_seconds(const ClusterProfile& cluster, const GroupSpan& span, Operation operation, double bytes,
                          Algorithm algorithm) {
  if (span.ranks <= 1) return 0;
  switch (algorithm) {
    case Algorithm::ring:
      return ring_seconds(cluster, span, operation, bytes);
    case Algorithm::tree:
      return tree_seconds(cluster, span, operation, bytes);
    case Algorithm::hierarchical:
      return hierarchical_seconds(cluster, span, operation, bytes);
    case Algorithm::direct:
      return direct_seconds(cluster, span, operation, bytes);
  }
  return INFINITY;
}

// The experts of a token are all outside a part of E / parts experts with probability C(E - E / parts, k) / C(E, k).
double TokenRoutes::expected_parts(int64_t parts) const {
  double outside = 1;
  for (int64_t i = 0; i < top_k; ++i)
    outside *= std::max(1 - static_cast<double>(experts / parts) / static_cast<double>(experts - i), 0.0);
  return static_cast<double>(parts) * (1 - outside);
}

// Tokens go to the rank with the sender's local index on another node, which passes them on inside the node.
double exchange_by_nodes_seconds(const ClusterProfile& cluster, const GroupSpan& span, const TokenRoutes& routes,
                                 double bytes) {
  const Rates rates = rates_of(cluster, span);
  const double local = span.on_a_node(), tokens = bytes / static_cast<double>(routes.top_k);
  const double to_nodes = routes.expected_parts(std::llround(span.nodes)) * (span.nodes - 1) / span.nodes;
  const double to_ranks = routes.expected_parts(std::llround(span.ranks)) * (local - 1) / local;
  const double latency = span.nodes > 1 ? cluster.nic_latency_seconds : cluster.link_latency_seconds;
  return std::max(tokens * to_nodes / rates.network, tokens * to_ranks / rates.link) + latency;
}

CollectiveTime collective_time(const ClusterProfile& cluster, const GroupSpan& span, Operation operation,
                               double bytes) {
  CollectiveTime best{INFINITY};
  for (const Algorithm algorithm : {Algorithm::ring, Algorithm::tree, Algorithm::hierarchical, Algorithm::direct}) {
    const double seconds = collective_seconds(cluster, span, operation, bytes, algorithm);
    if (seconds < best.seconds) best = {seconds, algorithm};
  }
  return best;
}

}  // namespace gptrain::machine
