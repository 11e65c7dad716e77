// Bytes that each group of ranks sends in a step: closed formulas, the plan, and the real calls to communicators.
#include <array>
#include <fmt/format.h>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "catch.h"
#include "counting_group.h"
#include "model_fixture.h"
#include "traffic.h"

namespace test_traffic {

using namespace gptrain;
using namespace gptrain::testing;

namespace {

// Formulas on P ranks: an all-reduce of n bytes sends 2 n (P - 1) / P; a reduce-scatter or all-gather with n bytes per
// rank (P - 1) n.
class Expected {
 public:
  explicit Expected(int64_t size) : size_(size) {}

  void all_reduces(int64_t calls, int64_t bytes) {
    add(Operation::all_reduce, calls, 2 * (bytes * (size_ - 1) / size_));
  }
  void reduce_scatters(int64_t calls, int64_t bytes) { add(Operation::reduce_scatter, calls, (size_ - 1) * bytes); }
  void all_gathers(int64_t calls, int64_t bytes) { add(Operation::all_gather, calls, (size_ - 1) * bytes); }
  // Broadcasts from each rank in turn: n / P to each other rank, and as much again as the root; between two ranks, all
  // to the other.
  void broadcasts_in_turn(int64_t turns, int64_t bytes) {
    const int64_t share = bytes * (size_ - 1) / size_;
    add(Operation::broadcast, turns * size_, 0);
    table[static_cast<size_t>(Operation::broadcast)].sent_bytes += turns * (size_ == 2 ? bytes : (size_ + 1) * share);
  }

  TrafficTable table{};

 private:
  void add(Operation operation, int64_t calls, int64_t bytes_of_call) {
    if (size_ == 1) return;
    table[static_cast<size_t>(operation)].calls += calls;
    table[static_cast<size_t>(operation)].sent_bytes += calls * bytes_of_call;
  }

  int64_t size_;
};

// Sizes used by all formulas.
struct Sizes {
  explicit Sizes(const RunConfig& c, int64_t data_size)
      : model(c.model),
        t(c.parallel.tensor),
        d(data_size),
        zero(data_size > 1 ? c.parallel.zero : 0),
        sequence(c.parallel.sequence),
        layers(c.model.num_layers),
        micro_batches(c.batch.accumulation),
        reductions(zero >= 2 ? micro_batches : 1),
        rows(c.batch.micro * c.model.sequence_length),
        chunks((rows + c.memory.loss_chunk_tokens - 1) / c.memory.loss_chunk_tokens),
        compute(dtype_bytes(c.precision.compute)),
        residual(dtype_bytes(c.precision.residual)),
        reduce(dtype_bytes(c.precision.reduce)),
        recomputed(c.memory.recompute == RecomputeKind::block),
        pieces(c.parallel.overlap_tensor ? 2 : 1),
        fp8(c.precision.linears == DType::f8e4m3),
        codes_weights(c.codes_weights()) {}

