// Plans of cuDNN for GPUs that are only described: it serves the attention of every shipped config, within the
// workspace that fused_attention_policy.h plans. Needs no GPU.
#include <compare>
#include <cstdint>
#include <filesystem>
#include <fmt/format.h>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "catch.h"
#include "config/load.h"
#include "device/attention_graphs.h"
#include "some_cases.h"

namespace gptrain::inline cuda {
namespace {

// A GPU as cuDNN describes it, by data sheet.
struct Gpu {
  std::string name;
  int version;  // 900: 9.0
  int multiprocessors;
  int64_t memory_bytes, cache_bytes;
  int most_shared_bytes;  // bytes for a block
  int clock_khz, memory_clock_khz;
};

const std::vector<Gpu> gpus = {{.name = "NVIDIA A100-SXM4-80GB",
                                .version = 800,
                                .multiprocessors = 108,
                                .memory_bytes = 85'031'714'816,
                                .cache_bytes = 41'943'040,
                                .most_shared_bytes = 166'912,
                                .clock_khz = 1'410'000,
                                .memory_clock_khz = 1'593'000},
                               {.name = "NVIDIA H100 80GB HBM3",
                                .version = 900,
                                .multiprocessors = 132,
                                .memory_bytes = 85'017'493'504,
                                .cache_bytes = 52'428'800,
                                .most_shared_bytes = 232'448,
                                .clock_khz = 1'980'000,
                                .memory_clock_khz = 2'619'000},
                               {.name = "NVIDIA B200",
                                .version = 1000,
                                .multiprocessors = 148,
                                .memory_bytes = 191'503'728'640,
                                .cache_bytes = 132'644'864,
                                .most_shared_bytes = 232'448,
                                .clock_khz = 1'965'000,
                                .memory_clock_khz = 3'996'000}};

std::vector<uint8_t> description(const Gpu& gpu) {
  const nlohmann::json json = {{"cudaDeviceId", 0},
                               {"deviceName", gpu.name},
                               {"deviceVer", gpu.version},
                               {"driverVer", 13000},
                               {"isTccDriver", 0},
                               {"l2CacheSize", gpu.cache_bytes},
                               {"maxCtasPerSM", 32},
                               {"maxRegistersPerSM", 65536},
                               {"maxSharedMemoryPerBlock", 49152},
                               {"maxSharedMemoryPerBlockOptin", gpu.most_shared_bytes},
                               {"maxThreadsPerBlock", 1024},
                               {"maxThreadsPerSM", 2048},
                               {"memClockRateKHz", gpu.memory_clock_khz},
                               {"multiProcessorCount", gpu.multiprocessors},
                               {"pciDeviceId", 0},
                               {"regsPerBlock", 65536},
                               {"reservedSharedMemoryPerBlock", 1024},
                               {"smClockRateKHz", gpu.clock_khz},
                               {"supportCoopLaunch", 1},
                               {"totalGlobalMem", gpu.memory_bytes},
                               {"warpSize", 32},
                               {"maxBlockSize", {1024, 1024, 64}},
                               {"maxGridSize", {2147483647, 65535, 65535}}};
  const std::string text = json.dump();
  return {text.begin(), text.end()};
}

// Returns the workspace of the op's largest piece. Throws Error if cuDNN has no plan.
template <typename Op>
int64_t planned_workspace(const Op& op, const Gpu& gpu) {
  GraphBuilder<Op> builder(op, fused_attention_piece(op, fused_attention_most_groups(op)));
  const auto graph = builder.graph();
  const auto properties = std::make_shared<fe::DeviceProperties>();
  check_graph(op, properties->deserialize(description(gpu)));
  graph->set_device_properties(properties).set_sm_version(gpu.version / 10);
  builder.add_attention();
  check_graph(op, graph->validate());
  check_graph(op, graph->build_operation_graph());
  check_graph(op, graph->create_execution_plans({fe::HeurMode_t::A}));
  check_graph(op, graph->check_support());
  check_graph(op, graph->build_plans());
  int64_t bytes = 0;
  check_graph(op, graph->get_workspace_size(bytes));
  return bytes;
}

// Attention of one tensor rank.
struct Heads {
  int64_t batch, length, heads, kv_heads, head_size, window;
  auto operator<=>(const Heads&) const = default;
};

// Fills the operands of forward and backward: queries, keys and values are columns of one matrix.
template <typename Op>
Op attention(const Heads& heads) {
  const int64_t rows = heads.batch * heads.length, size = heads.head_size;
  const Matrix joint{nullptr, DType::bf16, rows, (heads.heads + 2 * heads.kv_heads) * size};
  Op op{};
  op.batch = heads.batch;
  op.sequence_length = heads.length;
  op.num_heads = heads.heads;
  op.num_kv_heads = heads.kv_heads;
  op.head_size = size;
  op.scale = 0.125;
  if (heads.window > 0) op.mask.pattern = {.kind = AttentionKind::band, .width = heads.window};
  op.q = joint.column_range(0, heads.heads * size);
  op.k = joint.column_range(heads.heads * size, heads.kv_heads * size);
  op.v = joint.column_range((heads.heads + heads.kv_heads) * size, heads.kv_heads * size);
  op.o = Matrix{nullptr, DType::bf16, rows, heads.heads * size};
  op.lse = Matrix{nullptr, DType::f32, heads.batch * heads.heads, heads.length};
  return op;
}

// Returns the shapes of shipped configs, except for those that the policy leaves to the own kernels (heads of 160).
std::set<Heads> shipped() {
  std::set<Heads> found;
  for (const auto& entry : std::filesystem::directory_iterator(CONFIGS_DIR)) {
    if (entry.path().extension() != ".json") continue;
    const RunConfig config = load_config(entry.path(), {});
    const ModelConfig& model = config.model;
    const int64_t tensor = config.parallel.tensor;
    for (const AttentionPattern& pattern : model.attention_pattern) {
      const Heads heads{.batch = config.batch.micro,
                        .length = model.sequence_length,
                        .heads = model.num_heads / tensor,
                        .kv_heads = model.num_kv_heads / tensor,
                        .head_size = model.head_size,
                        .window = pattern.kind == AttentionKind::band ? pattern.width : 0};
      if (fused_attention_shape(attention<AttentionForward>(heads))) found.insert(heads);
    }
  }
  return found;
}

TEST_CASE("cuDNN serves the attention of every shipped config within the planned workspace") {
  std::set<Heads> all = shipped();
  REQUIRE(all.size() > 10);
  if (testing::some_cases()) all = {*std::prev(all.end())};  // planning for three GPUs takes four seconds
  for (const Gpu& gpu : gpus) {
    for (const Heads& heads : all) {
      INFO(fmt::format("{}: B={} T={} H={} KV={} D={} window={}", gpu.name, heads.batch, heads.length, heads.heads,
                       heads.kv_heads, heads.head_size, heads.window));
      const auto forward = attention<AttentionForward>(heads);
      CHECK(planned_workspace(forward, gpu) <= fused_attention_scratch_bytes(forward));
      auto backward = attention<AttentionBackward>(heads);
      backward.d_o = backward.o;
      backward.dq = backward.q;
      backward.dk = backward.k;
      backward.dv = backward.v;
      REQUIRE(fused_attention_shape(backward));
      CHECK(planned_workspace(backward, gpu) <= fused_attention_scratch_bytes(backward));
    }
  }
}

}  // namespace
}  // namespace gptrain::cuda
