#include "model/spec/spec.h"

#include <cmath>
#include <fmt/format.h>
#include <functional>
#include <mutex>
#include <numeric>

namespace gptrain::inline spec {
namespace {

class SpecBuilder {
 public:
  SpecBuilder(const ModelConfig& model, bool experts_are_units)
      : model_(model), experts_are_units_(experts_are_units) {}

  ModelSpec build() {
    add_embedding();
    for (int64_t layer = 0; layer < model_.num_layers; ++layer) add_block(layer);
    add_head();
    for (int64_t layer = 0; experts_are_units_ && layer < model_.num_layers; ++layer) {
      if (model_.ffn(layer).is_routed) add_experts_unit(layer);
    }
    return std::move(spec_);
  }

 private:
  void begin_unit(UnitKind kind, int64_t layer, std::string prefix) {
    spec_.units.push_back({.kind = kind, .layer = layer});
    prefix_ = std::move(prefix);
  }

  // RETURNS the usual scale of an init: init_std for Init::normal, 1 for Init::constant (gains of norms), else 0.
  double init_scale(Init init) const {
    if (init == Init::zeros) return 0;
    return init == Init::normal ? model_.init_std : 1;
  }

  TensorSpec& add(const std::string& name, std::vector<int64_t> shape, Init init, Split split) {
    const bool matrix = shape.size() == 2;
    // muP (arXiv 2203.03466, table 8, for Adam): a matrix between two widths.
    const UnitKind kind = spec_.units.back().kind;
    const bool hidden = matrix && (kind == UnitKind::block || kind == UnitKind::experts);
    const double width = hidden ? model_.mup_width() : 1;
    spec_.tensors.push_back({.name = prefix_ + name,
                             .unit = static_cast<int64_t>(spec_.units.size()) - 1,
                             .part = part_,
                             .shape = std::move(shape),
                             .init = init,
                             .init_scale = init_scale(init) / std::sqrt(width),
                             .decay = matrix,
                             .rate_factor = static_cast<float>(1 / width),
                             .split = split,
                             .sections = {},
                             .norm_use = NormUse::no_norm,
                             .of_block_matrix = hidden});
    return spec_.tensors.back();
  }

  void add_vocabulary_matrix(const std::string& name) {
    add(name, {model_.vocab_size, model_.hidden_size}, Init::normal, Split::vocabulary);
  }

  Init gain_init() const { return model_.norm_offset ? Init::zeros : Init::constant; }

  void add_norm(const std::string& name) {
    part_ = ModelPart::norms;
    add(name + ".weight", {model_.hidden_size}, gain_init(), Split::none).norm_use = NormUse::of_rows;
    if (model_.bias && model_.norm == NormKind::layernorm) {
      add(name + ".bias", {model_.hidden_size}, Init::zeros, Split::none).norm_use = NormUse::of_rows;
    }
  }

  // muP divides the logits by the width, with the same vocabulary matrix for every width. The factor goes into the
  // final norm: its gain begins at 1 / width and learns at 1 / width of the rate. Under Adam this equals a separate
  // factor (lemma J.1 of the paper), and forward and backward need no change.
  void divide_logits(size_t first_of_norm) {
    for (size_t i = first_of_norm; i < spec_.tensors.size(); ++i) {
      spec_.tensors[i].init_scale /= model_.mup_width();
      spec_.tensors[i].rate_factor = static_cast<float>(1 / model_.mup_width());
    }
  }

  // Adds a column-parallel linear: each rank computes some of the outputs, and the bias is split with them.
  void add_column_linear(const std::string& name, const std::vector<Section>& sections, bool bias) {
    int64_t rows = 0;
    for (const Section& section : sections) rows += section.rows;
    add(name + ".weight", {rows, model_.hidden_size}, Init::normal, Split::rows).sections = sections;
    if (bias) add(name + ".bias", {rows}, Init::zeros, Split::rows).sections = sections;
  }

  // Adds a row-parallel linear: each rank holds some of the inputs, and the bias is added once. Its init is scaled down
  // so that the variance of the residual stream does not grow with depth (GPT-2, section 2.3).
  void add_row_linear(const std::string& name, int64_t inputs) {
    add(name + ".weight", {model_.hidden_size, inputs}, Init::normal, Split::columns).init_scale /=
        std::sqrt(2.0 * static_cast<double>(model_.num_layers));
    if (model_.bias) add(name + ".bias", {model_.hidden_size}, Init::zeros, Split::none);
  }

  void add_embedding() {
    begin_unit(UnitKind::embedding, 0, "embedding.");
    part_ = ModelPart::embedding;
    add_vocabulary_matrix("token");
    if (model_.positions == PositionKind::learned) {
      add("position", {model_.sequence_length, model_.hidden_size}, Init::normal, Split::none);
    }
  }

