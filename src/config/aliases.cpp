#include "config/aliases.h"

#include <algorithm>
#include <cctype>

namespace gptrain::inline config {
namespace {

std::string plain(std::string_view name) {
  std::string result(name);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return c == '-' || c == '.' ? '_' : static_cast<char>(std::tolower(c)); });
  return result;
}

// Returns true if `name` matches a pattern, in which * stands for any letters, also for none.
bool matches(std::string_view name, std::string_view pattern) {
  const size_t star = pattern.find('*');
  if (star == std::string_view::npos) return name == pattern;
  if (!name.starts_with(pattern.substr(0, star))) return false;
  name.remove_prefix(star);
  pattern.remove_prefix(star + 1);
  for (; !name.empty(); name.remove_prefix(1))
    if (matches(name, pattern)) return true;
  return matches(name, pattern);
}

// Returns our key for `name` (lower case, _ for -): the first in the table that `fits`, a full name before a pattern;
// "" if there is none.
template <typename Fits>
std::string look_up(std::span<const Aliases> table, const std::string& name, const Fits& fits) {
  for (const bool by_pattern : {false, true}) {
    const auto is_meant = [&](const std::string& candidate) {
      return by_pattern ? matches(name, candidate) : name == candidate;
    };
    for (const Aliases& row : table)
      if (std::any_of(row.names.begin(), row.names.end(), is_meant) && fits(row.ours)) return row.ours;
  }
  return "";
}
std::string look_up(std::span<const Aliases> table, const std::string& name) {
  return look_up(table, name, [](const std::string&) { return true; });
}

}  // namespace

