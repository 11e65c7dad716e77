// The list of every parameter of a model: the one place that knows names, shapes, init, decay and splits. Sharding,
// counts, optimizer state, checkpoints and reports are derived from it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
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

enum class Init : uint8_t { normal, zeros, constant };

// How a tensor is cut over the tensor-parallel axis: not at all (every rank holds it), by rows section by section
// (dim 0: column-parallel linears), by columns (dim 1: row-parallel linears), or by rows of the padded vocabulary.
enum class Split : uint8_t { none, rows, columns, vocabulary };

// The weights of norms are held by every rank of the tensor axis, and their ops read them in f32: they lie near 1,
// where rounding them to bf16 shifts a whole feature by up to 0.4%, in every row alike. A rank's gradient of such a
// tensor is that of its own rows of the residual stream (under sequence parallelism), or of its own heads, and summed
// over ranks.
enum class NormUse : uint8_t { no_norm, of_rows, of_heads };

// What a reader of a parameter count tells apart.
enum class ModelPart : uint8_t { embedding, attention, ffn, norms, head, count };
constexpr size_t num_model_parts = static_cast<size_t>(ModelPart::count);
constexpr std::array<std::string_view, num_model_parts> model_part_names = {"embedding", "attention", "ffn", "norms",
                                                                            "head"};

// Rows that are split on their own, and how many of them stay together (a head's).
struct Section {
  int64_t rows;
  int64_t together;
};

struct TensorSpec {
  std::string name;
  int64_t unit;
  ModelPart part;
  std::vector<int64_t> shape;  // global, true: what is counted, saved and exported
  Init init;
  double init_scale;  // standard deviation of Init::normal, value of Init::constant
  bool decay;         // weight decay applies: matrices yes, norms and biases no
  float rate_factor;  // of the learning rate
  Split split;
  std::vector<Section> sections;  // of Split::rows, in order: [q, k, v], [gate, up]
  NormUse norm_use;
  bool of_block_matrix = false;  // a transformer block's weight with rows and columns

  int64_t count() const;  // elements of `shape`
  bool is_matrix() const { return shape.size() == 2; }
  // Matrices, or vectors, that lie in it one behind the other: as many as there are sections, or one.
  int64_t num_parts() const { return sections.empty() ? 1 : static_cast<int64_t>(sections.size()); }
  // Whether an optimizer of few bits keeps its state of the tensor in blocks: of matrices that are not small.
  bool has_block_state() const { return shape.size() == 2 && norm_use == NormUse::no_norm && count() >= 4096; }
};

int64_t element_count(const std::vector<int64_t>& shape);

struct ModelSpec {
  std::vector<Unit> units;
  std::vector<TensorSpec> tensors;  // by unit, in a fixed order

  int64_t parameters() const;                   // true elements of all tensors, each once
  int64_t find(const std::string& name) const;  // index, or -1
};

// Vocabulary rows of a rank are padded to a multiple of this, so that the head's matrix products keep aligned rows;
// padding is zero and stays zero.
constexpr int64_t vocab_multiple = 64;

ModelSpec make_spec(const ModelConfig& model);

}  // namespace gptrain
