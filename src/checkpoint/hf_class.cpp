#include "checkpoint/hf_class.h"

#include <fmt/format.h>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/printable.h"

namespace gptrain::inline checkpoint {
namespace {

struct Obstacle {
  std::string_view name, reason;
};

constexpr Obstacle obstacles[] = {
    {"DbrxForCausalLM", "norms without biases around clipped queries, keys and values"},
    {"DeepseekV2ForCausalLM", "latent attention"},
    {"DeepseekV3ForCausalLM", "latent attention"},
    {"Glm4MoeForCausalLM", "positions in half of a head's features"},
    {"GptOssForCausalLM", "a clamped SwiGLU, experts with biases and MXFP4 weights"},
    {"GraniteMoeForCausalLM", "factors of the branches and of the logits"},
    {"JambaForCausalLM", "state-space layers"},
    {"Llama4ForCausalLM", "routers that scale the experts' input"},
    {"OlmoeForCausalLM", "norms of the queries and keys of all heads together"},
    {"PhimoeForCausalLM", "a router that chooses one expert after the other"},
    {"Qwen3NextForCausalLM", "linear attention"},
};

}  // namespace

const HfClass& hf_class_of(const Json& document) {
  const Json wanted = document.value("architectures", Json(nullptr));
  std::string classes;
  for (const HfClass& hf : hf_classes()) {
    const bool is_meant = wanted.is_null() ? document.value("model_type", Json(nullptr)) == hf.model_type
                                           : wanted == Json::array({hf.name});
    if (is_meant) return hf;
    classes += fmt::format("{}{}", classes.empty() ? "" : ", ", hf.name);
  }
  std::string text = fmt::format("architectures = {}: gptrain reads {}", printable(show_value(wanted)), classes);
  for (const Obstacle& one : obstacles)
    if (wanted == Json::array({std::string(one.name)})) text += fmt::format("; {} has {}", one.name, one.reason);
  throw Error(ExitCode::checkpoint, "{}", text);
}

}  // namespace gptrain::checkpoint