std::span<const Aliases> key_aliases() {
  static const std::vector<Aliases> table = {
      {"model.preset", {"model_type", "model_name", "model_name_or_path", "flavor"}},
      {"model.num_layers", {"n_layer", "n_layers", "num_hidden_layers", "depth"}},
      {"model.hidden_size", {"n_embd", "d_model", "dim", "embed_dim", "hidden_dim", "model_dim"}},
      {"model.num_heads", {"n_head", "n_heads", "num_attention_heads"}},
      {"model.num_kv_heads",
       {"n_kv_heads", "n_kv_head", "num_key_value_heads", "num_query_groups", "kv_heads", "gqa",
        "group_query_attention", "kv_n_heads"}},
      {"model.head_size", {"head_dim", "kv_channels"}},
      {"model.moe",
       {"experts", "num_experts", "moe_num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok",
        "moe_router_topk", "moe_intermediate_size", "moe_aux_loss_coeff", "router_aux_loss_coef", "moe_grouped_gemm"}},
      {"model.ffn_hidden_size",
       {"intermediate_size", "n_inner", "d_ff", "ffn_dim", "mlp_hidden_size", "mlp_ratio", "ffn_mult",
        "expansion_ratio", "ffn_multiplier"}},
      {"model.vocab_size", {"pad_vocab_size", "n_vocab", "padded_vocab_size"}},
      {"model.sequence_length",
       {"block_size", "decoder_seq_length", "seq_length", "seq_len", "max_seq_len", "max_seq_length",
        "max_sequence_length", "n_ctx", "n_positions", "context_length", "max_position_embeddings", "max_length",
        "max_len", "max_context_length", "sequence_len"}},
      {"model.attention_window",
       {"attention_window_size", "sliding_window", "window_size", "use_sliding_window", "max_window_layers",
        "layer_types", "window_attn_skip_freq", "local_attention"}},
      {"model.attention_softcap", {"attn_logit_softcapping", "attn_softcap"}},
      {"model.logit_softcap", {"final_logit_softcapping", "softcap"}},
      {"model.norm", {"normalization", "norm_type", "layer_norm", "rms", "rms_norm"}},
      {"model.norm_eps", {"rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon", "norm_epsilon"}},
      {"model.activation",
       {"hidden_act", "activation_function", "activation_func", "glu", "gated_linear_unit", "mlp", "mlp_type",
        "ffn_type", "ffn_act"}},
      {R"(model.activation = "swiglu")", {"swiglu"}},
      {R"(model.activation = "geglu")", {"geglu"}},
      {"model.norm_offset = true", {"apply_layernorm_1p", "layernorm_zero_centered_gamma"}},
      {"model.positions",
       {"position_embedding_type", "positional_encoding", "pos_emb", "position_embedding", "pos_embed"}},
      {R"(model.positions = "rope")", {"use_rotary_position_embeddings", "rotary"}},
      {"model.rope_theta", {"rotary_base", "rope_base"}},
      {"model.rope_factor", {"rotary_scaling_factor", "rotary_seq_len_interpolation_factor", "rope_scaling_factor"}},
      {"model.rope_low_freq_factor", {"low_freq_factor"}},
      {"model.rope_high_freq_factor", {"high_freq_factor"}},
      {"model.rope_original_length", {"original_max_position_embeddings"}},
      {"model.qk_norm", {"qk_l2_norm", "qk_layernorm"}},
      {"model.qkv_bias", {"add_qkv_bias"}},
      {"model.bias", {"attention_bias", "mlp_bias", "add_bias_linear"}},
      {"model.bias = false", {"disable_bias_linear"}},
      {"model.tied_head",
       {"tie_word_embeddings", "tie_embeddings", "weight_tying", "tie", "share_embeddings_and_output_weights",
        "tie_weights"}},
      {"model.tied_head = false", {"untie_embeddings_and_output_weights"}},
      {"model.residual_dropout",
       {"hidden_dropout", "hidden_dropout_prob", "resid_pdrop", "embd_pdrop", "embd_dropout", "emb_pdrop",
        "resid_dropout"}},
      {"model.attention_dropout", {"attn_pdrop", "attention_probs_dropout_prob", "attention_dropout_prob"}},
      {"model.init_std", {"embedding_init_method_std", "init_method_std", "initializer_range"}},
      {"model.mup", {"mup_base_width", "mup_base_hidden_size", "mup_base_size", "base_width"}},
      {"data.train",
       {"data_path", "train_data_path", "train_data", "train_files", "dataset", "dataset_path", "train_file",
        "train_data_pattern", "input_bin", "dataset_name", "train_loader", "training_dataset", "train_dataset"}},
      {"data.validation",
       {"valid_data_path", "validation_data", "val_data", "eval_data", "validation_file", "val_data_pattern",
        "input_val_bin", "eval_loader", "eval_dataset", "val_dataset", "validation_dataset", "validator",
        "full_validation", "validation_set_names"}},
      {"data.tokenizer", {"tokenizer_path", "tokenizer_name", "hf_assets_path", "tokenizer_model"}},
      {"data.mask_documents",
       {"reset_position_ids", "eod_mask_loss", "intra_doc_masking", "document_masking", "reset_attention_mask"}},
      {"batch.global",
       {"eval_global_batch_size", "global_batch_size", "train_batch_size", "gbs", "global_train_batch_size",
        "total_batch_size", "effective_batch_size", "tokens_per_step"}},
      {"batch.micro",
       {"eval_micro_batch_size", "micro_batch_size", "mbs", "train_micro_batch_size_per_gpu",
        "per_device_train_batch_size", "local_batch_size", "per_device_eval_batch_size",
        "pipeline_parallel_microbatch_size", "device_train_microbatch_size", "device_eval_batch_size",
        "per_gpu_train_batch_size", "per_device", "microbatch_size", "micro_batch", "device_batch_size",
        "device_train_batch_size"}},
      {"batch.global or batch.micro", {"batch_size", "bs"}},
      {"batch.accumulation",
       {"gradient_accumulation_steps", "gradient_accumulation", "grad_accum_steps", "accumulate_grad_batches", "gas",
        "num_microbatches", "num_micro_batches", "micro_batches", "num_pp_microbatches"}},
      {"parallel.tensor",
       {"tensor_model_parallel_size", "tensor_parallel_size", "tensor_parallel_degree", "tensor_parallel", "tp"}},
      {"parallel.context",
       {"context_parallel_size", "context_parallel_degree", "cp", "cp_size", "ulysses_degree", "sp_size"}},
      {"parallel.context_method", {"cp_comm_type"}},
      {R"(parallel.context_method = "ring")", {"ring_attention", "ring_degree"}},
      {"parallel.expert",
       {"expert_model_parallel_size", "expert_parallel_size", "expert_parallel_degree", "expert_parallel", "ep",
        "ep_size"}},
      {"parallel.expert_tensor", {"expert_tensor_parallel_size", "expert_tensor_parallel_degree", "etp"}},
      {"parallel.pipeline",
       {"pipeline_model_parallel_size", "pipeline_parallel_size", "pipeline_parallel_degree", "pp"}},
      {R"(parallel.rank_order = "tensor-pipeline-data")", {"use_tp_pp_dp_mapping"}},
      {"parallel.pipeline_schedule", {"pipeline_parallel_schedule", "pp_schedule"}},
      {"parallel.sequence", {"sequence_parallel", "enable_sequence_parallel"}},
      {"parallel.overlap_tensor", {"tp_comm_overlap", "enable_async_tensor_parallel"}},
      {"parallel.zero",
       {"zero_stage", "zero_optimization", "stage", "data_parallel_shard_degree", "fsdp", "fsdp_config", "deepspeed",
        "shard_grad_op", "full_shard", "optimizer_state_sharding"}},
      {"parallel.zero = 1", {"use_distributed_optimizer"}},
      {"parallel.zero_node_copy", {"mics_shard_size", "zero_hpz_partition_size"}},
      {"parallel.elastic = true", {"elasticity", "elastic_training"}},
      {"precision.compute", {"dtype", "torch_dtype", "params_dtype", "mixed_precision", "precision", "amp"}},
      {R"(precision.compute = "bf16")", {"bf16"}},
      {R"(precision.compute = "fp16")", {"fp16"}},
      {R"(precision.linears = "fp8")", {"fp8", "fp8_format", "float8"}},
      {"precision.amax_history", {"amax_history_len", "fp8_amax_history_len"}},
      {R"(precision.reduce = "bf16")", {"grad_reduce_in_bf16"}},
      {"precision.loss_scale", {"initial_loss_scale", "initial_scale_power"}},
      {"optimizer.type", {"optim", "optimizer_type", "optimizer_name", "adafactor", "optimizer_class"}},
      {"optimizer.lr", {"learning_rate", "max_lr", "peak_lr", "peak_learning_rate", "warmup_max_lr"}},
      {"optimizer.lr_scaling", {"scale_lr", "lr_scale"}},
      {"optimizer.betas", {"lion_beta1", "lion_beta2", "beta1", "beta2", "adam_beta1", "adam_beta2"}},
      {"optimizer.eps", {"adam_eps", "adam_epsilon"}},
      {"optimizer.weight_decay", {"wd"}},
      {"optimizer.momentum", {"sgd_momentum", "muon_momentum"}},
      {"optimizer.trust_coefficient", {"trust_coef", "trust_ratio", "lars_coefficient"}},
      {"optimizer.beta2_decay", {"decay_rate", "beta2_decay_rate", "adafactor_decay"}},
      {"optimizer.clip_threshold", {"clipping_threshold", "adafactor_clip"}},
      {"optimizer.scale_parameter", {"multiply_by_parameter_scale"}},
      {"optimizer.ema", {"ema_decay", "ema_rate", "weight_ema", "model_ema"}},
      {"optimizer.clip_norm",
       {"grad_clip", "clip_grad", "gradient_clipping", "gradient_clip_val", "max_grad_norm", "max_norm"}},
      {"schedule.type",
       {"lr_decay_style", "lr_scheduler", "lr_scheduler_type", "scheduler", "decay_lr", "decay_type",
        "learning_rate_scheduler", "lr_schedule", "decay_style", "cosine"}},
      {"schedule.warmup_steps",
       {"lr_warmup_steps", "warmup", "warmup_iters", "lr_warmup_iters", "num_warmup_steps", "warmup_ratio",
        "warmup_iterations", "t_warmup", "warmup_fraction", "lr_warmup_fraction", "lr_warmup_samples", "warmup_tokens",
        "warmup_num_steps"}},
      {"schedule.decay_steps",
       {"wsd_decay_steps", "lr_wsd_decay_iters", "decay_ratio", "num_decay_steps", "learning_rate_decay_frac",
        "lr_wsd_decay_samples"}},
      {"schedule.min_lr",
       {"min_lr_factor", "min_lr_ratio", "end_lr", "lr_end", "final_learning_rate_frac", "alpha_f", "final_lr",
        "eta_min", "lr_min", "min_learning_rate"}},
      {"memory.recompute",
       {"recompute_modules", "recompute_granularity", "recompute_activations", "activation_checkpointing",
        "activation_checkpoint", "activation_checkpoint_mode", "checkpoint_activations", "gradient_checkpointing",
        "checkpointing", "cpu_checkpointing", "partition_activations", "number_checkpoints", "recompute_method",
        "gradient_checkpointing_kwargs", "activation_recompute"}},
      {"memory.saved_inputs", {"saved_input_bits", "quantize_activations", "compress_activations"}},
      {"memory.activation_budget", {"activation_memory_budget"}},
      {"memory.offload_activations",
       {"cpu_offloading_activations", "fine_grained_activation_offloading", "activation_offload",
        "activation_offloading", "cpu_offload_activations", "cpu_offloading", "offload_layers",
        "cpu_offloading_num_layers"}},
      {"memory.activation_bits", {"few_bit_activations", "activation_compression"}},
      {"checkpoint.every_steps",
       {"save_interval", "save_steps", "save_every", "checkpoint_interval", "checkpoint_every", "save_strategy",
        "enable_checkpoint", "major_checkpoint_every"}},
      {"checkpoint.keep_last",
       {"save_total_limit", "keep_latest_k", "keep_last_k", "checkpoints_keep", "save_num_checkpoints_to_keep",
        "max_to_keep", "most_recent_k", "max_checkpoints"}},
      {"checkpoint.asynchronous", {"async_mode", "async_save"}},
      {"log.every_steps",
       {"log_interval", "logging_steps", "log_every", "log_freq", "console_log_interval", "steps_per_print",
        "metrics_log_interval"}},
      {"comm.timeout_seconds",
       {"distributed_timeout_minutes", "ddp_timeout", "init_timeout_seconds", "train_timeout_seconds"}},
      {"run.steps",
       {"train_iters", "max_iters", "num_iterations", "max_steps", "num_steps", "total_steps", "training_steps",
        "train_steps", "num_train_epochs", "epochs", "max_epochs", "max_duration", "num_train_steps", "total_iters",
        "train_iterations", "max_train_steps"}},
      {"run.out",
       {"out_dir", "output_dir", "save_dir", "save", "dump_folder", "checkpoint_dir", "ckpt_dir", "save_folder",
        "output_log_dir", "checkpoint_folder", "checkpoint_path", "save_path", "folder"}},
      {"run.seed", {"data_seed"}},
      {"run.threads", {"num_threads", "omp_num_threads", "thread_count"}},
      {"run.rollback", {"loss_spike", "spike_rollback", "rollback_on_spike"}},
      {"run.validate_every_steps",
       {"eval_interval", "eval_steps", "eval_every", "val_check_interval", "eval_strategy", "evaluation_strategy",
        "validation_freq", "eval_freq", "val_loss_every", "validation_interval", "val_interval", "eval_frequency"}},
      {"run.validation_samples",
       {"eval_iters", "validation_steps", "max_eval_samples", "val_max_steps", "eval_subset_num_batches",
        "eval_batches", "limit_val_batches", "eval_samples"}},
      {"model.rope_scaling", {"rope_type", "use_rope_scaling"}},
      {"memory.recompute_interval", {"recompute_num_layers"}},
      {"optimizer.newton_schulz", {"muon_fp32_matmul_prec"}},
      {"model.attention_scale", {"query_pre_attn_scalar", "softmax_scale", "attention_multiplier"}},
      {"model.rope_theta_pattern", {"rope_local_base_freq"}},
      {"model.embedding_scale", {"embedding_multiplier", "scale_embeddings"}},
      {"checkpoint.keep_every", {"save_retain_interval", "save_interval_unsharded"}},
      {"checkpoint.every_seconds", {"save_interval_seconds", "every_minutes", "save_interval_minutes"}},
      {"parallel.virtual_stages",
       {"virtual_pipeline_model_parallel_size", "num_virtual_stages_per_pipeline_rank",
        "num_layers_per_virtual_pipeline_stage", "interleaved"}},
      {"parallel.layers_per_stage",
       {"num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage", "pipeline_model_parallel_layout",
        "pipeline_parallel_layers_per_stage", "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"}},
      {"parallel.pipeline", {"num_stages"}},
      {"precision.gradients", {"grad_accum_dtype", "main_grads_dtype", "accumulate_allreduce_grads_in_fp32"}},
      {"precision.compute", {"bfloat16"}},
      {"precision.reduce", {"communication_data_type", "grad_reduce_dtype", "reduce_dtype", "mixed_precision_reduce"}},
      {"precision.residual", {"fp32_residual_connection", "residual_in_fp32"}},
      {"optimizer.nesterov", {"muon_nesterov", "use_nesterov"}},
      {"optimizer.qk_clip", {"qk_clip_threshold", "qk_clip_alpha"}},
      {"data.skip_samples", {"iterations_to_skip", "skip_iterations"}},
      {"run.deterministic", {"full_determinism", "deterministic_mode", "use_deterministic_algorithms"}},
      {"run.sample_every_steps", {"sample_every", "sample_interval"}},
      {"run.sample_tokens", {"gent", "sample_length"}},
      {"comm.timeout_seconds", {"nccl_timeout", "timeout_minutes"}},
      {"comm.compression", {"gradient_compression", "zero_quantized_gradients"}},
      {"comm.weights", {"zero_quantized_weights"}},
  };
  return table;
}