  void add_block(int64_t layer) {
    begin_unit(UnitKind::block, layer, fmt::format("blocks.{}.", layer));
    add_norm("norm1");
    part_ = ModelPart::attention;
    const Section kv{model_.kv_size(), model_.head_size};
    add_column_linear("attention.qkv", {{model_.q_size(), model_.head_size}, kv, kv}, model_.qkv_bias);
    if (model_.qk_norm) {
      for (const char* name : {"attention.q_norm.weight", "attention.k_norm.weight"})
        add(name, {model_.head_size}, gain_init(), Split::none).norm_use = NormUse::of_heads;
    }
    if (model_.attention_sinks) {
      TensorSpec& sinks = add("attention.sinks", {model_.num_heads}, Init::zeros, Split::rows);
      sinks.sections = {{model_.num_heads, 1}};
      sinks.norm_use = NormUse::sinks;
    }
    add_row_linear("attention.out", model_.q_size());
    if (model_.norm_after) add_norm("norm1_after");
    add_norm("norm2");
    part_ = ModelPart::ffn;
    const FfnKind ffn = model_.ffn(layer);
    if (ffn.is_routed) {
      add_routed_ffn(ffn.hidden_size);
    } else {
      add_column_linear("ffn.in", ffn_sections(ffn.hidden_size), model_.bias);
      add_row_linear("ffn.out", ffn.hidden_size);
    }
    if (model_.norm_after) add_norm("norm2_after");
  }

  std::vector<Section> ffn_sections(int64_t width) const {
    const Section ffn{width, 1};
    return is_gated(model_.activation) ? std::vector{ffn, ffn} : std::vector{ffn};
  }

  // Adds the router, the experts unless they are apart, and the shared experts.
  void add_routed_ffn(int64_t width) {
    TensorSpec& router = add("router.weight", {model_.moe.experts, model_.hidden_size}, Init::normal, Split::none);
    router.norm_use = NormUse::router;
    router.of_block_matrix = false;
    const auto add_loads = [&](const char* name) {
      TensorSpec& loads = add(name, {model_.moe.experts}, Init::zeros, Split::none);
      loads.norm_use = NormUse::router;
      loads.follows_loads = true;
    };
    if (model_.moe.router_bias_rate > 0) add_loads("router.bias");
    if (model_.moe.aux_over == BalanceOver::global) add_loads("router.excess");
    if (!experts_are_units_) add_experts(width);
    if (model_.moe.shared == 0) return;
    if (model_.moe.shared_gate == SharedGate::sigmoid) {
      TensorSpec& gate = add("shared.gate.weight", {1, model_.hidden_size}, Init::normal, Split::none);
      gate.norm_use = NormUse::router;
      gate.of_block_matrix = false;
    }
    add_column_linear("shared.in", ffn_sections(model_.moe.shared_ffn_hidden_size), model_.bias);
    add_row_linear("shared.out", model_.moe.shared_ffn_hidden_size);
  }

  // Adds the experts. Matrices of one kind follow each other, so that ops find them as one matrix.
  void add_experts(int64_t width) {
    const auto name = [](int64_t expert, const char* linear) { return fmt::format("experts.{}.{}", expert, linear); };
    for (int64_t expert = 0; expert < model_.moe.experts; ++expert) {
      add_column_linear(name(expert, "in"), ffn_sections(width), false);
      spec_.tensors.back().expert = static_cast<int32_t>(expert);
    }
    for (int64_t expert = 0; expert < model_.moe.experts; ++expert) {
      add_row_linear(name(expert, "out"), width);
      spec_.tensors.back().expert = static_cast<int32_t>(expert);
    }
  }

  void add_experts_unit(int64_t layer) {
    const auto block = static_cast<size_t>(layer) + 1;
    begin_unit(UnitKind::experts, layer, fmt::format("blocks.{}.", layer));
    spec_.units.back().replicas = ReplicaGroup::expert_data;
    spec_.units[block].experts = static_cast<int32_t>(spec_.units.size()) - 1;
    part_ = ModelPart::ffn;
    add_experts(model_.ffn(layer).hidden_size);
  }

  void add_head() {
    begin_unit(UnitKind::head, 0, "head.");
    const size_t norm = spec_.tensors.size();
    add_norm("norm");
    divide_logits(norm);
    part_ = ModelPart::head;
    if (!model_.tied_head) add_vocabulary_matrix("weight");
  }

  const ModelConfig& model_;
  const bool experts_are_units_;
  ModelSpec spec_;
  std::string prefix_;
  ModelPart part_ = ModelPart::embedding;  // part of the tensors being added
};

}  // namespace

int64_t element_count(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

int64_t TensorSpec::count() const { return element_count(shape); }

int64_t ModelSpec::parameters() const {
  int64_t sum = 0;
  for (const TensorSpec& tensor : tensors) sum += tensor.count();
  return sum;
}

std::unordered_map<std::string_view, size_t> ModelSpec::numbers() const {
  std::unordered_map<std::string_view, size_t> by_name;
  for (size_t i = 0; i < tensors.size(); ++i) by_name.emplace(tensors[i].name, i);
  return by_name;
}

ModelSpec make_spec(const ModelConfig& model, bool experts_are_units) {
  return SpecBuilder(model, experts_are_units).build();
}

std::shared_ptr<const ModelSpec> shared_spec(const ModelConfig& model, bool experts_are_units) {
  struct Kept {
    ModelConfig model;
    bool experts_are_units = false;
    std::shared_ptr<const ModelSpec> spec;
  };
  static std::mutex mutex;
  static Kept last;
  const std::lock_guard lock(mutex);
  if (!last.spec || last.experts_are_units != experts_are_units || !(last.model == model))
    last = {model, experts_are_units, std::make_shared<const ModelSpec>(make_spec(model, experts_are_units))};
  return last.spec;
}

}  // namespace gptrain::spec
