// The kinds of a model's layers: layers of one kind have equal costs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/attention_pattern.h"
#include "config/run_config.h"

namespace gptrain::inline spec {

struct LayerKind {
  AttentionPattern attention;
  bool rotates = false;  // ModelConfig::rotates
  FfnKind ffn;

  bool operator==(const LayerKind&) const = default;
};

struct LayerKinds {
  std::vector<LayerKind> kinds;   // in the order of their first layers
  std::vector<size_t> of_layers;  // by layer: index in `kinds`
  std::vector<size_t> alike;      // by kind: the first kind whose layers have parameters of the same sizes

  size_t of(int64_t layer) const { return of_layers[layer]; }
  // Returns the number of layers of each kind among layers [first, first + count).
  std::vector<int64_t> counts(int64_t first, int64_t count) const;
  // Returns the sums of `counts` over kinds with parameters of the same sizes, each at the first such kind.
  std::vector<int64_t> by_parameters(const std::vector<int64_t>& counts) const;
};

LayerKinds layer_kinds(const ModelConfig& model);

// Returns the model with `count` layers, all of one kind.
ModelConfig with_layers(ModelConfig model, const LayerKind& kind, int64_t count);

// Returns the FLOPs of products of a forward pass through a layer, for each token: 2 for each element of the layer's
// matrices, and 4 q for each token that a token attends to on average.
double forward_flops(const ModelConfig& model, const LayerKind& kind);

// Returns whether attention takes more time than the products of FFNs or experts that run again if attention does not,
// all but the last ones. Kernels of attention reach about half the rate of products.
bool attention_outweighs_ffn(const ModelConfig& model);

}  // namespace gptrain::spec
