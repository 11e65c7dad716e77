// Tensor-parallel shards of every tensor, and the flat layout of a rank's parameters.
#include <algorithm>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "catch.h"
#include "model/spec/layout.h"
#include "model/spec/shard.h"
#include "model_fixture.h"
#include "parallel/executor.h"

using namespace gptrain;
using gptrain::testing::Family;
using gptrain::testing::small_config;

namespace {

// Sizes that divide over the tensor ranks, except for the vocabulary.
ModelConfig model_of(Family family, int64_t tensor_size, int64_t num_kv_heads) {
  const int64_t heads = tensor_size == 5 ? 10 : tensor_size == 8 ? 8 : 12;
  const auto set = [](const char* key, int64_t value) { return key + std::string("=") + std::to_string(value); };
  return small_config(family, {set("model.num_heads", heads), set("model.hidden_size", 4 * heads),
                               set("model.num_kv_heads", num_kv_heads == 0 ? heads : num_kv_heads),
                               "model.ffn_hidden_size=120", "model.vocab_size=201"})
      .model;
}

struct ShardedModel {
  ModelConfig model;
  int64_t tensor_size;
  ModelSpec spec;
  std::vector<std::vector<TensorShard>> ranks;
};

std::vector<ShardedModel> sharded_models() {
  std::vector<ShardedModel> models;
  for (const Family family : {Family::gpt2, Family::llama}) {
    for (const int64_t size : {1, 2, 3, 4, 5, 6, 8}) {
      for (const int64_t kv_heads : {0, 2, 1}) {
        if (kv_heads == 2 && (size == 3 || size == 5)) continue;  // 2 and `size`: neither divides the other
        ShardedModel sharded{.model = model_of(family, size, kv_heads), .tensor_size = size, .spec = {}, .ranks = {}};
        sharded.model.attention_sinks = family == Family::llama;
        sharded.spec = make_spec(sharded.model);
        for (int64_t rank = 0; rank < size; ++rank) sharded.ranks.push_back(shard_tensors(sharded.spec, {size, rank}));
        models.push_back(std::move(sharded));
      }
    }
  }
  return models;
}

// Returns the global row-major indices of a box's elements, in order.
std::vector<int64_t> indices_of(const TensorSpec& tensor, const ShardBox& box) {
  std::vector<int64_t> indices;
  const int64_t global_cols = tensor.shape.size() == 2 ? tensor.shape[1] : 1;
  const int64_t cols = box.shape.size() == 2 ? box.shape[1] : 1;
  const int64_t first_col = box.offset.size() == 2 ? box.offset[1] : 0;
  for (int64_t i = 0; i < box.count(); ++i)
    indices.push_back((box.offset[0] + i / cols) * global_cols + first_col + i % cols);
  return indices;
}

// Returns the global index of each local element, -1 for padding.
std::vector<int64_t> local_contents(const TensorSpec& tensor, const TensorShard& shard) {
  std::vector<int64_t> contents(static_cast<size_t>(shard.count()), -1);
  for (const ShardBox& box : shard.boxes) {
    const std::vector<int64_t> indices = indices_of(tensor, box);
    std::copy(indices.begin(), indices.end(), contents.begin() + static_cast<std::ptrdiff_t>(box.local_offset));
  }
  return contents;
}

const TensorShard& shard_of(const ShardedModel& model, int64_t rank, const std::string& tensor) {
  return model.ranks.at(static_cast<size_t>(rank)).at(model.spec.numbers().at(tensor));
}

// Returns the rows of a tensor that a rank holds, in local order.
std::vector<int64_t> rows_of(const ShardedModel& model, int64_t rank, const std::string& name) {
  const TensorSpec& tensor = model.spec.tensors[model.spec.numbers().at(name)];
  const int64_t cols = tensor.shape.size() == 2 ? tensor.shape[1] : 1;
  const std::vector<int64_t> contents = local_contents(tensor, shard_of(model, rank, name));
  std::vector<int64_t> rows;
  for (size_t i = 0; i < contents.size(); i += static_cast<size_t>(cols)) rows.push_back(contents[i] / cols);
  return rows;
}

void append_range(std::vector<int64_t>& rows, int64_t first, int64_t count) {
  for (int64_t i = 0; i < count; ++i) rows.push_back(first + i);
}

}  // namespace