  const ModelConfig& model;
  int64_t t, d, zero;
  bool sequence;
  int64_t layers, micro_batches;
  int64_t reductions;  // reductions of a unit's gradients in a step
  int64_t rows;        // N
  int64_t chunks;
  int64_t compute, residual, reduce;  // bytes of C, R and G
  bool recomputed;
  int64_t pieces;  // pieces of the products of a branch's last linear
  bool fp8, codes_weights;
};

// With FP8 linears, the amax of each tensor that no rank holds whole, by an all-reduce of its f32 parts: of weights,
// once a step or (ZeRO 3) with each pass over a block; of the inputs of row-parallel linears, in forward and
// recomputation; of the output gradients of column-parallel linears; with sequence parallelism also of the other inputs
// and gradients.
void add_amaxes(const Sizes& s, Expected& e) {
  const int64_t passes = s.micro_batches * s.layers;
  const int64_t forward = (s.recomputed ? 2 : 1) * passes;
  const int64_t preparations = s.zero == 3 ? forward + passes : s.layers;
  e.all_reduces(4 * preparations + (s.sequence ? 4 : 2) * (forward + passes), amax_parts * 4);
}

// Without sequence parallelism, a micro-batch all-reduces N h: for the embedding (R); in each block twice in forward
// and twice in backward (C), once more if a block is recomputed (the attention branch); for the head's input gradient
// (C). The statistics of the logits, three f32 per row, are gathered.
//
// With it, each of these sums is a reduce-scatter of N h / t, and the rows are gathered again: twice in forward, by t
// broadcasts of N h / t each, again in a recomputation; four times in backward (the gradients of both branches, the
// inputs of both column-parallel linears); before the head, and before the embedding's backward.
//
// FP8 linears have saved their whole inputs and gather them in one piece.
//
// With parallel.overlap_tensor a forward sum of a branch is two sums of half the rows, and more than two ranks gather
// the gradients of both branches by broadcasts.
TrafficTable tensor_traffic(const Sizes& s) {
  Expected e(s.t);
  const int64_t m = s.micro_batches;
  const int64_t h = s.model.hidden_size;
  const int64_t all_rows = s.rows * h;
  const int64_t recomputations = s.recomputed ? m * s.layers : 0;
  if (!s.sequence) {
    e.all_reduces(m, all_rows * s.residual);
    e.all_reduces(2 * m * s.layers + m, all_rows * s.compute);
    e.all_reduces(s.pieces * (2 * m * s.layers + recomputations), all_rows * s.compute / s.pieces);
  } else {
    const int64_t own_rows = all_rows / s.t;
    e.reduce_scatters(m, own_rows * s.residual);
    e.reduce_scatters(2 * m * s.layers + m, own_rows * s.compute);
    e.reduce_scatters(s.pieces * (2 * m * s.layers + recomputations), own_rows * s.compute / s.pieces);
    const int64_t inputs = 2 * (m * s.layers + recomputations),
                  gradients = s.pieces > 1 && s.t > 2 ? 2 * m * s.layers : 0;
    if (!s.fp8) e.broadcasts_in_turn(inputs + gradients, own_rows * s.compute);
    e.all_gathers((s.fp8 ? inputs + 2 * m * s.layers : 4 * m * s.layers - gradients) + m, own_rows * s.compute);
    e.all_gathers(m, own_rows * s.residual);
  }
  if (s.fp8) add_amaxes(s, e);
  e.all_gathers(m * s.chunks, 0);
  e.table[static_cast<size_t>(Operation::all_gather)].sent_bytes += m * (s.t - 1) * 3 * 4 * s.rows;
  return e.table;
}

// After the last micro-batch (with ZeRO 2 and 3 after each), the QK-norm's weights, and with sequence parallelism the
// weight and bias of every norm, are summed by all-reduces of their own.
TrafficTable norms_traffic(const Sizes& s) {
  Expected e(s.t);
  const int64_t norm_tensors = s.model.bias && s.model.norm == NormKind::layernorm ? 2 : 1;
  if (s.sequence) e.all_reduces(s.reductions * norm_tensors * (2 * s.layers + 1), s.model.hidden_size * 4);
  if (s.model.qk_norm) e.all_reduces(s.reductions * 2 * s.layers, s.model.head_size * 4);
  return e.table;
}

// Gradients of key-value heads that several ranks hold: weights [2 D, h] and biases [2 D].
TrafficTable kv_heads_traffic(const Sizes& s) {
  Expected e(s.t > s.model.num_kv_heads ? s.t / s.model.num_kv_heads : 1);
  const int64_t rows = 2 * s.model.head_size;
  e.all_reduces(s.reductions * s.layers, rows * s.model.hidden_size * 4);
  if (s.model.bias) e.all_reduces(s.reductions * s.layers, rows * 4);
  return e.table;
}

// Each unit's gradients, G: an all-reduce (ZeRO 0) or a reduce-scatter, once a step or (2 and 3) per micro-batch; and
// the sum of the losses, f64.
TrafficTable gradients_traffic(const Sizes& s, const ParameterLayout& layout) {
  Expected e(s.d);
  for (const UnitRange& unit : layout.units) {
    if (s.zero == 0) e.all_reduces(1, unit.elements * s.reduce);
    if (s.zero > 0) e.reduce_scatters(s.reductions, unit.elements / s.d * s.reduce);
  }
  e.all_reduces(1, 8);
  return e.table;
}

// Weights, C: an all-gather of each unit after its update (1 and 2), or before use (3). Embedding and head are gathered
// once a step. Blocks have two slots, which still hold the last two blocks used: the first pass gathers all l blocks,
// each later pass l - 2. In mixed precision the norms' f32 weights go with every gather. Weights in codes take a byte
// each, and an f32 scale for 128 of them.
TrafficTable weights_traffic(const Sizes& s, const ParameterLayout& layout) {
  Expected e(s.d);
  if (s.zero == 0) return e.table;
  const int64_t passes = 2 * s.micro_batches;
  const int64_t gathers_of_blocks = s.zero == 3 ? 2 + passes * (s.layers - 2) : s.layers;
  const UnitRange& block = layout.units[1];
  const auto gather = [&](int64_t calls, int64_t piece) {
    e.all_gathers(calls, piece * (s.codes_weights ? 1 : s.compute));
    if (s.codes_weights) e.all_gathers(calls, piece / 128 * 4);
  };
  gather(gathers_of_blocks, block.elements / s.d);
  if (s.compute == 2) e.all_reduces(gathers_of_blocks, block.norm_elements * 4);
  for (const UnitRange& unit : {layout.units.front(), layout.units.back()}) {
    gather(1, unit.elements / s.d);
    if (s.compute == 2 && unit.norm_elements > 0) e.all_reduces(1, unit.norm_elements * 4);
  }
  return e.table;
}

// Sums of squares of all tensors, and the number of ranks that want to stop, f64.
TrafficTable world_traffic(const Sizes& s, const ModelSpec& spec) {
  Expected e(s.t * s.d);
  e.all_reduces(1, (static_cast<int64_t>(spec.tensors.size()) + 1) * 8);
  return e.table;
}

struct Layout {
  Family family;
  int64_t tensor, data, zero;
  std::vector<std::string> overrides;
};

RunConfig config_of(const Layout& layout) {
  std::vector<std::string> overrides = {"model.num_heads=6",
                                        "model.num_kv_heads=2",
                                        "model.hidden_size=48",
                                        "model.ffn_hidden_size=60",
                                        "model.sequence_length=18",
                                        "model.num_layers=5",
                                        "batch.global=12",
                                        "batch.micro=2",
                                        fmt::format("parallel.tensor={}", layout.tensor),
                                        fmt::format("parallel.zero={}", layout.zero)};
  overrides.insert(overrides.end(), layout.overrides.begin(), layout.overrides.end());
  return small_config(layout.family, overrides, layout.tensor * layout.data);
}

const std::vector<std::string> fp8 = {"precision.compute=bf16", "precision.linears=fp8",    "run.device=auto",
                                      "model.hidden_size=96",   "model.ffn_hidden_size=64", "model.sequence_length=16"};

std::vector<std::string> with(std::vector<std::string> overrides, const std::vector<std::string>& more) {
  overrides.insert(overrides.end(), more.begin(), more.end());
  return overrides;
}

const std::vector<std::string> coded_weights = {"precision.compute=bf16", "comm.weights=int8"};
const Layout layouts[] = {
    {.family = Family::gpt2, .tensor = 2, .data = 1, .zero = 0, .overrides = {}},
    {.family = Family::gpt2, .tensor = 2, .data = 1, .zero = 0, .overrides = {"memory.recompute=block"}},
    {.family = Family::gpt2,
     .tensor = 2,
     .data = 1,
     .zero = 0,
     .overrides = {"parallel.overlap_tensor=true", "memory.recompute=block"}},
    {.family = Family::llama,
     .tensor = 2,
     .data = 1,
     .zero = 0,
     .overrides = {"parallel.overlap_tensor=true", "parallel.sequence=true", "memory.recompute=block"}},
    {.family = Family::gpt2,
     .tensor = 3,
     .data = 1,
     .zero = 0,
     .overrides = {"parallel.overlap_tensor=true", "parallel.sequence=true", "model.num_kv_heads=6"}},
    {.family = Family::gpt2, .tensor = 2, .data = 1, .zero = 0, .overrides = fp8},
    {.family = Family::llama,
     .tensor = 2,
     .data = 1,
     .zero = 0,
     .overrides = with(fp8, {"memory.recompute=block", "model.dropout=0.1"})},
    {.family = Family::llama,
     .tensor = 2,
     .data = 2,
     .zero = 3,
     .overrides = with(fp8, {"parallel.sequence=true", "memory.recompute=block"})},
    {.family = Family::gpt2, .tensor = 1, .data = 2, .zero = 0, .overrides = {}},
    {.family = Family::gpt2, .tensor = 1, .data = 3, .zero = 1, .overrides = {"precision.compute=bf16"}},
    {.family = Family::gpt2, .tensor = 1, .data = 3, .zero = 2, .overrides = {"precision.compute=bf16"}},
    {.family = Family::gpt2, .tensor = 1, .data = 2, .zero = 3, .overrides = {"precision.compute=bf16"}},
    {.family = Family::gpt2, .tensor = 1, .data = 3, .zero = 3, .overrides = coded_weights},
    {.family = Family::gpt2, .tensor = 1, .data = 2, .zero = 0, .overrides = {"precision.reduce=bf16"}},
    {.family = Family::gpt2,
     .tensor = 1,
     .data = 3,
     .zero = 1,
     .overrides = {"precision.reduce=bf16", "precision.compute=bf16"}},
    {.family = Family::llama,
     .tensor = 2,
     .data = 2,
     .zero = 3,
     .overrides = {"precision.reduce=bf16", "parallel.sequence=true"}},
    {.family = Family::llama, .tensor = 6, .data = 1, .zero = 0, .overrides = {"parallel.sequence=true"}},
    {.family = Family::llama,
     .tensor = 2,
     .data = 2,
     .zero = 3,
     .overrides = {"parallel.sequence=true", "memory.recompute=block", "precision.compute=bf16"}},
    {.family = Family::llama,
     .tensor = 2,
     .data = 3,
     .zero = 1,
     .overrides = {"precision.compute=bf16", "precision.residual=fp32"}},
    {.family = Family::llama,
     .tensor = 4,
     .data = 2,
     .zero = 2,
     .overrides = {"parallel.sequence=true", "model.num_heads=4", "model.bias=true", "batch.micro=1",
                   "model.sequence_length=20"}},
};

}  // namespace

TEST_CASE("each group of each lane sends the bytes of the closed formulas, in the plan and in a run") {
  for (const Layout& layout : layouts) {
    const RunConfig config = config_of(layout);
    const int64_t world_size = layout.tensor * layout.data;
    INFO("tensor " << layout.tensor << " data " << layout.data << " zero " << layout.zero << " "
                   << (layout.overrides.empty() ? "" : layout.overrides.front()));
    const Sizes sizes(config, layout.data);
    const ModelSpec spec = make_spec(config.model);
    const ParameterLayout parameters = make_layout(spec, shard_tensors(spec, {layout.tensor, 0}), {layout.data});
    LaneTraffic expected{};
    const auto of = [&](LaneKind lane, GroupKind group) -> TrafficTable& {
      return expected[static_cast<size_t>(lane)][static_cast<size_t>(group)];
    };
    of(LaneKind::tensor, GroupKind::tensor) = tensor_traffic(sizes);
    of(LaneKind::gradients, GroupKind::tensor) = norms_traffic(sizes);
    of(LaneKind::gradients, GroupKind::kv_heads) = kv_heads_traffic(sizes);
    of(LaneKind::gradients, GroupKind::data) = gradients_traffic(sizes, parameters);
    of(LaneKind::gradients, GroupKind::world) = world_traffic(sizes, spec);
    of(LaneKind::weights, GroupKind::data) = weights_traffic(sizes, parameters);

    const StepTraffic traffic = traffic_of(config, world_size);
    for (size_t rank = 0; rank < traffic.counted.size(); ++rank) {
      INFO("rank " << rank);
      check_equal(traffic.planned[rank], expected);
      check_equal(traffic.counted[rank], expected);
    }
  }
}

// With n ranks on each of N nodes, a unit of E bytes sends within the node (n - 1) E / n in its sum, and with ZeRO 0 as
// much again; between nodes 2 (N - 1) / N E / n, or with ZeRO (N - 1) E / (n N). A gather sends (N - 1) E / (n N)
// between nodes, then (n - 1) E / n within the node. With a copy of the state on each node, ranks send as many bytes as
// the data ranks of one node, and between nodes 2 (N - 1) / N E / n for each sum.
TEST_CASE("ranks that communicate by node send the bytes of the closed formulas") {
  constexpr int64_t local = 2, nodes = 2, data = local * nodes;
  for (const bool copies : {false, true}) {
    for (const int64_t zero : {0, 1, 3}) {
      if (copies && zero == 0) continue;
      INFO("ZeRO " << zero << (copies ? ", copies" : ""));
      const RunConfig config =
          config_of({.family = Family::gpt2,
                     .tensor = 1,
                     .data = data,
                     .zero = zero,
                     .overrides = {"batch.micro=1", "comm.ranks_per_node=2",
                                   copies ? "parallel.zero_node_copy=true" : "comm.hierarchy=node"}});
      const Sizes sizes(config, copies ? local : data);
      const ModelSpec spec = make_spec(config.model);
      const ParameterLayout parameters = make_layout(spec, shard_tensors(spec, {1, 0}), {copies ? local : data});
      Expected node_sums(local), node_sums_between(nodes), node_gathers(local), gathers_between(nodes), losses(data);
      losses.all_reduces(1, 8);
      for (size_t unit = 0; unit < parameters.units.size(); ++unit) {
        const int64_t bytes = parameters.units[unit].elements * 4;
        const bool is_block = unit > 0 && unit + 1 < parameters.units.size();
        const int64_t gathers = !is_block ? 1 : zero == 3 ? 2 + 2 * sizes.micro_batches * (sizes.layers - 2) : 1;
        node_sums.reduce_scatters(sizes.reductions, bytes / local);
        if (zero == 0) node_sums.all_gathers(1, bytes / local);
        if (zero == 0 || copies) {
          node_sums_between.all_reduces(sizes.reductions, bytes / local);
        } else {
          node_sums_between.reduce_scatters(sizes.reductions, bytes / data);
        }
        if (zero == 0 || (is_block && zero == 3 && unit > 1)) continue;  // the first block counts for all
        node_gathers.all_gathers(gathers, bytes / local);
        if (!copies) gathers_between.all_gathers(gathers, bytes / data);
      }
      LaneTraffic expected{};
      const auto of = [&](LaneKind lane, GroupKind group) -> TrafficTable& {
        return expected[static_cast<size_t>(lane)][static_cast<size_t>(group)];
      };
      of(LaneKind::gradients, copies ? GroupKind::data : GroupKind::node) = node_sums.table;
      of(LaneKind::gradients, copies ? GroupKind::islands : GroupKind::nodes) = node_sums_between.table;
      of(LaneKind::weights, copies ? GroupKind::data : GroupKind::node) = node_gathers.table;
      of(LaneKind::weights, GroupKind::nodes) = gathers_between.table;
      of(LaneKind::gradients, copies ? GroupKind::loss : GroupKind::data) = losses.table;
      Sizes all = sizes;
      all.d = data;
      of(LaneKind::gradients, GroupKind::world) = world_traffic(all, spec);
      const StepTraffic traffic = traffic_of(config, data);
      for (size_t rank = 0; rank < traffic.counted.size(); ++rank) {
        INFO("rank " << rank);
        check_equal(traffic.planned[rank], expected);
        check_equal(traffic.counted[rank], expected);
      }
    }
  }
}

// An averaging sends the bytes of a local step, and the sums of all weights between islands. A local step sends no
// parameters or gradients between islands.
TEST_CASE("islands send their weights in averagings only, and gradients in warm-up steps only") {
  for (const auto& [zero, ranks] : {std::pair<int64_t, int64_t>{0, 2}, {1, 4}, {3, 4}}) {
    INFO("ZeRO " << zero);
    const RunConfig config =
        small_config(Family::gpt2,
                     {"batch.global=8", "batch.micro=1", fmt::format("parallel.zero={}", zero), "run.steps=100",
                      R"(parallel.local_steps={"islands": 2, "every": 10, "start_step": 5, "outer": "nesterov"})"},
                     ranks);
    const ModelSpec spec = make_spec(config.model);
    const ParameterLayout parameters = make_layout(spec, shard_tensors(spec, {1, 0}), {ranks / 2, 1});
    int64_t updated = 0;
    for (const UnitRange& unit : parameters.units) updated += unit.piece_elements();
    const auto between = [](const LaneTraffic& all) {
      return all[static_cast<size_t>(LaneKind::gradients)][static_cast<size_t>(GroupKind::islands)]
                [static_cast<size_t>(Operation::all_reduce)];
    };
    const int64_t sums_of_pass = zero > 1 ? config.batch.accumulation : 1;
    const std::array<int64_t, 3> expected = {4 * updated * sums_of_pass, 4 * updated, 0};
    for (const size_t program : {size_t{0}, size_t{1}, no_program}) {
      const StepTraffic traffic = traffic_of(config, ranks, program);
      for (size_t rank = 0; rank < traffic.counted.size(); ++rank) {
        check_equal(traffic.counted[rank], traffic.planned[rank]);
        CHECK(between(traffic.planned[rank]).sent_bytes == expected[std::min<size_t>(program, 2)]);
      }
    }
  }
}

}  // namespace test_traffic
