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
template <HfKey::Absent kv_heads, HfKey::Absent head_size, bool tied = false>
constexpr HfKey llama[] = {{"vocab_size", "model.vocab_size"},
                           {"num_hidden_layers", "model.num_layers"},
                           {"hidden_size", "model.hidden_size"},
                           {"num_attention_heads", "model.num_heads"},
                           {"num_key_value_heads", "model.num_kv_heads", kv_heads},
                           {"head_dim", "model.head_size", head_size},
                           {"intermediate_size", "model.ffn_hidden_size"},
                           {"max_position_embeddings", "model.sequence_length"},
                           {"rms_norm_eps", "model.norm_eps", number, 1e-6},
                           {"attention_dropout", "model.attention_dropout", number, 0},
                           {"initializer_range", "model.init_std", number, 0.02},
                           {"tie_word_embeddings", "model.tied_head", flag, 0, tied}};

}  // namespace

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
  }
  return {};
}

}  // namespace gptrain::checkpoint