TEST_CASE("every element of every tensor is owned by one rank, and no rank holds one twice") {
  for (const ShardedModel& model : sharded_models()) {
    for (size_t i = 0; i < model.spec.tensors.size(); ++i) {
      const TensorSpec& tensor = model.spec.tensors[i];
      INFO(tensor.name << " over " << model.tensor_size << ", " << model.model.num_kv_heads << " kv heads");
      std::vector<int> owners(static_cast<size_t>(tensor.count()), 0);
      bool in_bounds = true, in_order = true, once = true;
      for (const std::vector<TensorShard>& shards : model.ranks) {
        std::set<int64_t> held;
        int64_t end = 0;
        for (const ShardBox& box : shards[i].boxes) {
          in_order = in_order && box.local_offset >= end && box.count() > 0;
          end = box.local_offset + box.count();
          for (const int64_t index : indices_of(tensor, box)) {
            in_bounds = in_bounds && index >= 0 && index < tensor.count();
            once = held.insert(index).second && once;
            if (in_bounds && box.owned) ++owners[static_cast<size_t>(index)];
          }
        }
        in_bounds = in_bounds && end <= shards[i].count();
      }
      CHECK(in_bounds);
      CHECK(in_order);
      CHECK(once);
      CHECK(std::all_of(owners.begin(), owners.end(), [](int count) { return count == 1; }));
    }
  }
}

TEST_CASE("column-parallel linears are cut section by section, between heads") {
  for (const ShardedModel& model : sharded_models()) {
    INFO("over " << model.tensor_size << ", " << model.model.num_kv_heads << " kv heads");
    const ModelConfig& m = model.model;
    const int64_t head = m.head_size;
    const int64_t heads = m.num_heads / model.tensor_size;
    const int64_t kv_heads = std::max<int64_t>(m.num_kv_heads / model.tensor_size, 1);
    for (int64_t rank = 0; rank < model.tensor_size; ++rank) {
      // Lists the key-value heads that the rank's query heads use.
      const int64_t first_kv_head = rank * heads / (m.num_heads / m.num_kv_heads);
      std::vector<int64_t> expected;
      append_range(expected, rank * heads * head, heads * head);
      append_range(expected, m.hidden_size + first_kv_head * head, kv_heads * head);
      append_range(expected, m.hidden_size + m.kv_size() + first_kv_head * head, kv_heads * head);
      CHECK(rows_of(model, rank, "blocks.1.attention.qkv.weight") == expected);
      if (m.bias) CHECK(rows_of(model, rank, "blocks.1.attention.qkv.bias") == expected);

      const int64_t ffn = m.ffn_hidden_size / model.tensor_size;
      std::vector<int64_t> gate_and_up;
      append_range(gate_and_up, rank * ffn, ffn);
      if (is_gated(m.activation)) append_range(gate_and_up, m.ffn_hidden_size + rank * ffn, ffn);
      CHECK(rows_of(model, rank, "blocks.2.ffn.in.weight") == gate_and_up);
    }
  }
}

TEST_CASE("row-parallel linears are cut by columns, what is not cut is whole on every rank") {
  for (const ShardedModel& model : sharded_models()) {
    for (int64_t rank = 0; rank < model.tensor_size; ++rank) {
      const TensorShard& out = shard_of(model, rank, "blocks.0.attention.out.weight");
      const int64_t cols = model.model.hidden_size / model.tensor_size;
      CHECK(out.shape == std::vector<int64_t>{model.model.hidden_size, cols});
      REQUIRE(out.boxes.size() == 1);
      CHECK(out.boxes[0].offset == std::vector<int64_t>{0, rank * cols});
      const TensorShard& norm = shard_of(model, rank, "blocks.0.norm1.weight");
      CHECK(norm.shape == std::vector<int64_t>{model.model.hidden_size});
      REQUIRE(norm.boxes.size() == 1);
      CHECK(norm.boxes[0].owned == (rank == 0));
    }
  }
}

