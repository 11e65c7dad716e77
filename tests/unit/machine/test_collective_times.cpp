// Times of collectives compared with closed formulas, which are their limits.
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

}  // namespace
}  // namespace gptrain::test_collective_times
