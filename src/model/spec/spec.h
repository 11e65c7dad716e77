// The list of every parameter of a model: the one place that knows names, shapes, init, decay and splits. Sharding,
// counts, optimizer state, checkpoints and reports are derived from it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/run_config.h"

namespace gptrain {

// A unit is what is gathered, reduced, recomputed, offloaded and placed on stages as a whole: the embedding, a block,
// or the head (final norm and output projection). Units are numbered in forward order.
enum class UnitKind : uint8_t { embedding, block, head };

struct Unit {
  UnitKind kind;
  int64_t layer;  // of a block; 0 for the others
};

enum class Init : uint8_t { normal, zeros, ones };

// How a tensor is cut over the tensor-parallel axis: not at all (every rank holds it), by rows (dim 0: column-parallel
// linears, vocabulary) or by columns (dim 1: row-parallel linears).
enum class Split : uint8_t { none, rows, columns };

struct TensorSpec {
  std::string name;
  int64_t unit;
  std::vector<int64_t> shape;         // global, true: what is counted, saved and exported
  std::vector<int64_t> padded_shape;  // global, as stored on the device; padding is zero and stays zero
  Init init;
  double init_std;  // of Init::normal
  bool decay;       // weight decay applies: matrices yes, norms and biases no
  Split split;
  std::vector<int64_t> sections;  // rows of each part that is split on its own ([q, k, v], [gate, up]); empty: one part

  int64_t count() const;         // elements of `shape`
  int64_t padded_count() const;  // elements of `padded_shape`
};

struct ModelSpec {
  std::vector<Unit> units;
  std::vector<TensorSpec> tensors;  // by unit, in a fixed order

  int64_t parameters() const;                   // true elements of all tensors, each once
  int64_t find(const std::string& name) const;  // index, or -1
};

// Vocabulary rows are padded to a multiple of this, so that the head's matrix products keep aligned rows.
constexpr int64_t vocab_multiple = 64;

ModelSpec make_spec(const ModelConfig& model);

}  // namespace gptrain
