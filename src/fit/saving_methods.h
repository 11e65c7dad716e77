// The methods that train a larger model in the same memory, as settings of a config; `plan --methods` compares them.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/run_config.h"
#include "ops/target.h"

namespace gptrain::inline fit {

struct SavingMethod {
  enum class Place : uint8_t { any, cpu, gpu };

  std::string_view name;
  std::array<std::string_view, 4> settings;  // in the form of --set; unused elements are empty
  Place place = Place::any;                  // the only targets that allow it

  bool works_on(const Target& target) const {
    return place == Place::any || (place == Place::cpu) == (target.kind == Target::Kind::cpu);
  }

  // Returns the settings to apply to a config with this section `memory`. A setting of memory.recompute comes after
  // resets (KEY=null) of the keys that its value excludes. An activation budget stays if that value is "optimal".
  std::vector<std::string> on(const MemoryConfig& memory) const {
    std::vector<std::string> all;
    for (const std::string_view setting : settings) {
      if (setting.starts_with("memory.recompute=")) {
        const bool is_optimal = setting == "memory.recompute=optimal";
        const bool was_optimal = memory.offload == offload::optimal;
        if (memory.recompute_interval > 0) all.emplace_back("memory.recompute_interval=null");
        if (memory.activation_budget > 0 && !is_optimal) all.emplace_back("memory.activation_budget=null");
        if (memory.offload != offload::none && was_optimal != is_optimal)
          all.emplace_back("memory.offload_activations=null");
      }
      if (!setting.empty()) all.emplace_back(setting);
    }
    return all;
  }
};

// Whether some units' updates can run on a GPU, the others on its host: each element's update reads that element only.
constexpr bool updates_on_both(OptimizerKind type) {
  using enum OptimizerKind;
  return type == adamw || type == adamw_8bit || type == sgd || type == lion;
}
// Whether a GPU's host can run the optimizer's updates. False if these replace the gradients first.
constexpr bool updates_on_host(OptimizerKind type) {
  return updates_on_both(type) || type == OptimizerKind::lamb || type == OptimizerKind::lars;
}

namespace saving {
constexpr std::string_view pure = "precision.compute=bf16-pure";
constexpr std::string_view gradients = "precision.gradients=bf16";
constexpr std::string_view moments = "optimizer.type=adamw-8bit";
constexpr std::string_view activation = "memory.activation_bits=3";
constexpr std::string_view inputs = "memory.saved_inputs=8";
}  // namespace saving

// Returns settings, in the form of --set, that save memory but change training: those that the config allows and does
// not have yet.
inline std::vector<std::string> untried_methods(const StepConfig& config, const MemoryConfig& memory,
                                                const Target& target) {
  std::vector<std::string> settings;
  const auto add = [&settings](bool applies, std::string_view setting) {
    if (applies) settings.emplace_back(setting);
  };
  const PrecisionConfig& precision = config.precision;
  const bool selective = memory.recompute == RecomputeKind::selective;
  const bool runs_norms_again = selective || memory.recompute == RecomputeKind::ffn;
  add(config.optimizer.type == OptimizerKind::adamw, saving::moments);
  add(precision.compute == DType::bf16 && !precision.pure, saving::pure);
  add(precision.compute == DType::f32, target.bf16_products ? "precision.compute=bf16" : "precision.compute=fp16");
  add(precision.pure && precision.gradients == DType::f32, saving::gradients);
  add(memory.saved_inputs == 16 && !runs_norms_again, saving::inputs);
  add(!is_gated(config.model.activation) && memory.activation_bits == 16 && !selective, saving::activation);
  return settings;
}

// Returns whether the optimizer state could lie on the host of the target.
inline bool has_untried_host(const StepConfig& config, const MemoryConfig& memory, const Target& target) {
  return target.kind == Target::Kind::gpu && !memory.keeps_state_away() && updates_on_host(config.optimizer.type);
}

// The first method is the config as it is.
constexpr std::array<SavingMethod, 24> saving_methods = {{
    {"as given", {}},
    {"8-bit AdamW", {saving::moments}},
    // Resets betas and eps, which AdamW and Adafactor use differently.
    {"Adafactor", {"optimizer.type=adafactor", "optimizer.betas=null", "optimizer.eps=null"}},
    {"pure bf16", {saving::pure}},
    {"pure bf16, 8-bit AdamW", {saving::pure, saving::moments}},
    {"6 bytes a parameter", {saving::pure, saving::moments, saving::gradients}},
    {"3-bit GELU", {saving::activation}},
    {"8-bit inputs", {saving::inputs}},
    {"3-bit GELU, 8-bit inputs", {saving::activation, saving::inputs}},
    {"projected inputs, 20%", {R"(memory.linear_projection={"kind": "rademacher", "share": 0.2})"}},
    {"recompute selective", {"memory.recompute=selective"}},
    {"recompute ffn", {"memory.recompute=ffn"}},
    {"recompute block", {"memory.recompute=block"}},
    {"recompute optimal", {"memory.recompute=optimal"}},
    {"recompute and offload optimal", {"memory.recompute=optimal", "memory.offload_activations=optimal"}},
    {"offload hidden", {"memory.offload_activations=hidden"}},
    {"offload all", {"memory.offload_activations=all"}},
    {"optimizer state on the host", {"memory.offload_optimizer=host"}, SavingMethod::Place::gpu},
    {"state, gradients on the host",
     {"memory.offload_optimizer=host", "memory.offload_gradients=host"},
     SavingMethod::Place::gpu},
    {"all parameters on the host",
     {"memory.offload_optimizer=host", "memory.offload_gradients=host", "memory.offload_parameters=host"},
     SavingMethod::Place::gpu},
    {"optimizer state on disk", {"memory.offload_optimizer=disk", "memory.disk_path=."}},
    {"all parameters on disk",
     {"memory.offload_optimizer=disk", "memory.offload_parameters=disk", "memory.offload_gradients=disk",
      "memory.disk_path=."},
     SavingMethod::Place::cpu},
    {"6 bytes a parameter, 8-bit inputs", {saving::pure, saving::moments, saving::gradients, saving::inputs}},
    {"6 bytes a parameter, recompute block",
     {saving::pure, saving::moments, saving::gradients, "memory.recompute=block"}},
}};

}  // namespace gptrain::fit
