// Enumerations that a run config names and that model code and ops implement, with their names in configs.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/enum_array.h"

namespace gptrain::inline base {

enum class NormKind : uint8_t { layernorm, rmsnorm };  // arXiv 1607.06450, 1910.07467
// arXiv 1606.08415 (tanh form and exact); gated by SiLU and by the two forms of GELU: 2002.05202
enum class ActivationKind : uint8_t { gelu_tanh, gelu, swiglu, geglu, geglu_tanh };
constexpr EnumArray<ActivationKind, std::string_view, 5> activation_names = {"gelu_tanh", "gelu", "swiglu", "geglu",
                                                                             "geglu_tanh"};
enum class PositionKind : uint8_t { learned, rope };  // rope: arXiv 2104.09864, halves rotated as in LLaMA
// Whether a layer of a model with rope rotates its queries and keys.
enum class LayerPositions : uint8_t { rope, none };
constexpr EnumArray<LayerPositions, std::string_view, 2> layer_positions_names = {"rope", "none"};
// How RoPE's frequencies are lowered: not at all, all by one factor, or only the low ones as in Llama 3.1.
enum class RopeScaling : uint8_t { none, linear, llama3 };
constexpr EnumArray<RopeScaling, std::string_view, 3> rope_scaling_names = {"none", "linear", "llama3"};
enum class LrCurve : uint8_t { constant, linear, cosine, wsd };  // after a linear warm-up; wsd: arXiv 2404.06395
enum class RecomputeKind : uint8_t { none, selective, ffn, block, every_nth, optimal };
// The part of its forward pass that a block keeps: outputs of linears, or the values of attention.
enum class SavedPart : uint8_t { nothing, products, attention };
// AdamW: arXiv 1711.05101; with 8-bit moments: 2110.02861. SGD with momentum. Lion: 2302.06675. LAMB: 1904.00962. LARS:
// 1708.03888. Muon: 2502.16982. Adafactor: 1804.04235. 1-bit Adam: 2102.02888. 0/1 Adam: 2202.06009.
enum class OptimizerKind : uint8_t {
  adamw,
  adamw_8bit,
  sgd,
  lion,
  lamb,
  lars,
  muon,
  adafactor,
  onebit_adam,
  zero_one_adam
};
constexpr EnumArray<OptimizerKind, std::string_view, 10> optimizer_names = {
    "adamw", "adamw-8bit", "sgd", "lion", "lamb", "lars", "muon", "adafactor", "onebit-adam", "zero-one-adam"};
// Type of Muon's orthogonalisation products: bf16 if the model computes in bf16, or always fp32.
enum class NewtonSchulzProducts : uint8_t { as_compute, fp32 };
// Scaling of the learning rate with the batch size: linear (arXiv 1706.02677) or by its square root (arXiv 1404.5997).
enum class LrScaling : uint8_t { none, linear, sqrt };
// Order of passes on the stages of a pipeline (schedule/pipeline).
enum class PipelineOrder : uint8_t { one_f_one_b, gpipe, interleaved, varuna, zero_bubble, zero_bubble_v };
constexpr EnumArray<PipelineOrder, std::string_view, 6> pipeline_order_names = {
    "1f1b", "gpipe", "interleaved", "varuna", "zero-bubble", "zero-bubble-v"};
// Order of the mesh's axes in rank numbers (mesh/mesh.h).
enum class RankOrder : uint8_t { tensor_data_pipeline, tensor_pipeline_data };
constexpr EnumArray<RankOrder, std::string_view, 2> rank_order_names = {"tensor-data-pipeline", "tensor-pipeline-data"};
// Attention of ranks that share sequences: the ranks exchange tokens for heads, or each keeps its queries and receives
// the others' keys and values (arXiv 2310.01889).
enum class ContextMethod : uint8_t { automatic, heads, ring };
constexpr EnumArray<ContextMethod, std::string_view, 3> context_method_names = {"auto", "heads", "ring"};
// The matrix that projects the rows of a linear's input (arXiv 2201.13195): normal numbers, signs, cosines of random
// frequencies, or a selection of rows.
enum class ProjectionKind : uint8_t { gauss, rademacher, dct, rows };
constexpr EnumArray<ProjectionKind, std::string_view, 4> projection_names = {"gauss", "rademacher", "dct", "rows"};
// The linears of a block.
enum class LinearSite : uint8_t { qkv, attention_out, ffn_in, ffn_out };
constexpr EnumArray<LinearSite, std::string_view, 4> linear_site_names = {"qkv", "out", "ffn_in", "ffn_out"};
// Scores of a mixture's router: a softmax over the experts, or a sigmoid of each (arXiv 2101.03961, 2408.15664).
enum class RouterScore : uint8_t { softmax, sigmoid };
constexpr EnumArray<RouterScore, std::string_view, 2> router_score_names = {"softmax", "sigmoid"};
// Factor of the shared experts' result: none, or a sigmoid of a product of the token with a vector (Qwen2-MoE).
enum class SharedGate : uint8_t { none, sigmoid };
constexpr EnumArray<SharedGate, std::string_view, 2> shared_gate_names = {"none", "sigmoid"};
// Tokens whose loads a balance loss is made of: a sequence's, those of a micro-batch on a rank, or those of the step
// before (arXiv 2501.11873 takes the same step's).
enum class BalanceOver : uint8_t { sequence, micro_batch, global };
constexpr EnumArray<BalanceOver, std::string_view, 3> balance_over_names = {"sequence", "micro-batch", "global"};
// Tokens over which an expert's capacity is counted: a sequence's, or those of a micro-batch on a rank.
enum class CapacityOver : uint8_t { sequence, rank };
constexpr EnumArray<CapacityOver, std::string_view, 2> capacity_over_names = {"sequence", "rank"};
// Tokens that an expert without room drops: those with the smallest weights, or the last ones.
enum class DropRule : uint8_t { probability, position };
constexpr EnumArray<DropRule, std::string_view, 2> drop_rule_names = {"probability", "position"};
// Effect of too little room for experts' rows on a rank: the run ends, or the rows are dropped.
enum class ExpertOverflowRule : uint8_t { stop, drop };
constexpr EnumArray<ExpertOverflowRule, std::string_view, 2> expert_overflow_names = {"stop", "drop"};
enum class DeviceKind : uint8_t { automatic, cpu, cuda };

// A gated activation reads two halves of its input: gate and up.
constexpr bool is_gated(ActivationKind kind) {
  return kind != ActivationKind::gelu_tanh && kind != ActivationKind::gelu;
}

}  // namespace gptrain::base