TEST_CASE("the vocabulary is padded at its end, and a rank may hold padding only") {
  CHECK(vocabulary_rows(201, 1) == 256);
  CHECK(vocabulary_rows(201, 3) == 128);
  CHECK(vocabulary_rows(201, 8) == 64);
  CHECK(vocabulary_rows(256, 4) == 64);
  CHECK(vocabulary_rows(257, 4) == 128);
  CHECK(vocabulary_rows(1, 8) == 64);
  for (const ShardedModel& model : sharded_models()) {
    const int64_t rows = vocabulary_rows(201, model.tensor_size);
    for (int64_t rank = 0; rank < model.tensor_size; ++rank) {
      INFO("rank " << rank << " of " << model.tensor_size);
      const TensorShard& shard = shard_of(model, rank, "embedding.token");
      CHECK(shard.shape == std::vector<int64_t>{rows, model.model.hidden_size});
      const int64_t held = std::clamp<int64_t>(201 - rank * rows, 0, rows);
      REQUIRE(shard.boxes.size() == (held > 0 ? 1 : 0));
      if (held > 0) CHECK(shard.boxes[0].shape == std::vector<int64_t>{held, model.model.hidden_size});
    }
  }
}

TEST_CASE("shared heads are the keys' and values' heads that several ranks hold") {
  ModelConfig m;
  m.num_kv_heads = 2;
  CHECK(ranks_of_kv_head(m, 1) == 1);
  CHECK(ranks_of_kv_head(m, 2) == 1);
  CHECK(ranks_of_kv_head(m, 4) == 2);
  CHECK(ranks_of_kv_head(m, 8) == 4);
  for (const ShardedModel& model : sharded_models()) {
    const bool replicated = model.tensor_size > model.model.num_kv_heads;
    for (int64_t rank = 0; rank < model.tensor_size; ++rank) {
      const TensorShard& qkv = shard_of(model, rank, "blocks.0.attention.qkv.weight");
      const int64_t head_elements = model.model.head_size * model.model.hidden_size;
      CHECK(qkv.shared_kv_count == (replicated ? 2 * head_elements : 0));
      if (replicated) CHECK(qkv.shared_kv_first == qkv.count() - qkv.shared_kv_count);
      CHECK(shard_of(model, rank, "blocks.0.ffn.in.weight").shared_kv_count == 0);
    }
  }
}

TEST_CASE("sizes that do not divide are a mistake of the caller") {
  const ModelSpec spec = make_spec(small_config(Family::gpt2).model);  // 3 heads
  CHECK_THROWS_AS(shard_tensors(spec, {2, 0}), std::logic_error);
}

