// The methods that train a larger model in the same memory, as settings of a config: what `plan --methods` compares.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gptrain {

struct SavingMethod {
  std::string_view name;
  std::array<std::string_view, 4> settings;  // as --set takes them; empty: none

  std::vector<std::string> own_settings() const {
    std::vector<std::string> own;
    for (const std::string_view setting : settings)
      if (!setting.empty()) own.emplace_back(setting);
    return own;
  }

  // `overrides`, and then its own settings. One that has a value of memory.recompute of its own takes back what goes with
  // others only: `takes_offload_back` where that is so of memory.offload_activations. A budget of activations stays with
  // "optimal".
  std::vector<std::string> on(std::span<const std::string> overrides, bool takes_offload_back = false) const {
    std::vector<std::string> all(overrides.begin(), overrides.end());
    for (const std::string_view setting : settings) {
      const bool is_optimal = setting == "memory.recompute=optimal";
      if (setting.starts_with("memory.recompute=")) all.emplace_back("memory.recompute_interval=null");
      if (setting.starts_with("memory.recompute=") && !is_optimal) all.emplace_back("memory.activation_budget=null");
      if (setting.starts_with("memory.recompute=") && takes_offload_back) all.emplace_back("memory.offload_activations=null");
      if (!setting.empty()) all.emplace_back(setting);
    }
    return all;
  }
};

namespace saving {
constexpr std::string_view pure = "precision.compute=bf16-pure";
constexpr std::string_view gradients = "precision.gradients=bf16";
constexpr std::string_view moments = "optimizer.type=adamw-8bit";
constexpr std::string_view activation = "memory.activation_bits=3";
constexpr std::string_view inputs = "memory.saved_inputs=8";
}  // namespace saving

// The first one is the config as it is.
constexpr std::array<SavingMethod, 18> saving_methods = {{
    {"as given", {}},
    {"8-bit AdamW", {saving::moments}},
    // Whose betas and eps mean something else, or nothing.
    {"Adafactor", {"optimizer.type=adafactor", "optimizer.betas=null", "optimizer.eps=null"}},
    {"pure bf16", {saving::pure}},
    {"pure bf16, 8-bit AdamW", {saving::pure, saving::moments}},
    {"6 bytes a parameter", {saving::pure, saving::moments, saving::gradients}},
    {"3-bit GELU", {saving::activation}},
    {"8-bit inputs", {saving::inputs}},
    {"3-bit GELU, 8-bit inputs", {saving::activation, saving::inputs}},
    {"projected inputs, 20%", {R"(memory.linear_projection={"kind": "rademacher", "share": 0.2})"}},
    {"recompute selective", {"memory.recompute=selective"}},
    {"recompute block", {"memory.recompute=block"}},
    {"recompute optimal", {"memory.recompute=optimal"}},
    {"recompute and offload optimal", {"memory.recompute=optimal", "memory.offload_activations=optimal"}},
    {"offload hidden", {"memory.offload_activations=hidden"}},
    {"offload all", {"memory.offload_activations=all"}},
    {"6 bytes a parameter, 8-bit inputs", {saving::pure, saving::moments, saving::gradients, saving::inputs}},
    {"6 bytes a parameter, recompute block",
     {saving::pure, saving::moments, saving::gradients, "memory.recompute=block"}},
}};

}  // namespace gptrain
