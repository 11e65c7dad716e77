// Choices that a run config names and that model code and ops implement.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace gptrain {

enum class NormKind : uint8_t { layernorm, rmsnorm };             // arXiv 1607.06450, 1910.07467
enum class ActivationKind : uint8_t { gelu_tanh, gelu, swiglu };  // arXiv 1606.08415 (tanh form and exact), 2002.05202
enum class PositionKind : uint8_t { learned, rope };              // rope: arXiv 2104.09864, halves rotated as in LLaMA
// How the angles of rope are slowed down: not at all, all of them, or those of slow pairs as in Llama 3.1.
enum class RopeScaling : uint8_t { none, linear, llama3 };
enum class LrCurve : uint8_t { constant, linear, cosine, wsd };  // after a linear warm-up; wsd: arXiv 2404.06395
enum class RecomputeKind : uint8_t { none, selective, block, every_nth, optimal };
// AdamW: arXiv 1711.05101; SGD with momentum; Lion: arXiv 2302.06675; LAMB: arXiv 1904.00962; LARS: arXiv 1708.03888;
// Muon: arXiv 2502.16982. And their names in configs.
enum class OptimizerKind : uint8_t { adamw, sgd, lion, lamb, lars, muon };
constexpr std::array<std::string_view, 6> optimizer_names = {"adamw", "sgd", "lion", "lamb", "lars", "muon"};
// What Muon's orthogonalisation multiplies in: bf16 where the products of the model are in bf16, or always fp32.
enum class NewtonSchulzProducts : uint8_t { as_compute, fp32 };
// How the learning rate follows the size of the batch: linear (arXiv 1706.02677) or by the root (arXiv 1404.5997).
enum class LrScaling : uint8_t { none, linear, sqrt };
// The order of passes on the stages of a pipeline (schedule/pipeline), and its name in configs.
enum class PipelineOrder : uint8_t { one_f_one_b, gpipe, interleaved, varuna, zero_bubble, zero_bubble_v };
constexpr std::array<std::string_view, 6> pipeline_order_names = {"1f1b",   "gpipe",       "interleaved",
                                                                  "varuna", "zero-bubble", "zero-bubble-v"};
// Which ranks are neighbours (mesh/mesh.h), and its name in configs.
enum class RankOrder : uint8_t { tensor_data_pipeline, tensor_pipeline_data };
constexpr std::array<std::string_view, 2> rank_order_names = {"tensor-data-pipeline", "tensor-pipeline-data"};
enum class DeviceKind : uint8_t { automatic, cpu, cuda };

// A gated activation reads two halves of its input: gate and up.
constexpr bool is_gated(ActivationKind kind) { return kind == ActivationKind::swiglu; }

}  // namespace gptrain
