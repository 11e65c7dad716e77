// The list of all parameters of a model, with their names, shapes, init, decay and splits. Sharding, counts, optimizer
// state, checkpoints and reports are derived from it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/enum_array.h"
#include "config/run_config.h"
#include "model/spec/unit.h"

namespace gptrain::inline spec {

enum class Init : uint8_t { normal, zeros, constant };

// Split of a tensor over the tensor-parallel axis: none (every rank holds it), by rows of each section (dim 0:
// column-parallel linears), by columns (dim 1: row-parallel linears), or by rows of the padded vocabulary.
enum class Split : uint8_t { none, rows, columns, vocabulary };

// Kind of a norm's weights, or of other small weights that ops read in f32: rounding a weight near 1 to bf16 would
// shift a whole feature by up to 0.4% in every row.
//   of_rows   every tensor rank holds it; with sequence parallelism, gradients come from the rank's own rows of the
//             residual stream, and are summed over the tensor ranks
//   of_heads  every tensor rank holds it; gradients come from the rank's own heads, and are summed likewise
//   sinks     attention's sinks, split over the tensor ranks as the heads are
//   router    matrix of a mixture's router, held by every tensor rank; gradients come from the rank's share of each
//             expert, and are summed likewise
enum class NormUse : uint8_t { no_norm, of_rows, of_heads, sinks, router };

// Part of the model in tables of parameter counts.
enum class ModelPart : uint8_t { embedding, attention, ffn, norms, head, count };
constexpr size_t num_model_parts = static_cast<size_t>(ModelPart::count);
constexpr EnumArray<ModelPart, std::string_view, num_model_parts> model_part_names = {"embedding", "attention", "ffn",
                                                                                      "norms", "head"};

// A matrix' range of rows that is split separately, in groups of `group_rows` rows (a head's).
struct Section {
  int64_t rows;
  int64_t group_rows;
};

struct TensorSpec {
  std::string name;
  int64_t unit;
  ModelPart part;
  std::vector<int64_t> shape;  // global, without padding: as counted, saved and exported
  Init init;
  double init_scale;  // standard deviation of Init::normal, value of Init::constant
  bool decay;         // weight decay applies: matrices yes, norms and biases no
  float rate_factor;  // factor of the learning rate
  Split split;
  std::vector<Section> sections;  // sections of Split::rows, in order: [q, k, v], [gate, up]; else empty
  NormUse norm_use;
  bool of_block_matrix = false;  // a matrix of a transformer block
  int32_t expert = -1;           // number of the expert that it belongs to; -1: none
  bool follows_loads = false;    // set by the experts' loads, not by a gradient (optim/router_balance.h)

  int64_t count() const;  // elements of `shape`
  bool is_matrix() const { return shape.size() == 2; }
  // RETURNS the number of matrices, or vectors, stored in it one after the other: the number of sections, or 1.
  int64_t num_parts() const { return sections.empty() ? 1 : static_cast<int64_t>(sections.size()); }
  // RETURNS whether an 8-bit optimizer stores its state of the tensor in blocks: only for matrices that are not small.
  bool has_block_state() const { return shape.size() == 2 && norm_use == NormUse::no_norm && count() >= 4096; }
};

int64_t element_count(const std::vector<int64_t>& shape);

struct ModelSpec {
  std::vector<Unit> units;
  std::vector<TensorSpec> tensors;  // unit after unit, in a fixed order within each

  int64_t parameters() const;  // elements of all tensors, without padding, each counted once
  // Returns each tensor's index in `tensors` by its name, borrowed from it. REQUIRES: no two tensors have one name.
  std::unordered_map<std::string_view, size_t> numbers() const;
};

// Each rank's vocabulary rows are padded to a multiple of this, so that the head's matrix products have aligned rows.
// Padding is zero and stays zero.
constexpr int64_t vocab_multiple = 64;

// RETURNS the list. `experts_are_units`: experts are units of their own, as needed when they are spread over ranks.
ModelSpec make_spec(const ModelConfig& model, bool experts_are_units = false);
// RETURNS the list of make_spec. Keeps the last list, so that plans of one model share it. Callable by several threads
// at once.
std::shared_ptr<const ModelSpec> shared_spec(const ModelConfig& model, bool experts_are_units);

}  // namespace gptrain::spec
