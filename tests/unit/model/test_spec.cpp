#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <vector>

#include "catch.h"
#include "model/spec/layout.h"
#include "model/spec/spec.h"
#include "model_fixture.h"

using namespace gptrain;
using gptrain::testing::Family;
using gptrain::testing::small_config;

namespace {

ModelConfig preset(const std::string& name) {
  return parse_config(
             R"({"model": {"preset": ")" + name + R"("}, "data": {"train": [{"path": "x"}]}, "batch": {"global": 1},
                          "optimizer": {"lr": 1e-3}, "run": {"steps": 1, "out": "x"}})",
             {}, "test")
      .model;
}

}  // namespace

TEST_CASE("GPT-2 has the published number of parameters") {
  CHECK(make_spec(preset("gpt2-124m")).parameters() == 124'439'808);
  CHECK(make_spec(preset("gpt2-355m")).parameters() == 354'823'168);
  CHECK(make_spec(preset("gpt2-774m")).parameters() == 774'030'080);
  CHECK(make_spec(preset("gpt2-1.5b")).parameters() == 1'557'611'200);
}

TEST_CASE("parameters follow the closed formula of biased, tied GPT models") {
  for (const char* name : {"gpt2-124m", "gpt3-6.7b", "gpt3-175b", "megatron-1008b"}) {
    const ModelConfig m = preset(name);
    const int64_t h = m.hidden_size;
    // P = 12 l h^2 (1 + 13/(12h) + (V + s)/(12 l h)) + 2h
    CHECK(make_spec(m).parameters() ==
          12 * m.num_layers * h * h + 13 * m.num_layers * h + (m.vocab_size + m.sequence_length) * h + 2 * h);
  }
}

TEST_CASE("every tensor is listed once, norms and biases do not decay") {
  for (const Family family : {Family::gpt2, Family::llama}) {
    const ModelSpec spec = make_spec(small_config(family).model);
    std::set<std::string> names;
    for (const TensorSpec& tensor : spec.tensors) {
      INFO(tensor.name);
      CHECK(names.insert(tensor.name).second);
      CHECK(tensor.decay == (tensor.shape.size() == 2));
      const bool norm_weight = tensor.name.find("norm") != std::string::npos && tensor.name.ends_with(".weight");
      CHECK((tensor.init == Init::constant) == norm_weight);
      CHECK((tensor.init == Init::zeros) == tensor.name.ends_with(".bias"));
      int64_t sections = 0;
      for (const Section& section : tensor.sections) sections += section.rows;
      if (!tensor.sections.empty()) CHECK(sections == tensor.shape[0]);
    }
    CHECK_FALSE(spec.numbers().contains("no.such.tensor"));
    CHECK(spec.numbers().at(spec.tensors.back().name) + 1 == spec.tensors.size());
  }
}

TEST_CASE("residual projections start smaller with depth") {
  const ModelSpec spec = make_spec(preset("gpt2-124m"));
  const auto std_of = [&](const char* name) { return spec.tensors[spec.numbers().at(name)].init_scale; };
  CHECK(std_of("blocks.0.attention.qkv.weight") == Approx(0.02));
  CHECK(std_of("blocks.0.attention.out.weight") == Approx(0.02 / std::sqrt(24.0)));
  CHECK(std_of("blocks.11.ffn.out.weight") == Approx(0.02 / std::sqrt(24.0)));
}

TEST_CASE("muP scales initial weights and rates by the width") {
  for (const Family family : {Family::gpt2, Family::llama}) {
    RunConfig config = small_config(family);
    const ModelSpec base = make_spec(config.model);
    config.model.mup = config.model.hidden_size;
    const ModelSpec same = make_spec(config.model);
    config.model.mup = config.model.hidden_size / 4;
    const ModelSpec wide = make_spec(config.model);
    for (size_t i = 0; i < base.tensors.size(); ++i) {
      const TensorSpec& tensor = wide.tensors[i];
      INFO(tensor.name);
      const bool of_last_norm = tensor.name.starts_with("head.norm.");
      const double std_factor = tensor.of_block_matrix ? 0.5 : of_last_norm ? 0.25 : 1;
      CHECK(tensor.init_scale == Approx(base.tensors[i].init_scale * std_factor));
      CHECK(tensor.rate_factor == (tensor.of_block_matrix || of_last_norm ? 0.25F : 1.0F));
      CHECK(same.tensors[i].init_scale == base.tensors[i].init_scale);
      CHECK(same.tensors[i].rate_factor == 1);
      if (tensor.init == Init::constant) CHECK(tensor.init_scale == (of_last_norm ? 0.25 : 1.0));
    }
    CHECK(config.model.score_scale() == Approx(1.0 / static_cast<double>(config.model.head_size)));
  }
}

TEST_CASE("norms behind the branches, and gains of 1 + weight, which begin at 1") {
  RunConfig config = small_config(Family::llama, {"model.norm_after=true", "model.norm_offset=true"});
  const ModelSpec spec = make_spec(config.model);
  std::vector<std::string> norms;
  for (const TensorSpec& tensor : spec.tensors) {
    if (tensor.norm_use == NormUse::no_norm) continue;
    CHECK(tensor.init == Init::zeros);
    CHECK(tensor.init_scale == 0);
    CHECK(!tensor.decay);
    if (tensor.name.starts_with("blocks.2.")) norms.push_back(tensor.name.substr(9));
  }
  CHECK(norms == std::vector<std::string>{"norm1.weight", "attention.q_norm.weight", "attention.k_norm.weight",
                                          "norm1_after.weight", "norm2.weight", "norm2_after.weight"});
}

TEST_CASE("only the vocabulary is padded, and the layout is aligned and without overlap") {
  const ModelSpec spec = make_spec(small_config(Family::gpt2).model);
  const std::vector<TensorShard> shards = shard_tensors(spec, {});
  const ParameterLayout layout = make_layout(spec, shards, {1});
  std::vector<size_t> by_offset(spec.tensors.size());
  std::iota(by_offset.begin(), by_offset.end(), size_t{0});
  std::sort(by_offset.begin(), by_offset.end(),
            [&](size_t a, size_t b) { return layout.segments[a].offset < layout.segments[b].offset; });
  int64_t end = 0;
  for (const size_t i : by_offset) {
    const TensorSpec& tensor = spec.tensors[i];
    // Norms come first in their unit.
    const UnitRange& unit = layout.units[static_cast<size_t>(tensor.unit)];
    CHECK((layout.segments[i].offset < unit.offset + unit.norm_elements) == (tensor.norm_use != NormUse::no_norm));
    CHECK((shards[i].shape != tensor.shape) == (tensor.name == "embedding.token"));
    CHECK(layout.segments[i].offset % segment_multiple == 0);
    CHECK(layout.segments[i].offset >= end);
    CHECK(layout.segments[i].offset - end < unit_multiple);
    end = layout.segments[i].offset + shards[i].count();
  }
  CHECK(shards[0].shape[0] == 128);
  CHECK(layout.elements >= end);
  CHECK(layout.units.size() == 5);
  CHECK(layout.units.back().offset + layout.units.back().elements == layout.elements);
}
