// Times of sums by node compared with closed formulas, and the choice that follows from them.
#include <string>
#include <vector>

#include "catch.h"
#include "config/load.h"
#include "machine/hierarchy_times.h"

namespace gptrain::test_hierarchy_times {
namespace {

RunConfig config_of(const std::vector<std::string>& overrides) {
  return parse_config(R"({
    "model": {"num_layers": 2, "hidden_size": 512, "num_heads": 8, "vocab_size": 257, "sequence_length": 256},
    "data": {"train": [{"path": "x"}]}, "batch": {"global": 64, "micro": 1}, "optimizer": {"lr": 0.001},
    "run": {"steps": 1, "out": "x"}})",
                      overrides, "test.json", 1);
}

// Bytes of a block's matrices in f32: 12 h^2.
constexpr double block_bytes = 4.0 * 12 * 512 * 512;

TEST_CASE("messages to all take the time of the bytes on the slowest link, by node of fewer bytes between nodes") {
  ClusterProfile links = assumed_links();
  links.link_latency_seconds = links.nic_latency_seconds = 0;
  const double link = links.link_bytes_per_second, network = links.nic_bytes_per_second / 4;
  const HierarchyTimes sums = hierarchy_times(links, config_of({}), {4, 2}, 4, true);
  CHECK(sums.flat == Approx(2 * block_bytes * 4 / 8 / network));
  CHECK(sums.by_node == Approx(2 * block_bytes * 3 / 4 / link + 2 * block_bytes / 4 / 2 / network));
  CHECK(sums.node_is_faster());
  const HierarchyTimes pieces = hierarchy_times(links, config_of({"parallel.zero=1"}), {4, 2}, 4, true);
  CHECK(pieces.flat == Approx(sums.flat));
  CHECK(pieces.by_node == Approx(sums.by_node));
}

// A library's flat sum takes the fastest of its algorithms, among them the same sum by node.
TEST_CASE("on GPUs of a cluster flat sums are at least as fast as sums by node, so that auto takes them") {
  for (const char* const zero : {"parallel.zero=0", "parallel.zero=1", "parallel.zero=3"}) {
    for (const int64_t nodes : {2, 8, 128}) {
      const HierarchyTimes times = hierarchy_times(find_cluster("dgx-h100"), config_of({zero}), {8, nodes}, 8, false);
      CHECK_FALSE(times.node_is_faster());
      CHECK(times.flat > 0);
    }
  }
}

TEST_CASE("auto takes sums by node for large blocks of CPU ranks on several nodes, and flat ones on one") {
  RunConfig config = config_of({"parallel.zero=1"});
  choose_hierarchy_by_time(config, 8, 4, nullptr, true);
  CHECK(config.parallel.node_replicas.dense == 4);
  choose_hierarchy_by_time(config, 8, 0, nullptr, true);
  CHECK(config.parallel.node_replicas.dense == 0);
  RunConfig tiny = config_of({"model.hidden_size=8", "model.num_heads=1"});
  choose_hierarchy_by_time(tiny, 8, 4, nullptr, true);  // latencies decide
  CHECK(tiny.parallel.node_replicas.dense == 0);
}

}  // namespace
}  // namespace gptrain::test_hierarchy_times
