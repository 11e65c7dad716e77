#include "checkpoint/hf_keys.h"

namespace gptrain::inline checkpoint {
namespace {

using enum HfKey::Absent;

constexpr HfKey gpt2[] = {{"vocab_size", "model.vocab_size"},
                          {"n_layer", "model.num_layers"},
                          {"n_embd", "model.hidden_size"},
                          {"n_head", "model.num_heads"},
                          {"n_inner", "model.ffn_hidden_size", same_rule},
                          {"n_positions", "model.sequence_length"},
                          {"layer_norm_epsilon", "model.norm_eps", number, 1e-5},
                          {"resid_pdrop", "model.residual_dropout", number, 0.1},
                          {"attn_pdrop", "model.attention_dropout", number, 0.1},
                          {"initializer_range", "model.init_std", number, 0.02},
                          {"tie_word_embeddings", "model.tied_head", flag, 0, true}};

constexpr HfKey gpt_neo[] = {{"vocab_size", "model.vocab_size"},
                             {"num_layers", "model.num_layers"},
                             {"hidden_size", "model.hidden_size"},
                             {"num_heads", "model.num_heads"},
                             {"intermediate_size", "model.ffn_hidden_size", same_rule},
                             {"max_position_embeddings", "model.sequence_length"},
                             {"layer_norm_epsilon", "model.norm_eps", number, 1e-5},
                             {"resid_dropout", "model.residual_dropout", number, 0},
                             {"attention_dropout", "model.attention_dropout", number, 0},
                             {"initializer_range", "model.init_std", number, 0.02},
                             {"tie_word_embeddings", "model.tied_head", flag, 0, true}};

// A config.json must give the number of key and value heads, or the head size, if the class's default is not gptrain's.
template <HfKey::Absent kv_heads, HfKey::Absent head_size, bool tied = false, HfKey::Absent eps = number>
constexpr HfKey llama[] = {{"vocab_size", "model.vocab_size"},
                           {"num_hidden_layers", "model.num_layers"},
                           {"hidden_size", "model.hidden_size"},
                           {"num_attention_heads", "model.num_heads"},
                           {"num_key_value_heads", "model.num_kv_heads", kv_heads},
                           {"head_dim", "model.head_size", head_size},
                           {"intermediate_size", "model.ffn_hidden_size"},
                           {"max_position_embeddings", "model.sequence_length"},
                           {"rms_norm_eps", "model.norm_eps", eps, 1e-6},
                           {"attention_dropout", "model.attention_dropout", number, 0},
                           {"initializer_range", "model.init_std", number, 0.02},
                           {"tie_word_embeddings", "model.tied_head", flag, 0, tied}};

constexpr std::string_view idle_keys[] = {"architectures",
                                          "bos_token_id",
                                          "chunk_size_feed_forward",
                                          "classifier_dropout",
                                          "dtype",
                                          "eos_token_id",
                                          "gradient_checkpointing",
                                          "id2label",
                                          "is_decoder",
                                          "is_encoder_decoder",
                                          "label2id",
                                          "model_type",
                                          "n_ctx",
                                          "output_attentions",
                                          "output_hidden_states",
                                          "pad_token_id",
                                          "pretraining_tp",
                                          "problem_type",
                                          "reorder_and_upcast_attn",
                                          "return_dict",
                                          "summary_activation",
                                          "summary_first_dropout",
                                          "summary_proj_to_labels",
                                          "summary_type",
                                          "summary_use_proj",
                                          "task_specific_params",
                                          "torch_dtype",
                                          "transformers_version",
                                          "unk_token_id",
                                          "use_cache",
                                          "_name_or_path",
                                          "_attn_implementation_autoset"};

}  // namespace

std::span<const std::string_view> hf_idle_keys() { return idle_keys; }

std::span<const HfKey> hf_keys(const HfClass& hf) {
  switch (hf.architecture) {
    case HfArchitecture::gpt2:
      return gpt2;
    case HfArchitecture::gpt_neo:
      return gpt_neo;
    case HfArchitecture::llama:
      return llama<same_rule, same_rule>;
    case HfArchitecture::mistral:
    case HfArchitecture::ministral:
    case HfArchitecture::qwen2:
      return llama<refused, same_rule>;
    case HfArchitecture::qwen3:
      return llama<refused, refused>;
    case HfArchitecture::gemma2:
    case HfArchitecture::gemma3:
      return llama<refused, refused, true>;
    case HfArchitecture::mixtral:
      return llama<refused, same_rule, false, refused>;
    case HfArchitecture::qwen2_moe:
    case HfArchitecture::qwen3_moe:
      return llama<refused, same_rule>;
  }
  return {};
}

}  // namespace gptrain::checkpoint
