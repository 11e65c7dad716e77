// Times of collectives compared with closed formulas, which are their limits.
#include <bit>
#include <cmath>
#include <numeric>
#include <vector>

#include "catch.h"
#include "machine/collective_times.h"

namespace gptrain::test_collective_times {
namespace {

// Round figures: 100 GB/s between the GPUs of a node, 8 NICs of 10 GB/s, latencies of 1 and 10 microseconds.
ClusterProfile round_cluster() {
  ClusterProfile cluster = find_cluster("dgx-a100");
  cluster.link_bytes_per_second = 100e9;
  cluster.link_sustained = 1;
  cluster.link_latency_seconds = 1e-6;
  cluster.nics_per_node = 8;
  cluster.nic_bytes_per_second = 10e9;
  cluster.nic_sustained = 1;
  cluster.nic_latency_seconds = 10e-6;
  cluster.oversubscription = 1;
  return cluster;
}

std::vector<int64_t> every(int64_t step, int64_t count) {
  std::vector<int64_t> ranks(static_cast<size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  for (int64_t& rank : ranks) rank *= step;
  return ranks;
}

double ring(const ClusterProfile& cluster, const GroupSpan& span, Operation operation, double bytes) {
  return collective_seconds(cluster, span, operation, bytes, Algorithm::ring);
}

TEST_CASE("a group's place follows from its ranks") {
  const GroupSpan inside = span_of(every(1, 8), 8, 64);
  CHECK((inside.ranks == 8 && inside.nodes == 1 && inside.sharing == 8));
  const GroupSpan across = span_of(every(8, 8), 8, 64);
  CHECK((across.ranks == 8 && across.nodes == 8 && across.on_a_node() == 1));
  const GroupSpan all = span_of(every(1, 64), 8, 64);
  CHECK((all.ranks == 64 && all.nodes == 8 && all.on_a_node() == 8));
  CHECK(span_of(every(1, 2), 8, 2).sharing == 2);
}

TEST_CASE("a ring takes 2 n (r - 1) / r bytes and 2 (r - 1) latencies") {
  const ClusterProfile cluster = round_cluster();
  for (const int64_t ranks : {2, 4, 8}) {
    const GroupSpan span = span_of(every(1, ranks), 8, 8);
    const auto r = static_cast<double>(ranks);
    const double n = 1e9;
    CHECK(ring(cluster, span, Operation::all_reduce, n) == Approx(2 * (r - 1) / r * n / 100e9 + 2 * (r - 1) * 1e-6));
    CHECK(ring(cluster, span, Operation::all_gather, n) == Approx((r - 1) / r * n / 100e9 + (r - 1) * 1e-6));
    CHECK(ring(cluster, span, Operation::reduce_scatter, n) == ring(cluster, span, Operation::all_gather, n));
  }
  // One rank on each node: with 8 such groups each has one NIC, a single group has all of them.
  GroupSpan far = span_of(every(8, 4), 8, 32);
  CHECK(ring(cluster, far, Operation::all_reduce, 1e9) == Approx(1.5 / 10 + 6 * 10e-6));
  far.sharing = 1;
  CHECK(ring(cluster, far, Operation::all_reduce, 1e9) == Approx(1.5 / 80 + 6 * 10e-6));
  ClusterProfile narrow = cluster;
  narrow.oversubscription = 4;
  CHECK(ring(narrow, far, Operation::all_reduce, 1e9) == Approx(1.5 / 20 + 6 * 10e-6));
}

TEST_CASE("a tree has few latencies, a ring sends less") {
  const ClusterProfile cluster = round_cluster();
  const GroupSpan span = span_of(every(8, 64), 8, 512);
  CHECK(collective_seconds(cluster, span, Operation::all_reduce, 0, Algorithm::tree) == Approx(2 * 6 * 10e-6));
  CHECK(collective_seconds(cluster, span, Operation::all_reduce, 1e9, Algorithm::tree) ==
        Approx(2e9 / 10e9 + 2 * 6 * 10e-6));
  CHECK(collective_time(cluster, span, Operation::all_reduce, 1000).algorithm == Algorithm::tree);
  CHECK(collective_time(cluster, span, Operation::all_reduce, 1e10).algorithm == Algorithm::ring);
}

TEST_CASE("between whole nodes each rank carries its part of the data") {
  const ClusterProfile cluster = round_cluster();
  const GroupSpan span = span_of(every(1, 32), 8, 32);
  const double n = 1e9;
  CHECK(collective_seconds(cluster, span, Operation::all_reduce, n, Algorithm::hierarchical) ==
        Approx(2 * (7.0 / 8 * n / 100e9 + 7e-6 + 3.0 / 4 * n / 8 / 10e9 + 3 * 10e-6)));
  // A node's 80 GB/s are the bottleneck of the ring.
  CHECK(ring(cluster, span, Operation::all_reduce, n) == Approx(2 * 31.0 / 32 * (n / 80e9 + 28 * 1e-6 + 4 * 10e-6)));
  CHECK(std::isinf(
      collective_seconds(cluster, span_of(every(1, 8), 8, 8), Operation::all_reduce, n, Algorithm::hierarchical)));
}

TEST_CASE("transfers take their bytes at the rank's part of the NICs") {
  const ClusterProfile cluster = round_cluster();
  const auto seconds = [&](const std::vector<int64_t>& ranks, Operation operation, double bytes) {
    return collective_time(cluster, span_of(ranks, 8, 64), operation, bytes).seconds;
  };
  CHECK(seconds({0, 1}, Operation::send, 1e8) == Approx(1e8 / 100e9 + 1e-6));
  CHECK(seconds({0, 8}, Operation::send, 1e8) == Approx(1e8 / 10e9 + 10e-6));
  CHECK(seconds({0, 8}, Operation::receive, 1e8) == seconds({0, 8}, Operation::send, 1e8));
  // 8 ranks exchange 8 MB with each other: 56 MB leave each.
  CHECK(seconds(every(1, 8), Operation::all_to_all, 64e6) == Approx(56e6 / 100e9 + 1e-6));
  CHECK(seconds(every(8, 8), Operation::all_to_all, 64e6) == Approx(56e6 / 10e9 + 10e-6));
}

TEST_CASE("a group of one takes no time, and every operation has a time in every other") {
  const ClusterProfile cluster = find_cluster("dgx-h100");
  for (size_t i = 0; i < num_operations; ++i) {
    const auto operation = static_cast<Operation>(i);
    CHECK(collective_time(cluster, {}, operation, 1e6).seconds == 0);
    for (const auto& ranks : {every(1, 8), every(8, 8), every(1, 64), every(4, 6)}) {
      const double seconds = collective_time(cluster, span_of(ranks, 8, 64), operation, 1e6).seconds;
      CHECK(seconds > 0);
      CHECK(seconds < 1);
    }
  }
}

// Counts the parts in which experts of a token lie, over all choices of top_k of the experts.
double counted_parts(const TokenRoutes& routes, int64_t parts) {
  const int64_t of_part = routes.experts / parts;
  int64_t choices = 0, found = 0;
  for (int64_t chosen = 0; chosen < int64_t{1} << routes.experts; ++chosen) {
    if (std::popcount(static_cast<uint64_t>(chosen)) != routes.top_k) continue;
    ++choices;
    for (int64_t part = 0; part < parts; ++part) found += (chosen >> part * of_part) % (int64_t{1} << of_part) != 0;
  }
  return static_cast<double>(found) / static_cast<double>(choices);
}

TEST_CASE("the parts with experts of a token are those of all choices of experts") {
  for (const TokenRoutes& routes : {TokenRoutes{12, 1}, TokenRoutes{12, 4}, TokenRoutes{12, 11}, TokenRoutes{8, 2}})
    for (const int64_t parts : {1, 2, 4}) CHECK(routes.expected_parts(parts) == Approx(counted_parts(routes, parts)));
  CHECK(TokenRoutes{128, 8}.expected_parts(128) == Approx(8));
  CHECK(TokenRoutes{8, 8}.expected_parts(4) == Approx(4));
}

TEST_CASE("a token goes once to each node, and there once to each rank, that has one of its experts") {
  const ClusterProfile cluster = round_cluster();
  const TokenRoutes routes{8, 2};
  // A node has half of the experts: one of both is there with probability 1 - 4/8 3/7. It crosses to one other node.
  const GroupSpan two_nodes = span_of({0, 1, 8, 9}, 8, 16);
  CHECK(exchange_by_nodes_seconds(cluster, two_nodes, routes, 2e9) ==
        Approx(1e9 * (1 - 4.0 / 8 * 3 / 7) / 10e9 + 10e-6));
  // Inside a node no token crosses, and ranks with two of its experts get it once.
  const GroupSpan inside = span_of(every(1, 2), 8, 8);
  CHECK(exchange_by_nodes_seconds(cluster, inside, routes, 2e9) == Approx(1e9 * (1 - 4.0 / 8 * 3 / 7) / 100e9 + 1e-6));
  CHECK(exchange_by_nodes_seconds(cluster, two_nodes, {8, 1}, 1e9) ==
        Approx(collective_seconds(cluster, two_nodes, Operation::all_to_all_v, 1e9, Algorithm::direct)));
}

// deepseek-ai/DeepEP, branch hybrid-ep, docs/README_Hybrid-EP.md: kernels of 16 multiprocessors on H100, 4,096 tokens
// of 7,168 bf16 numbers, 8 of 8 experts a rank. Its bytes are those to all nodes, the own one included.
TEST_CASE("tokens are exchanged as fast as HybridEP measured between nodes") {
  const ClusterProfile cluster = find_cluster("dgx-h100");
  struct Measured {
    int64_t ranks;
    double bytes_per_second;
  };
  for (const Measured& measured : {Measured{16, 71.71e9}, Measured{32, 57.69e9}, Measured{64, 49.97e9}}) {
    const TokenRoutes routes{8 * measured.ranks, 8};
    const double bytes_of_tokens = 4096.0 * 7168 * 2;
    const GroupSpan span = span_of(every(1, measured.ranks), 8, measured.ranks);
    const double seconds = exchange_by_nodes_seconds(cluster, span, routes, 8 * bytes_of_tokens);
    CHECK(routes.expected_parts(measured.ranks / 8) * bytes_of_tokens / seconds ==
          Approx(measured.bytes_per_second).epsilon(0.2));
  }
}

}  // namespace
}  // namespace gptrain::test_collective_times
