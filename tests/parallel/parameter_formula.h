// Closed formulas for the memory of a rank's parameters.
#pragma once

#include <algorithm>
#include <cstdint>

#include "config/run_config.h"
#include "model/spec/layout.h"
#include "parallel/memory.h"

namespace gptrain::testing {

inline int64_t padded(int64_t count, int64_t multiple = segment_multiple) {
  return (count + multiple - 1) / multiple * multiple;
}

// Elements of a rank's units, from the model's sizes alone, for t tensor ranks and d data ranks.
struct Elements {
  int64_t embedding, block, head;                    // elements of the whole unit
  int64_t embedding_norms, block_norms, head_norms;  // norms among them
  int64_t block_vectors;                             // norms and biases
  int64_t num_layers;
  int64_t unit_multiple;  // units start at multiples of this

  int64_t all() const { return padded(embedding, unit_multiple) + num_layers * padded(block, unit_multiple) + head; }
  int64_t norms() const { return embedding_norms + num_layers * block_norms + head_norms; }
  // One slot each for embedding and head, two for blocks.
  int64_t slots() const { return embedding + head + 2 * block; }
};

inline Elements elements_of(const ModelConfig& m, int64_t t, int64_t d) {
  const int64_t h = m.hidden_size, f = m.ffn_hidden_size / t;
  const int64_t heads = m.num_heads / t;
  const int64_t kv_heads = std::max<int64_t>(m.num_kv_heads / t, 1);  // at least one: several ranks hold it
  const int64_t qkv = (heads + 2 * kv_heads) * m.head_size;
  const int64_t ffn_in = (is_gated(m.activation) ? 2 : 1) * f;
  const int64_t vocabulary = padded((m.vocab_size + t - 1) / t, vocab_multiple) * h;
  const int64_t biases =
      m.bias ? padded(qkv) + padded(h) + padded(ffn_in) + padded(h) : 0;  // qkv, out, ffn.in, ffn.out
  const int64_t norm = padded(h) * (m.bias && m.norm == NormKind::layernorm ? 2 : 1);
  const int64_t head_norms = m.qk_norm ? 2 * padded(m.head_size) : 0;
  Elements e{};
  e.num_layers = m.num_layers;
  e.block_norms = 2 * norm + head_norms;
  e.block_vectors = e.block_norms + biases;
  e.head_norms = norm;
  e.embedding = padded(vocabulary) + (m.positions == PositionKind::learned ? padded(m.sequence_length * h) : 0);
  e.block =
      e.block_norms + padded(qkv * h) + padded(h * heads * m.head_size) + padded(ffn_in * h) + padded(h * f) + biases;
  e.head = e.head_norms + (m.tied_head ? 0 : padded(vocabulary));
  for (int64_t* unit : {&e.embedding, &e.block, &e.head}) *unit = padded(*unit, segment_multiple * d);
  e.unit_multiple = unit_multiple * d;
  return e;
}

// Returns the bytes of a rank's parameters by class. Everything is divided by the stage's data size.
inline MemoryPlan parameter_formula(const RunConfig& config, int64_t data_size) {
  const Elements e = elements_of(config.model, config.parallel.tensor, data_size);
  const int64_t zero = data_size > 1 ? config.parallel.zero : 0;
  const bool mixed = config.precision.compute != DType::f32;
  const int64_t compute_bytes = mixed ? 2 : 4;
  const auto share = [&](int64_t from_stage) { return zero >= from_stage ? e.all() / data_size : e.all(); };
  MemoryPlan plan;
  const bool pure = config.precision.pure;
  const bool narrow_gradients = config.precision.gradients != DType::f32;
  plan[MemoryClass::weights] = compute_bytes * share(3) + (mixed && (zero >= 1 || pure) ? 4 * e.norms() : 0);
  plan[MemoryClass::gradients] = (narrow_gradients ? 2 : 4) * share(2);
  plan[MemoryClass::master] = mixed && !pure ? 4 * share(1) : 0;
  plan[MemoryClass::optimizer] = (config.optimizer.type == OptimizerKind::lars ? 4 : 8) * share(1);
  if (config.optimizer.type == OptimizerKind::muon) {
    // Second moments of parameters outside a block's matrices, which are in the first piece of a block.
    const int64_t pieces = zero >= 1 ? data_size : 1;
    const int64_t of_blocks = e.num_layers * std::min(e.block_vectors, e.block / pieces);
    plan[MemoryClass::optimizer] = 4 * share(1) + 4 * ((e.embedding + e.head) / pieces + of_blocks);
  }
  plan[MemoryClass::gathered] = zero == 3 ? compute_bytes * e.slots() : 0;
  const bool narrowed = config.precision.reduce != DType::f32 && data_size > 1;
  // A single rank computes one unit's gradients after another, but starts a tied table's with the head's.
  const bool alone = data_size == 1 && config.parallel.tensor == 1;
  const int64_t one_by_one =
      config.model.tied_head ? e.embedding + std::max(e.block, e.head) : std::max({e.embedding, e.block, e.head});
  const int64_t whole_gradients = zero >= 2 || narrow_gradients ? 4 * (alone ? one_by_one : e.slots()) : 0;
  plan[MemoryClass::buckets] = whole_gradients + (narrowed ? 2 * e.slots() : 0);
  return plan;
}

}  // namespace gptrain::testing
