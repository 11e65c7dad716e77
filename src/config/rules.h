// Rules between keys, by area. Each area is a class in its own file that reads the config and adds faults through
// Rules. Some areas also fill in values that follow from other keys; config/checks.cpp calls them before the areas that
// use these values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <set>
#include <string>
#include <string_view>

#include "config/axis_sizes.h"
#include "config/faults.h"
#include "config/fields.h"
#include "config/run_config.h"

namespace gptrain::inline config {

// The inputs of a rule, all borrowed.
struct RuleContext {
  RunConfig& config;
  const std::set<std::string>& given;  // paths that the file or an override sets
  int64_t world_size;
  Faults& faults;
};

void resolve_model(const RuleContext& context);   // shapes of the model
void resolve_moe(const RuleContext& context);     // sizes of experts
void check_moe(const RuleContext& context);       // experts, and keys that exclude them
void resolve_mesh(const RuleContext& context);    // ranks, stages, and the batch that is divided over them
void check_context(const RuleContext& context);   // ranks that share sequences
void check_experts(const RuleContext& context);   // ranks that share experts
void resolve_method(const RuleContext& context);  // precision, optimizer, learning rate
void check_memory(const RuleContext& context);    // bits and places of activations, weights and state
void check_comm(const RuleContext& context);      // compression of gradients
void check_local_steps(const RuleContext& context);
void check_nodes(const RuleContext& context);  // communication by node

inline constexpr int64_t max_int64 = std::numeric_limits<int64_t>::max();

class Rules {
 protected:
  explicit Rules(const RuleContext& context)
      : config_(context.config), given_(context.given), world_size_(context.world_size), faults_(context.faults) {}

  bool is_given(const std::string& path) const { return given_.contains(path); }

  // Returns true if rules may use the values of the keys with these paths: none has a fault, and none comes from an
  // unknown preset.
  bool sound(std::initializer_list<const char*> paths) const {
    return std::none_of(paths.begin(), paths.end(), [&](const char* path) {
      const bool of_preset = std::string_view(path).starts_with("model.") && !is_given(path);
      return faults_.concern(path) || (of_preset && faults_.concern("model.preset"));
    });
  }

  // Adds a fault of a key's value. `nearest`: the valid value to propose. REQUIRES: a key has that path.
  void fault(const std::string& path, const std::string& rule, const std::string& nearest) {
    faults_.add(path, show_value(find_field(path)->get(config_)), rule, nearest);
  }

  // Checks that the weights are read only after multiples of `every` steps; `rule`: the fault's text. Changes
  // comm.compare_every_steps to the nearest multiple if the key is not given.
  void check_reads_of_weights(int64_t every, const std::string& rule) {
    const auto check = [&](const char* key, int64_t& steps, bool may_change) {
      if (!sound({key}) || steps == 0 || steps % every == 0) return;
      const int64_t nearest = std::max<int64_t>(1, (steps + every / 2) / every) * every;
      if (may_change && !is_given(key)) {
        steps = nearest;
      } else {
        fault(key, rule, std::to_string(nearest));
      }
    };
    check("checkpoint.every_steps", config_.checkpoint.every_steps, false);
    check("run.validate_every_steps", config_.run.validate_every_steps, false);
    check("run.sample_every_steps", config_.run.sample_every_steps, false);
    check("comm.compare_every_steps", config_.comm.compare_every_steps, true);
  }

  // Returns the number of data ranks; 1 if the sizes of the mesh do not divide the ranks, which resolve_mesh reports.
  int64_t data_ranks() const {
    const int64_t model_ranks = ranks_of_model(config_.parallel);
    return world_size_ % model_ranks == 0 ? world_size_ / model_ranks : 1;
  }

  RunConfig& config_;
  const std::set<std::string>& given_;
  const int64_t world_size_;
  Faults& faults_;
};

}  // namespace gptrain::config