TEST_CASE("units are cut into equal pieces, with norms first") {
  for (const ShardedModel& model : sharded_models()) {
    for (const int64_t pieces : {1, 2, 3, 5, 8}) {
      INFO("over " << model.tensor_size << " in " << pieces);
      const std::vector<TensorShard>& shards = model.ranks.back();
      const ParameterLayout layout = make_layout(model.spec, shards, {pieces});
      CHECK(layout.piece_elements * pieces == layout.elements);
      int64_t end_of_units = 0;
      for (size_t unit = 0; unit < layout.units.size(); ++unit) {
        const UnitRange& range = layout.units[unit];
        CHECK(range.offset >= end_of_units);
        CHECK(range.offset - end_of_units < unit_multiple * pieces);
        CHECK(range.offset % (unit_multiple * pieces) == 0);
        CHECK(range.elements % (segment_multiple * pieces) == 0);
        CHECK(range.piece_elements() * pieces == range.elements);
        CHECK(range.piece_offset * pieces == range.offset);
        end_of_units = range.offset + range.elements;
        int64_t tensors = 0;
        for (int64_t i = range.first_tensor; i < range.first_tensor + range.num_tensors; ++i) {
          const auto tensor = static_cast<size_t>(i);
          const Segment& segment = layout.segments[tensor];
          CHECK(model.spec.tensors[tensor].unit == static_cast<int64_t>(unit));
          CHECK(segment.count == shards[tensor].count());
          CHECK(segment.offset % segment_multiple == 0);
          CHECK(segment.offset >= range.offset);
          CHECK(segment.offset + segment.count <= range.offset + range.elements);
          const bool among_norms = segment.offset < range.offset + range.norm_elements;
          CHECK(among_norms == (model.spec.tensors[tensor].norm_use != NormUse::no_norm));
          tensors += (segment.count + segment_multiple - 1) / segment_multiple * segment_multiple;
        }
        CHECK(range.elements - tensors < segment_multiple * pieces);  // no more padding than equal pieces need
      }
      CHECK(layout.elements == end_of_units);
    }
  }
}

TEST_CASE("each unit lists the ranges that are summed over tensor ranks, and at last all of it") {
  for (const ShardedModel& model : sharded_models()) {
    const std::vector<TensorShard>& shards = model.ranks.back();
    for (const bool sequence : {false, true}) {
      INFO("over " << model.tensor_size << " sequence " << sequence);
      const ParameterLayout layout = make_layout(model.spec, shards, {2}, sequence);
      std::vector<std::vector<Reduction>> expected(layout.units.size());
      for (size_t i = 0; i < model.spec.tensors.size(); ++i) {
        const TensorSpec& tensor = model.spec.tensors[i];
        const auto unit = static_cast<size_t>(tensor.unit);
        const int64_t start = layout.segments[i].offset - layout.units[unit].offset;
        const bool of_heads =
            tensor.name.find("q_norm") != std::string::npos || tensor.name.find("k_norm") != std::string::npos;
        const bool of_rows = !of_heads && tensor.name.find("norm") != std::string::npos;
        if (of_heads || (of_rows && sequence))
          expected[unit].push_back({ReductionGroup::tensor, start, tensor.count()});
        if (tensor.name.find("qkv") != std::string::npos && shards[i].shared_kv_count > 0)
          expected[unit].push_back(
              {ReductionGroup::kv_heads, start + shards[i].shared_kv_first, shards[i].shared_kv_count});
      }
      for (size_t unit = 0; unit < layout.units.size(); ++unit) {
        INFO("unit " << unit);
        expected[unit].push_back({ReductionGroup::replicas, 0, layout.units[unit].elements});
        const std::vector<Reduction>& reductions = layout.units[unit].reductions;
        REQUIRE(reductions.size() == expected[unit].size());
        for (size_t i = 0; i < reductions.size(); ++i) {
          CHECK(reductions[i].group == expected[unit][i].group);
          CHECK(reductions[i].first == expected[unit][i].first);
          CHECK(reductions[i].count == expected[unit][i].count);
        }
      }
    }
  }
}

TEST_CASE("a unit of which a rank holds nothing is empty") {
  const ModelSpec spec = make_spec(small_config(Family::llama).model);
  std::vector<TensorShard> shards = shard_tensors(spec, {});
  const ParameterLayout whole = make_layout(spec, shards, {2});
  for (size_t i = 0; i < spec.tensors.size(); ++i) {
    if (spec.tensors[i].unit == 1) shards[i] = {.shape = {0}, .boxes = {}};
  }
  const ParameterLayout layout = make_layout(spec, shards, {2});
  CHECK(layout.units[1].elements == 0);
  CHECK(layout.units[1].norm_elements == 0);
  CHECK(layout.units[1].reductions.empty());
  CHECK(layout.units[2].offset == whole.units[1].offset);
  CHECK(layout.elements == whole.elements - (whole.units[2].offset - whole.units[1].offset));
}
