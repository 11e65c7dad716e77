#include "planner/layouts.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <set>
#include <utility>

#include "base/error.h"
#include "config/axis_sizes.h"
#include "config/context_method.h"
#include "config/faults.h"
#include "config/load.h"
#include "model/spec/layer_kinds.h"
#include "parallel/make_stages.h"

namespace gptrain::inline planner {
namespace {

constexpr int64_t most_micro = 64;  // sequences per micro-batch
constexpr int64_t most_virtual_stages = 8;
constexpr int64_t most_units_played = int64_t{1} << 22;  // micro-batches times units, as in the config's check
constexpr std::array<int64_t, 3> recompute_intervals = {2, 3, 4};

std::vector<int64_t> divisors(int64_t n, int64_t most) {
  std::vector<int64_t> found;
  for (int64_t i = 1; i <= std::min(n, most); ++i)
    if (n % i == 0) found.push_back(i);
  return found;
}

// Least tokens of a sequence that a search lets ranks share. Shorter ones are shared only if the config does so.
constexpr int64_t least_shared_tokens = 8192;

// Returns the methods by which `context` ranks may share sequences: the one that "auto" takes; both if the config names
// one, or if the ranks are on several nodes, where a GPU's slower kernels for the ring may take longer than the
// exchange of heads. For one rank, returns the one method.
std::vector<ContextMethod> context_methods(const StepConfig& config, int64_t tensor, int64_t context,
                                           int64_t ranks_per_node) {
  if (context == 1) return {ContextMethod::automatic};
  const ParallelConfig& own = config.parallel;
  if (config.model.sequence_length < least_shared_tokens && own.context == 1) return {};
  if (!may_share_sequences(config.model.moe)) return {};
  StepConfig shared = config;
  shared.parallel.tensor = tensor;
  shared.parallel.context = context;
  const bool heads = suits_heads(shared), ring = suits_ring(shared);
  const bool takes_both =
      leaves_node(shared.parallel, ranks_per_node) || (own.context > 1 && !own.chooses_context_method);
  const bool prefers_ring = !heads || (own.context == context && own.context_method == ContextMethod::ring);
  std::vector<ContextMethod> methods;
  if (heads && (takes_both || !(prefers_ring && ring))) methods.push_back(ContextMethod::heads);
  if (ring && (takes_both || prefers_ring)) methods.push_back(ContextMethod::ring);
  return methods;
}

bool suits_tensor(const ModelConfig& model, int64_t tensor) {
  return model.num_heads % tensor == 0 && model.shares_ffn(tensor) &&
         (model.num_kv_heads % tensor == 0 || tensor % model.num_kv_heads == 0);
}

// Calls body(schedule, virtual stages, whether layers are balanced) for each pipeline of that many stages.
template <typename Body>
void for_each_pipeline(const RunConfig& config, int64_t stages, const Body& body) {
  if (stages == 1) return body(PipelineOrder::one_f_one_b, int64_t{1}, false);
  const int64_t layers = config.model.num_layers;
  for (size_t i = 0; i < pipeline_order_names.size(); ++i) {
    const auto schedule = static_cast<PipelineOrder>(i);
    const bool is_v = schedule == PipelineOrder::zero_bubble_v;
    const bool has_chunks = is_v || schedule == PipelineOrder::interleaved;
    const int64_t most = !has_chunks ? 1 : is_v ? 2 : most_virtual_stages;
    for (int64_t chunks = has_chunks ? 2 : 1; chunks <= most && stages * chunks <= layers; ++chunks) {
      body(schedule, chunks, false);
      if (layers % (stages * chunks) != 0) continue;
      RunConfig placed = config;
      placed.parallel.pipeline = stages;
      placed.parallel.virtual_stages = chunks;
      const std::vector<int64_t> counts = balanced_layers(placed);
      if (counts.front() != counts.back()) body(schedule, chunks, true);
    }
  }
}

// Calls body(kind, interval) for each recomputation that a search tries: "ffn" if the config asks for it or it may pay.
template <typename Body>
void for_each_recomputation(const ModelConfig& model, RecomputeKind of_config, const Body& body) {
  for (const RecomputeKind kind : {RecomputeKind::none, RecomputeKind::selective, RecomputeKind::block})
    body(kind, int64_t{0});
  if (of_config == RecomputeKind::ffn || attention_outweighs_ffn(model)) body(RecomputeKind::ffn, int64_t{0});
  for (const int64_t interval : recompute_intervals)
    if (interval < model.num_layers) body(RecomputeKind::every_nth, interval);
}

// Returns `layout` with each recomputation, without and with sequence parallelism, if the rules between config keys
// allow the combination.
std::vector<RunLayout> allowed_layouts(const RunConfig& config, RunLayout layout) {
  std::vector<RunLayout> allowed;
  for_each_recomputation(config.model, config.memory.recompute, [&](RecomputeKind kind, int64_t interval) {
    layout.recompute = kind;
    layout.recompute_interval = interval;
    for (const bool sequence : {false, true}) {
      layout.sequence = sequence;
      if (sequence && layout.tensor == 1) continue;
      if (with_derived_values(with_layout(config, layout), layout.world_size())) allowed.push_back(layout);
    }
  });
  return allowed;
}

}  // namespace

void require_layouts(const StepConfig& config) {
  if (config.parallel.zero_node_copy)
    throw Error(ExitCode::usage,
                "parallel.zero_node_copy = true: no layouts are searched with copies by node (plan this layout by "
                "train --dry-run, or search with --set parallel.zero_node_copy=false)");
  if (config.comm.compression.is_between_nodes())
    throw Error(ExitCode::usage,
                "comm.compression: between = \"nodes\": no layouts are searched with sums that are compressed between "
                "nodes (plan this layout by train --dry-run, or search with between = \"all\")");
}

RunConfig with_layout(const RunConfig& config, const RunLayout& layout) {
  RunConfig changed = config;
  changed.parallel.tensor = layout.tensor;
  changed.parallel.context = layout.context;
  changed.parallel.context_method = layout.context_method;
  changed.parallel.chooses_context_method = false;
  changed.parallel.node_replicas = {};
  changed.parallel.expert = layout.expert;
  changed.parallel.expert_tensor = layout.expert_tensor;
  if (layout.expert == 1) changed.parallel.expert_room = ParallelConfig{}.expert_room;
  changed.parallel.sequence = layout.sequence;
  if (layout.tensor == 1) changed.parallel.overlap_tensor = false;
  changed.parallel.pipeline = layout.pipeline;
  changed.parallel.virtual_stages = layout.virtual_stages;
  changed.parallel.pipeline_schedule = layout.schedule;
  changed.parallel.layers_per_stage.clear();
  if (layout.is_balanced) changed.parallel.layers_per_stage = balanced_layers(changed);
  changed.parallel.rank_order = layout.rank_order;
  changed.parallel.zero = layout.zero;
  changed.batch.micro = layout.micro;
  changed.batch.accumulation = layout.accumulation;
  changed.memory.recompute = layout.recompute;
  changed.memory.recompute_interval = layout.recompute_interval;
  if (layout.recompute != RecomputeKind::optimal) changed.memory.activation_budget = 0;
  changed.memory.offload = layout.offload;
  return changed;
}

RunLayout layout_of(const RunConfig& config, int64_t world_size) {
  return {.tensor = config.parallel.tensor,
          .context = config.parallel.context,
          .context_method = config.parallel.context_method,
          .expert = config.parallel.expert,
          .expert_tensor = config.parallel.expert_tensor,
          .sequence = config.parallel.sequence,
          .pipeline = config.parallel.pipeline,
          .virtual_stages = config.parallel.virtual_stages,
          .schedule = config.parallel.pipeline_schedule,
          .is_balanced = !config.parallel.layers_per_stage.empty(),
          .rank_order = config.parallel.rank_order,
          .data = world_size / ranks_of_model(config.parallel),
          .zero = config.parallel.zero,
          .micro = config.batch.micro,
          .accumulation = config.batch.accumulation,
          .recompute = config.memory.recompute,
          .recompute_interval = config.memory.recompute_interval,
          .offload = config.memory.offload};
}

namespace {

constexpr std::array<std::pair<std::string_view, LayoutValue>, 17> layout_values = {{
    {"parallel.tensor", [](const RunLayout& layout) { return layout.tensor; }},
    {"parallel.context", [](const RunLayout& layout) { return layout.context; }},
    {context_method_key, [](const RunLayout& layout) { return static_cast<int64_t>(layout.context_method); }},
    {"parallel.expert", [](const RunLayout& layout) { return layout.expert; }},
    {"parallel.expert_tensor", [](const RunLayout& layout) { return layout.expert_tensor; }},
    {"parallel.sequence", [](const RunLayout& layout) -> int64_t { return layout.sequence ? 1 : 0; }},
    {"parallel.pipeline", [](const RunLayout& layout) { return layout.pipeline; }},
    {"parallel.virtual_stages", [](const RunLayout& layout) { return layout.virtual_stages; }},
    {"parallel.pipeline_schedule", [](const RunLayout& layout) { return static_cast<int64_t>(layout.schedule); }},
    {"parallel.layers_per_stage", [](const RunLayout& layout) -> int64_t { return layout.is_balanced ? 1 : 0; }},
    {"parallel.rank_order", [](const RunLayout& layout) { return static_cast<int64_t>(layout.rank_order); }},
    {"parallel.zero", [](const RunLayout& layout) { return layout.zero; }},
    {"batch.micro", [](const RunLayout& layout) { return layout.micro; }},
    {"batch.accumulation", [](const RunLayout& layout) { return layout.accumulation; }},
    {"memory.recompute", [](const RunLayout& layout) { return static_cast<int64_t>(layout.recompute); }},
    {"memory.recompute_interval", [](const RunLayout& layout) { return layout.recompute_interval; }},
    {offload_key, [](const RunLayout& layout) { return layout.offload.code(); }},
}};

}  // namespace

LayoutValue layout_value(std::string_view key) {
  const auto found =
      std::find_if(layout_values.begin(), layout_values.end(), [&](const auto& value) { return value.first == key; });
  return found == layout_values.end() ? nullptr : found->second;
}

std::vector<std::string_view> layout_key_paths() {
  std::vector<std::string_view> paths;
  for (const auto& [path, value] : layout_values) paths.push_back(path);
  return paths;
}

namespace {

// Returns the values of the key that a search tries, as text, if `value` is none of them; otherwise an empty text.
std::string tried_values(std::string_view key, int64_t value, bool by_memory, bool on_gpu) {
  const auto up_to = [&](int64_t most) { return value > most ? fmt::format("values up to {}", most) : ""; };
  if (key == "batch.micro") return up_to(most_micro);
  if (key == "parallel.virtual_stages") return up_to(most_virtual_stages);
  if (key == "memory.recompute" && by_memory && value == static_cast<int64_t>(RecomputeKind::optimal))
    return "\"none\", \"selective\", \"ffn\", \"block\" and \"every_nth\" for the smallest peak";
  if (key == "memory.recompute_interval") {
    const bool is_tried =
        std::find(recompute_intervals.begin(), recompute_intervals.end(), value) != recompute_intervals.end();
    if (value > 0 && !is_tried) return "2, 3 and 4";
  }
  if (key == offload_key && value != offload::none.code()) {
    if (!on_gpu) return "\"none\" on a CPU";
    if (value == offload::optimal.code() && !by_memory) return "";
    if (value != offload::hidden.code() && value != offload::all.code())
      return by_memory ? "\"none\", \"hidden\" and \"all\" for the smallest peak"
                       : "\"none\", \"hidden\", \"all\" and \"optimal\"";
  }
  return "";
}

}  // namespace

void require_tried_values(const RunLayout& own, const std::vector<std::string>& held, bool by_memory, bool on_gpu) {
  bool every_nth = false, offloads = false;
  for (const std::string& setting : held) {
    const std::string key = setting.substr(0, setting.find('='));
    const int64_t value = layout_value(key)(own);
    const std::string tried = tried_values(key, value, by_memory, on_gpu);
    if (!tried.empty()) throw Error(ExitCode::usage, "--set {}: a search tries only {}", setting, tried);
    every_nth |= key == "memory.recompute_interval" && value > 0;
    every_nth |= key == "memory.recompute" && value == static_cast<int64_t>(RecomputeKind::every_nth);
    offloads |= key == offload_key && value != offload::none.code();
  }
  if (every_nth && offloads)
    throw Error(ExitCode::usage, "{}: a search does not combine offloading with memory.recompute = \"every_nth\"",
                join(held, ", "));
}

RunConfig checked_layout(const RunConfig& config, const RunLayout& layout) {
  return parse_config(show_config(with_layout(config, layout)), {}, "the layout", layout.world_size());
}

namespace {

// Calls body(expert, expert_tensor) for meshes of experts on the ranks of a group's stage: whole experts on every rank,
// and those over as many ranks as a node has or as there can be, or as the config asks for. Sizes between these lie
// between them in memory and traffic, and each takes a search as long as all layouts without experts.
template <typename Body>
void for_each_expert_mesh(const StepConfig& config, const LayoutGroup& group, int64_t ranks_per_node,
                          const Body& body) {
  body(1, 1);
  const int64_t of_stage = group.tensor * group.context * group.data;
  std::vector<int64_t> sizes = divisors(config.model.moe.experts, of_stage);
  std::erase_if(sizes, [&](int64_t size) { return of_stage % size != 0; });
  std::set<int64_t> tried;
  for (const int64_t size : sizes) {
    if (size == sizes.back() || size == config.parallel.expert) tried.insert(size);
  }
  const auto beyond = std::upper_bound(sizes.begin(), sizes.end(), ranks_per_node);
  if (beyond != sizes.begin()) tried.insert(*(beyond - 1));
  for (const int64_t expert : tried) {
    if (expert == 1) continue;
    body(expert, 1);
    if (group.tensor > 1 && of_stage % (expert * group.tensor) == 0) body(expert, group.tensor);
  }
}

}  // namespace

std::vector<LayoutGroup> layout_groups(const StepConfig& config, int64_t world_size, int64_t ranks_per_node) {
  std::vector<LayoutGroup> groups;
  // Sequences are shared by two nodes at most, or by as many ranks as the config has.
  const int64_t most_tensor = std::max(2 * ranks_per_node, config.parallel.tensor);
  for (const int64_t tensor : divisors(world_size, most_tensor)) {
    if (!suits_tensor(config.model, tensor)) continue;
    const int64_t most_context = std::max(2 * ranks_per_node / tensor, config.parallel.context);
    for (const int64_t context : divisors(world_size / tensor, most_context)) {
      const std::vector<ContextMethod> methods = context_methods(config, tensor, context, ranks_per_node);
      if (methods.empty()) continue;
      for (const int64_t stages : divisors(world_size / tensor / context, config.model.num_layers)) {
        const int64_t data = world_size / tensor / context / stages;
        const bool orders_differ = world_size > ranks_per_node && stages > 1 && data > 1;
        if (config.batch.global % data != 0) continue;
        for (const ContextMethod method : methods) {
          LayoutGroup group{.tensor = tensor,
                            .context = context,
                            .context_method = method,
                            .pipeline = stages,
                            .data = data,
                            .orders_differ = orders_differ};
          for_each_expert_mesh(config, group, ranks_per_node, [&](int64_t expert, int64_t expert_tensor) {
            group.expert = expert;
            group.expert_tensor = expert_tensor;
            groups.push_back(group);
          });
        }
      }
    }
  }
  return groups;
}

RunLayout layout_of(const LayoutGroup& group) {
  return {.tensor = group.tensor,
          .context = group.context,
          .context_method = group.context_method,
          .expert = group.expert,
          .expert_tensor = group.expert_tensor,
          .pipeline = group.pipeline,
          .data = group.data};
}

void for_each_layout(const RunConfig& config, const LayoutGroup& group,
                     const std::function<void(const RunLayout&)>& body) {
  const int64_t sequences = config.batch.global / group.data;
  const int64_t layers = config.model.num_layers;
  RunLayout layout = layout_of(group);
  const int64_t most_zero = config.compression().facts().most_zero;
  const int64_t largest_zero = layout.replicas() > 1 ? most_zero : 0;
  // Weights travel in codes only where they are gathered for each pass.
  const int64_t least_zero = config.comm.weights == WeightCodec::int8 ? largest_zero : 0;
  layout.zero = least_zero;
  for (const int64_t micro : divisors(sequences, most_micro)) {
    layout.micro = micro;
    layout.accumulation = sequences / micro;
    if (layout.accumulation * (layers + 2) > most_units_played) continue;
    const std::vector<RunLayout> allowed = allowed_layouts(config, layout);
    for_each_pipeline(config, group.pipeline, [&](PipelineOrder schedule, int64_t chunks, bool is_balanced) {
      for (RunLayout of_all : allowed) {
        of_all.schedule = schedule;
        of_all.virtual_stages = chunks;
        of_all.is_balanced = is_balanced;
        for (of_all.zero = least_zero; of_all.zero <= largest_zero; ++of_all.zero) {
          for (const RankOrder order : {RankOrder::tensor_data_pipeline, RankOrder::tensor_pipeline_data}) {
            of_all.rank_order = order;
            if (order == RankOrder::tensor_data_pipeline || group.orders_differ) body(of_all);
          }
        }
      }
    });
  }
}

}  // namespace gptrain::planner
