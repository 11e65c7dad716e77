// A small saved model for the tests of import and export.
#pragma once

#include <string>
#include <vector>

#include "catch.h"
#include "checkpoint/checkpoint.h"
#include "config/load.h"
#include "helpers.h"
#include "model/spec/spec.h"

namespace checkpoint_test {

using namespace gptrain;

using Overrides = std::vector<std::string>;

inline constexpr int64_t hidden = 12;
inline constexpr int64_t vocab = 7;

inline RunConfig config_of(const Overrides& overrides) {
  return parse_config(R"({
    "model": {"num_layers": 2, "hidden_size": 12, "num_heads": 3, "ffn_hidden_size": 10, "vocab_size": 7,
              "sequence_length": 5},
    "data": {"train": [{"path": "none"}]},
    "batch": {"global": 1},
    "optimizer": {"lr": 0.001},
    "run": {"steps": 1, "out": "none"}})",
                      overrides, "test.json");
}

inline const Overrides llama = {"model.norm=rmsnorm", "model.positions=rope", "model.activation=swiglu",
                                "model.bias=false", "model.tied_head=false"};

inline const Overrides gpt_neo = {"model.qkv_bias=false", "model.attention_scale=1"};

inline const Overrides gemma2 = {"model.norm=rmsnorm",
                                 "model.norm_offset=true",
                                 "model.norm_after=true",
                                 "model.positions=rope",
                                 "model.activation=geglu_tanh",
                                 "model.bias=false",
                                 "model.embedding_scale=3.4641016151377544",
                                 "model.logit_softcap=30",
                                 "model.attention_softcap=50",
                                 R"(model.attention_pattern=["band:3","dense"])"};

inline Overrides with(Overrides overrides, const Overrides& more) {
  overrides.insert(overrides.end(), more.begin(), more.end());
  return overrides;
}

inline const Overrides gemma3 =
    with(gemma2, {"model.qk_norm=true", "model.attention_softcap=0", "model.logit_softcap=0", "model.head_size=6",
                  "model.attention_scale=0.25", "model.rope_theta_pattern=[1e4,1e6]",
                  R"(model.rope_scaling_pattern=["none","linear"])", "model.rope_factor=8"});

// A checkpoint of a model with all elements different: element i of the n-th tensor is n + i / 1024, exactly.
class SavedModel {
 public:
  explicit SavedModel(const Overrides& overrides) : config_(config_of(overrides)), spec_(make_spec(config_.model)) {
    Parts parts;
    for (size_t n = 0; n < spec_.tensors.size(); ++n) {
      Tensor tensor{"weight/" + spec_.tensors[n].name, spec_.tensors[n].shape, {}};
      for (int64_t i = 0; i < spec_.tensors[n].count(); ++i) tensor.data.push_back(element(n, i));
      add_part(parts, tensor, whole(tensor));
    }
    Manifest manifest = make_manifest(3);
    manifest.world_size = 1;
    manifest.config = show_config(config_);
    save_checkpoint(folder_.path(), manifest, parts.slices);
  }

  const std::filesystem::path& folder() const { return folder_.path(); }
  std::filesystem::path checkpoint() const { return list_checkpoints(folder_.path()).back().path; }
  std::filesystem::path out() const { return folder_.path() / "made" / "hf"; }
  const ModelSpec& spec() const { return spec_; }

  float value(const std::string& name, int64_t row, int64_t column) const {
    const size_t n = spec_.numbers().at(name);
    const auto& shape = spec_.tensors[n].shape;
    return element(n, row * (shape.size() == 2 ? shape[1] : 1) + column);
  }

 private:
  static float element(size_t n, int64_t i) { return static_cast<float>(n) + static_cast<float>(i) / 1024.0F; }

  TemporaryFolder folder_;
  RunConfig config_;
  ModelSpec spec_;
};

}  // namespace checkpoint_test
