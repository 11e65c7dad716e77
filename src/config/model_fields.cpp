#include <algorithm>
#include <utility>

#include "config/field_builder.h"
#include "config/presets.h"

namespace gptrain::inline config {
namespace {

Builder preset_field() {
  Builder builder = field("model.preset", &RunConfig::model, &ModelConfig::preset, WordRule{preset_names(), {}},
                          "a published model shape; the other keys of the section override it");
  builder.set = [](RunConfig& config, const Json& json) {
    const auto& all = presets();
    const auto preset =
        std::find_if(all.begin(), all.end(), [&](const ModelConfig& model) { return json == model.preset; });
    config.model = *preset;
  };
  return builder.usually(R"("gpt2-124m")").changeable();  // the preset's values are compared key by key
}

Builder dropout_field() {
  Builder builder;
  builder.path = "model.dropout";
  builder.description = "shorthand that sets residual_dropout and attention_dropout";
  builder.rule = NumberRule{.min = 0, .max = 1, .max_excluded = true};
  builder.set = [](RunConfig& config, const Json& json) {
    config.model.residual_dropout = json.get<double>();
    config.model.attention_dropout = json.get<double>();
  };
  return builder.usually("0.1");
}

Builder window_field() {
  Builder builder;
  builder.path = "model.attention_window";
  builder.description = "shorthand: N sets attention_pattern to [\"band:N\"], and 0 to [\"dense\"]";
  builder.rule = IntegerRule{0, 1 << 24, {}};
  builder.set = [](RunConfig& config, const Json& json) {
    config.model.attention_pattern = {window_pattern(json.get<int64_t>())};
  };
  return builder.usually("256");
}

}  // namespace

void add_model_fields(std::vector<Field>& table) {
  const auto section = &RunConfig::model;
  using M = ModelConfig;
  const NumberRule probability{.min = 0, .max = 1, .max_excluded = true};
  const Dependency rope{
      "model.positions", "model.positions is rope",
      when(&RunConfig::model, [](const ModelConfig& model) { return model.positions == PositionKind::rope; })};
  const Dependency one_theta{"model.positions", "model.positions is rope, and rope_theta_pattern is empty",
                             when(&RunConfig::model, [](const ModelConfig& model) {
                               return model.positions == PositionKind::rope && model.rope_theta_pattern.empty();
                             })};
  const Dependency one_scaling{"model.positions", "model.positions is rope, and rope_scaling_pattern is empty",
                               when(&RunConfig::model, [](const ModelConfig& model) {
                                 return model.positions == PositionKind::rope && model.rope_scaling_pattern.empty();
                               })};
  const Dependency scaled{"model.rope_scaling",
                          "model.rope_scaling, or a word of rope_scaling_pattern, is linear or llama3",
                          when(&RunConfig::model, [](const ModelConfig& model) {
                            return model.positions == PositionKind::rope &&
                                   (model.scales_rope(RopeScaling::linear) || model.scales_rope(RopeScaling::llama3));
                          })};
  const Dependency llama3{"model.rope_scaling", "model.rope_scaling, or a word of rope_scaling_pattern, is llama3",
                          when(&RunConfig::model, [](const ModelConfig& model) {
                            return model.positions == PositionKind::rope && model.scales_rope(RopeScaling::llama3);
                          })};
  table.insert(
      table.end(),
      {
          preset_field(),
          field("model.num_layers", section, &M::num_layers, IntegerRule{1, 10'000, {}}, "transformer blocks")
              .required("12"),
          field("model.hidden_size", section, &M::hidden_size, IntegerRule{1, 1 << 20, {}},
                "width of the residual stream")
              .required("768"),
          field("model.num_heads", section, &M::num_heads, IntegerRule{1, 1 << 16, {}},
                "attention heads; divides hidden_size, unless head_size is given")
              .required("12"),
          field("model.num_kv_heads", section, &M::num_kv_heads, IntegerRule{1, 1 << 16, {}},
                "key and value heads of grouped-query attention; divides num_heads; default: num_heads")
              .derived("12"),
          field("model.head_size", section, &M::head_size, IntegerRule{1, 1 << 16, {}},
                "features of a head; default: hidden_size / num_heads")
              .derived("64"),
          field("model.ffn_hidden_size", section, &M::ffn_hidden_size, IntegerRule{1, 1 << 22, {}},
                "width of the MLP; default: 4 hidden_size, or gated 8/3 hidden_size rounded up to a multiple of 64")
              .derived("3072"),
          moe_field(),
          field("model.vocab_size", section, &M::vocab_size, IntegerRule{1, 2'147'483'647, {}},
                "number of token ids (0 to vocab_size - 1), without padding")
              .required("50257"),
          field("model.sequence_length", section, &M::sequence_length, IntegerRule{1, 1 << 24, {}},
                "tokens of a sample")
              .required("1024"),
          field("model.attention_pattern", section, &M::attention_pattern, PatternListRule{},
                "what the queries of a block attend to, as words that repeat over the blocks")
              .usually(R"(["dense","band:256"])"),
          window_field(),
          field("model.attention_scale", section, &M::attention_scale, NumberRule{.min = 0, .max = 1e3},
                "factor of attention scores; 0: 1 / sqrt(head_size), with model.mup 1 / head_size"),
          field("model.attention_softcap", section, &M::attention_softcap, NumberRule{.min = 0, .max = 1e6},
                "scaled attention scores s become softcap * tanh(s / softcap); 0: no cap"),
          field("model.attention_sinks", section, &M::attention_sinks, BooleanRule{},
                "each head has a learned score beside those of the keys, which takes a share of the softmax and adds "
                "nothing to the output"),
          field("model.embedding_scale", section, &M::embedding_scale,
                NumberRule{.min = 0, .max = 1e6, .min_excluded = true},
                "factor of the token embedding; in Gemma the square root of hidden_size"),
          field("model.logit_softcap", section, &M::logit_softcap,
                NumberRule{.min = 0.01, .max = 1e6, .may_be_zero = true},
                "logits l become softcap * tanh(l / softcap); 0: no cap"),
          words<M, NormKind>("model.norm", section, &M::norm,
                             {{"layernorm", NormKind::layernorm}, {"rmsnorm", NormKind::rmsnorm}}, {},
                             "normalization before each branch and before the head"),
          field("model.norm_offset", section, &M::norm_offset, BooleanRule{},
                "norms multiply by 1 + their weights, which begin at 0"),
          field("model.norm_after", section, &M::norm_after, BooleanRule{},
                "a second norm behind each branch, before it is added to the stream"),
          words<M, ActivationKind>("model.activation", section, &M::activation,
                                   named_words<ActivationKind>(activation_names), {},
                                   "activation of the MLP; gelu is the exact form; swiglu (by SiLU), geglu and "
                                   "geglu_tanh (by gelu and gelu_tanh) are gated"),
          words<M, PositionKind>("model.positions", section, &M::positions,
                                 {{"learned", PositionKind::learned}, {"rope", PositionKind::rope}}, {},
                                 "learned embeddings, or rotations of queries and keys"),
          field("model.positions_pattern", section, &M::positions_pattern,
                WordListRule{.each = {{layer_positions_names.begin(), layer_positions_names.end()}, {}},
                             .may_repeat = true},
                "whether a block rotates queries and keys, rope or none, as words that repeat over the blocks")
              .usually(R"(["rope","rope","rope","none"])")
              .only_with(rope),
          field("model.rope_theta", section, &M::rope_theta, NumberRule{.min = 1, .max = 1e12},
                "base of the rotation angles")
              .only_with(one_theta),
          field("model.rope_theta_pattern", section, &M::rope_theta_pattern,
                NumberListRule{NumberRule{.min = 1, .max = 1e12}},
                "bases of the rotation angles, one for each word of attention_pattern; []: rope_theta in all blocks")
              .usually("[10000.0,1000000.0]")
              .only_with(rope),
          words<M, RopeScaling>("model.rope_scaling", section, &M::rope_scaling,
                                named_words<RopeScaling>(rope_scaling_names), {},
                                "rotations that rope_factor slows down, so that a model reads longer sequences than it "
                                "was first trained on: none, linear (all) or llama3 (the slow ones, as in Llama 3.1)")
              .only_with(one_scaling),
          field("model.rope_scaling_pattern", section, &M::rope_scaling_pattern,
                WordListRule{.each = {{rope_scaling_names.begin(), rope_scaling_names.end()}, {}},
                             .may_repeat = true,
                             .may_be_empty = true},
                "words of rope_scaling, one for each word of attention_pattern; []: rope_scaling in all blocks")
              .usually(R"(["none","linear"])")
              .only_with(rope),
          field("model.rope_factor", section, &M::rope_factor, NumberRule{.min = 1, .max = 1e6},
                "divides the rotation angles")
              .required("8.0")
              .only_with(scaled),
          field("model.rope_low_freq_factor", section, &M::rope_low_freq_factor, NumberRule{.min = 0, .max = 1e6},
                "features that turn at most this many times within rope_original_length tokens are slowed down by the "
                "whole rope_factor")
              .only_with(llama3),
          field("model.rope_high_freq_factor", section, &M::rope_high_freq_factor, NumberRule{.min = 0, .max = 1e6},
                "features that turn at least this many times within rope_original_length tokens are not slowed down")
              .only_with(llama3),
          field("model.rope_original_length", section, &M::rope_original_length, IntegerRule{1, 1 << 24, {}},
                "sequence length with which the model was first trained")
              .required("8192")
              .only_with(llama3),
          field("model.qk_norm", section, &M::qk_norm, BooleanRule{}, "normalize queries and keys per head"),
          field("model.bias", section, &M::bias, BooleanRule{}, "biases of linears, and beta of layernorm"),
          field("model.qkv_bias", section, &M::qkv_bias, BooleanRule{},
                "bias of the linear to queries, keys and values; default: bias")
              .derived("true"),
          field("model.tied_head", section, &M::tied_head, BooleanRule{},
                "the head is the transpose of the token embedding"),
          dropout_field(),
          field("model.residual_dropout", section, &M::residual_dropout, probability,
                "dropout of the embedding and of both branches of a block")
              .usually("0.1")
              .changeable(),
          field("model.attention_dropout", section, &M::attention_dropout, probability,
                "dropout of the attention probabilities")
              .usually("0.1")
              .changeable(),
          field("model.norm_eps", section, &M::norm_eps, NumberRule{.min = 0, .max = 1, .min_excluded = true},
                "added to the variance or mean square in a norm"),
          field("model.init_std", section, &M::init_std, NumberRule{.min = 0, .max = 10, .min_excluded = true},
                "standard deviation of initial weights"),
          field("model.z_loss", section, &M::z_loss, NumberRule{.min = 0, .max = 1},
                "weight of the squared log-sum-exp of the logits in the loss")
              .changeable(),
          field("model.mup", section, &M::mup, IntegerRule{0, 1 << 20, {}},
                "hidden_size of the model for which init_std and the learning rate were tuned; muP scales them to this "
                "model's width; 0: no scaling by width")
              .usually("256"),
      });
}

}  // namespace gptrain::config