std::span<const Aliases> section_aliases() {
  static const std::vector<Aliases> table = {
      {"data", {"dataset"}},
      {"optimizer", {"optim"}},
      {"schedule", {"scheduler", "lr_scheduler"}},
      {"parallel", {"parallelism", "distributed"}},
      {"memory", {"activation_checkpoint", "activation_checkpointing"}},
      {"log", {"logging", "metrics"}},
      {"run", {"train", "trainer", "training"}},
  };
  return table;
}

std::span<const Aliases> word_aliases() {
  static const std::vector<Aliases> table = {
      {"layernorm", {"layer_norm", "ln"}},
      {"rmsnorm", {"rms_norm"}},
      {"gelu_tanh", {"gelu_new", "gelu_fast", "gelu_pytorch_tanh", "openai_gelu"}},
      {"swiglu", {"silu", "swish"}},
      {"learned", {"learned_absolute", "absolute"}},
      {"rope", {"rotary"}},
      {"fp32", {"float32", "float", "single"}},
      {"bf16", {"bfloat16", "bf16_mixed"}},
      {"fp16", {"float16", "half", "16_mixed", "fp16_mixed"}},
      {"adamw", {"adam", "fused_adam"}},
      {"constant", {"constant_with_warmup", "none"}},
      {"wsd", {"warmup_stable_decay"}},
      {"none", {"no", "off"}},
      {"block", {"full", "all", "uniform"}},
      {"ffn", {"mlp", "moe"}},
      {"cuda", {"gpu", "nvidia"}},
  };
  return table;
}

std::string key_meant(std::string_view section, std::string_view key) {
  const std::string alone = look_up(key_aliases(), plain(key));
  return alone.empty() ? look_up(key_aliases(), plain(std::string(section) + "." + std::string(key))) : alone;
}

std::string key_absent(std::string_view section, std::string_view key) {
  const std::string alone = look_up(absent_keys(), plain(key));
  return alone.empty() ? look_up(absent_keys(), plain(std::string(section) + "." + std::string(key))) : alone;
}

std::string section_meant(std::string_view name) {
  const std::string section = look_up(section_aliases(), plain(name));
  return section.empty() ? key_meant("", name) : section;
}

std::string word_meant(std::string_view word, std::span<const std::string> choices) {
  return look_up(word_aliases(), plain(word), [&](const std::string& ours) {
    return std::find(choices.begin(), choices.end(), ours) != choices.end();
  });
}

}  // namespace gptrain::config
