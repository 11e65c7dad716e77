// Bytes of compressed gradients that ranks send in a step: closed formulas, the plan, and the real calls.
#include <fmt/format.h>
#include <string>
#include <utility>
#include <vector>

#include "catch.h"
#include "model_fixture.h"
#include "parallel/compressed_reducer.h"
#include "parallel/gradient_sums.h"
#include "parallel/low_rank_reducer.h"
#include "parallel/sketch_reducer.h"
#include "parallel/sparse_reducer.h"
#include "traffic.h"

namespace test_coded_traffic {

using namespace gptrain;
using namespace gptrain::testing;

static int64_t sum_bytes(const LaneTraffic& all, Operation operation) {
  const auto& of_ranks = all[static_cast<size_t>(LaneKind::gradients)][static_cast<size_t>(GroupKind::data)];
  return of_ranks[static_cast<size_t>(operation)].sent_bytes;
}

// With one message for each piece of P ranks, a rank sends the messages of the others' pieces, and with ZeRO 0 its own
// piece's to each of them. A unit without coded elements is summed as it is.
TEST_CASE("ranks send the bytes of their messages of compressed gradients") {
  struct Case {
    int64_t tensor, data;
    std::vector<std::string> overrides;
  };
  const std::string int8 = R"(comm.compression={"kind": "int8", "min_elements": 2000})";
  const std::string int4 = R"(comm.compression={"kind": "int4", "min_elements": 2000})";
  const std::string largest = R"(comm.compression={"kind": "topk", "min_elements": 2000, "share": 0.02})";
  const std::vector<Case> cases = {{1, 3, {"parallel.zero=0", int8}},
                                   {1, 2, {"parallel.zero=1", int4, "precision.compute=bf16"}},
                                   {1, 3, {"parallel.zero=0", "optimizer.type=onebit-adam", "optimizer.freeze_step=3"}},
                                   {1, 3, {"parallel.zero=0", largest}},
                                   {2, 2, {"parallel.zero=3", int8, "model.num_heads=4", "batch.micro=1"}}};
  for (const Case& layout : cases) {
    std::vector<std::string> overrides = {"batch.global=12", "batch.micro=2",
                                          fmt::format("parallel.tensor={}", layout.tensor)};
    overrides.insert(overrides.end(), layout.overrides.begin(), layout.overrides.end());
    const int64_t world_size = layout.tensor * layout.data;
    const RunConfig config = small_config(Family::gpt2, overrides, world_size);
    INFO(layout.overrides[1]);
    const ModelSpec spec = make_spec(config.model);
    const std::vector<TensorShard> shards = shard_tensors(spec, {layout.tensor, 0});
    const ParameterLayout parameters = make_layout(spec, shards, {layout.data, 1});
    const GradientMessages messages =
        make_gradient_messages(config.compression(), spec, shards, parameters, layout.tensor);
    const StepTraffic traffic = traffic_of(config, world_size);
    for (int64_t rank = 0; rank < world_size; ++rank) {
      INFO("rank " << rank);
      int64_t sent = 0, plain = 0, largest_sent = 0;
      for (size_t unit = 0; unit < messages.units.size(); ++unit) {
        plain += parameters.units[unit].piece_elements() * 4 * (layout.data - 1);
        for (const SparseMatrix& matrix : messages.units[unit].as<UnitSparse>().matrices)
          largest_sent += ((matrix.count + 49) / 50) * 8 * (layout.data - 1);
        for (int64_t peer = 0; peer < std::ssize(messages.units[unit].as<UnitPieces>().pieces); ++peer) {
          const int64_t own = rank / layout.tensor;
          if (peer == own) continue;
          sent += messages.units[unit].as<UnitPieces>().pieces[static_cast<size_t>(peer)].bytes;
          if (config.parallel.zero == 0)
            sent += messages.units[unit].as<UnitPieces>().pieces[static_cast<size_t>(own)].bytes;
        }
      }
      if (cuts_gradients(config.parallel.zero)) sent *= config.batch.accumulation;
      const auto index = static_cast<size_t>(rank);
      check_equal(traffic.counted[index], traffic.planned[index]);
      CHECK(sum_bytes(traffic.planned[index], Operation::all_to_all_v) == sent);
      CHECK(sum_bytes(traffic.planned[index], Operation::all_gather) == largest_sent);
      if (config.parallel.zero == 1) CHECK(sent < plain / 2);
    }
  }
}

// With n ranks on each of N nodes, a rank sends 4 (n - 1) / n bytes of each element within its node, then the codes of
// the other pieces of its share between nodes. With ZeRO 0 it also sends the codes of its piece's sum to all nodes, and
// those of its share's sums within its node.
TEST_CASE("ranks send fp32 within nodes, and the codes of their shares between nodes") {
  constexpr int64_t data = 6;
  for (const auto& [zero, local] : {std::pair<int64_t, int64_t>{0, 2}, {0, 3}, {1, 2}, {3, 3}}) {
    const int64_t nodes = data / local;
    INFO("ZeRO " << zero << ", " << nodes << " nodes");
    const RunConfig config =
        small_config(Family::gpt2,
                     {"batch.global=12", "batch.micro=1", fmt::format("parallel.zero={}", zero),
                      fmt::format("comm.ranks_per_node={}", local),
                      R"(comm.compression={"kind": "int8", "min_elements": 1000, "between": "nodes"})"},
                     data);
    const ModelSpec spec = make_spec(config.model);
    const std::vector<TensorShard> shards = shard_tensors(spec, {1, 0});
    const ParameterLayout parameters = make_layout(spec, shards, {data, 1});
    const StepTraffic traffic = traffic_of(config, data);
    const int64_t sums = cuts_gradients(zero) ? config.batch.accumulation : 1;
    for (int64_t rank = 0; rank < data; ++rank) {
      INFO("rank " << rank);
      const int64_t in_node = rank % local, node = rank / local;
      const GradientMessages messages =
          make_gradient_messages(config.compression(), spec, shards, parameters, 1, {local, in_node});
      int64_t reduced = 0, codes = 0, gathered = 0;
      for (size_t unit = 0; unit < messages.units.size(); ++unit) {
        const int64_t share_bytes = parameters.units[unit].elements / local * 4;
        reduced += (local - 1) * share_bytes;
        const auto& pieces = messages.units[unit].as<UnitPieces>();
        if (pieces.pieces.empty()) {
          gathered += (local - 1) * share_bytes;
          continue;
        }
        const auto bytes = [&](int64_t of) { return pieces.pieces[static_cast<size_t>(in_node * nodes + of)].bytes; };
        for (int64_t peer = 0; peer < nodes; ++peer)
          if (peer != node) codes += bytes(peer) + (zero == 0 ? bytes(node) : 0);
        gathered += (local - 1) * nodes * pieces.stride;
      }
      const auto index = static_cast<size_t>(rank);
      check_equal(traffic.counted[index], traffic.planned[index]);
      const auto sent = [&](GroupKind kind, Operation operation) {
        const auto& of_kind = traffic.planned[index][static_cast<size_t>(LaneKind::gradients)];
        return of_kind[static_cast<size_t>(kind)][static_cast<size_t>(operation)].sent_bytes;
      };
      CHECK(sent(GroupKind::node, Operation::reduce_scatter) == sums * reduced);
      CHECK(sent(GroupKind::nodes, Operation::all_to_all_v) == sums * codes);
      CHECK(sent(GroupKind::node, Operation::all_gather) == (zero == 0 ? gathered : 0));
      CHECK(codes > 0);
      CHECK(codes < (zero == 0 ? 2 : 1) * reduced / (local - 1) * (nodes - 1) / nodes);
    }
  }
}

// Ranks sum the left factors, or sketches, and all that is not coded; then the right factors, or one element in 50.
TEST_CASE("ranks send the bytes of the factors or sketches of their gradients") {
  const std::string low_rank = R"("powersgd")", sketch = R"("sketch", "share": 0.02)";
  for (const auto& [zero, kind] : {std::pair{"0", low_rank}, {"1", low_rank}, {"0", sketch}, {"1", sketch}}) {
    INFO("ZeRO " << zero << ", " << kind);
    const RunConfig config = small_config(Family::gpt2,
                                          {"batch.global=12", "batch.micro=2", std::string("parallel.zero=") + zero,
                                           R"(comm.compression={"min_elements": 1000, "kind": )" + kind + "}"},
                                          3);
    const ModelSpec spec = make_spec(config.model);
    const std::vector<TensorShard> shards = shard_tensors(spec, {1, 0});
    const ParameterLayout parameters = make_layout(spec, shards, {3, 1});
    const GradientMessages messages = make_gradient_messages(config.comm.compression, spec, shards, parameters, 1);
    TrafficTable expected{};
    for (const UnitMessages& unit : messages.units) {
      if (!unit.is_coded()) continue;
      const auto& factors = unit.as<UnitFactors>();
      const auto& sketches = unit.as<UnitSketches>();
      for (const SketchedMatrix& matrix : sketches.matrices) CHECK(matrix.kept == (matrix.count + 49) / 50);
      CountingGroup group(0, 3, expected);
      for (const int64_t elements :
           {factors.first_phase + sketches.first_phase, factors.second_phase + sketches.second_phase})
        group.all_reduce(nullptr, elements, DType::f32, ReduceOp::sum);
    }
    const StepTraffic traffic = traffic_of(config, 3);
    int64_t plain = 0;
    for (const UnitRange& unit : parameters.units) plain += 2 * unit.piece_elements() * 4 * 2;
    for (size_t rank = 0; rank < 3; ++rank) {
      check_equal(traffic.counted[rank], traffic.planned[rank]);
      const int64_t sent = sum_bytes(traffic.planned[rank], Operation::all_reduce);
      CHECK(sent >= expected[static_cast<size_t>(Operation::all_reduce)].sent_bytes);
      CHECK(sent < plain / 2);
    }
  }
}

}  // namespace test_coded_traffic
