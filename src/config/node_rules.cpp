#include <algorithm>
#include <array>

#include "config/rules.h"

namespace gptrain::inline config {
namespace {

// Optimizers that need no sums over tensors: these would count an element once for each node's replica of the state.
constexpr std::array replicated_optimizers = {OptimizerKind::adamw, OptimizerKind::adamw_8bit, OptimizerKind::lion,
                                              OptimizerKind::sgd};

// Rules of comm.hierarchy, comm.ranks_per_node and parallel.zero_node_copy.
class NodeRules : Rules {
 public:
  explicit NodeRules(const RuleContext& context) : Rules(context) {}

  void run() {
    if (!sound({"comm.hierarchy", "comm.ranks_per_node", copy_path, "parallel.zero"})) return;
    const CommConfig& comm = config_.comm;
    const bool has_node_replicas = config_.parallel.zero_node_copy;
    if (comm.ranks_per_node > 0 && comm.hierarchy == CommHierarchy::flat && !has_node_replicas)
      fault("comm.ranks_per_node", "has no effect with comm.hierarchy = \"flat\"", "0");
    if (comm.hierarchy == CommHierarchy::node) {
      if (has_node_replicas)
        fault("comm.hierarchy", "has no effect with parallel.zero_node_copy, which sums by node already", "\"auto\"");
      if (sound({"parallel.local_steps"}) && config_.parallel.local_steps.is_on())
        fault("comm.hierarchy",
              "must be \"auto\" or \"flat\" with parallel.local_steps, whose islands sum by themselves", "\"auto\"");
    }
    if (has_node_replicas && config_.parallel.zero > 0) check_node_replicas();
  }

 private:
  static constexpr const char* copy_path = "parallel.zero_node_copy";

  void refuse(const char* path, bool fails, const std::string& rule, const std::string& nearest) {
    if (sound({path}) && fails) fault(path, rule + " with parallel.zero_node_copy", nearest);
  }

  void check_node_replicas() {
    const auto& allowed = replicated_optimizers;
    const bool is_allowed = std::find(allowed.begin(), allowed.end(), config_.optimizer.type) != allowed.end();
    refuse("optimizer.type", !is_allowed, "must be adamw, adamw-8bit, lion or sgd", "\"adamw\"");
    refuse("precision.reduce", config_.precision.reduce != DType::f32, "must be \"fp32\"", "\"fp32\"");
    refuse("precision.gradients", config_.precision.gradients != DType::f32, "must be \"fp32\"", "\"fp32\"");
    refuse("comm.compression", config_.comm.compression.is_on(), "must be {}", "{}");
    refuse("parallel.expert", config_.parallel.expert > 1, "must be 1", "1");
    refuse("parallel.local_steps", config_.parallel.local_steps.is_on(), "must be {}", "{}");
    refuse("memory.offload_optimizer", config_.memory.keeps_state_away(), "must be \"none\"", "\"none\"");
  }
};

}  // namespace

void check_nodes(const RuleContext& context) { NodeRules(context).run(); }

}  // namespace gptrain::config
