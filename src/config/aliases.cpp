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

// Returns our key for `name` (lower case, _ for -): the first in the table that `fits`; "" if there is none.
template <typename Fits>
std::string look_up(std::span<const Aliases> table, const std::string& name, const Fits& fits) {
  const auto row = std::find_if(table.begin(), table.end(), [&](const Aliases& candidate) {
    return std::find(candidate.names.begin(), candidate.names.end(), name) != candidate.names.end() &&
           fits(candidate.ours);
  });
  return row == table.end() ? std::string() : row->ours;
}
std::string look_up(std::span<const Aliases> table, const std::string& name) {
  return look_up(table, name, [](const std::string&) { return true; });
}

// Keys of other trainers that have no counterpart, under the text of their refusal.
std::span<const Aliases> absent_keys() {
  static const std::vector<Aliases> table = {
      {"gptrain has no ring attention: ranks that share sequences (parallel.context) exchange tokens for heads",
       {"ring_attention", "ring_degree", "cp_comm_type"}},
      {"the number of data ranks follows: that of all ranks, divided by parallel.tensor * parallel.context * "
       "parallel.pipeline",
       {"dp", "dp_size", "data_parallel_size", "data_parallel_degree", "data_parallel_replicate_degree", "world_size",
        "num_gpus", "gpus", "nodes", "data_parallel", "local_rank", "num_nodes", "devices"}},
      {"gptrain has no ramp of the batch: stop the run, and go on with --resume and another batch.global",
       {"rampup_batch_size", "batch_size_rampup", "batch_size_schedule"}},
      {"attention is always fused, and there is nothing to choose",
       {"use_flash_attn", "flash_attention", "use_flash_attention", "attn_implementation", "attention_backend",
        "use_sdpa", "flash_attn"}},
      {"gptrain compiles nothing: its kernels are fused already",
       {"compile", "torch_compile", "compile_enable", "use_compile", "cuda_graph", "enable_cuda_graph"}},
      {"gptrain reads data on one thread of its own, and has no workers to number",
       {"num_workers", "dataloader_num_workers", "dataloader_pin_memory", "prefetch_factor"}},
      {"--resume goes on from a checkpoint, and --init-from starts with its weights",
       {"resume_from_checkpoint", "load", "initial_load_path", "load_checkpoint", "pretrained_checkpoint", "init_from",
        "finetune"}},
      {"gptrain always writes metrics.jsonl and tb/ into run.out, and reports to no service",
       {"report_to", "enable_tensorboard", "enable_wandb", "wandb_project", "wandb_log", "tensorboard_dir",
        "logging_dir", "use_wandb", "wandb_run_name", "run_name"}},
      {"gptrain has no adapters: all weights are trained",
       {"lora", "lora_r", "lora_rank", "lora_alpha", "peft", "use_peft"}},
      {"gptrain smooths no labels", {"label_smoothing", "label_smoothing_factor"}},
      {"checkpoint.keep_last and keep_every say which checkpoints are kept, whatever their losses",
       {"load_best_model_at_end", "metric_for_best_model", "early_stopping_patience", "early_stopping"}},
      {"gptrain writes to local folders alone: `checkpoint export --hf` makes one to upload",
       {"push_to_hub", "hub_model_id", "hub_token"}},
      {"gptrain sums gradients itself, without such a setting",
       {"ddp_find_unused_parameters", "ddp_backend", "ddp_bucket_cap_mb"}},
      {"the optimizer runs where its state lies; memory.offload_activations moves activations to the host",
       {"offload_optimizer", "offload_param", "optimizer_cpu_offload", "cpu_offload"}},
      {"train --profile-step N times a step", {"profile", "enable_profiling", "profile_freq", "use_pytorch_profiler"}},
      {"matrix products of fp32 are computed in fp32", {"tf32", "allow_tf32", "float32_matmul_precision"}},
  };
  return table;
}

}  // namespace

std::span<const Aliases> key_aliases() {
  static const std::vector<Aliases> table = {
      {"model.preset", {"model_type", "model_name", "model_name_or_path", "flavor"}},
      {"model.num_layers", {"n_layer", "n_layers", "num_hidden_layers", "depth"}},
      {"model.hidden_size", {"n_embd", "d_model", "dim", "embed_dim", "hidden_dim", "model_dim"}},
      {"model.num_heads", {"n_head", "n_heads", "num_attention_heads"}},
      {"model.num_kv_heads", {"n_kv_heads", "n_kv_head", "num_key_value_heads", "num_query_groups", "kv_heads"}},
      {"model.head_size", {"head_dim", "kv_channels"}},
      {"model.moe",
       {"experts", "num_experts", "moe_num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok",
        "moe_router_topk", "moe_intermediate_size", "moe_aux_loss_coeff", "router_aux_loss_coef", "moe_grouped_gemm"}},
      {"model.ffn_hidden_size", {"intermediate_size", "n_inner", "d_ff", "ffn_dim", "mlp_hidden_size"}},
      {"model.vocab_size", {"n_vocab", "padded_vocab_size"}},
      {"model.sequence_length",
       {"block_size", "seq_length", "seq_len", "max_seq_len", "max_seq_length", "max_sequence_length", "n_ctx",
        "n_positions", "context_length", "max_position_embeddings", "max_length"}},
      {"model.attention_window", {"sliding_window", "window_size"}},
      {"model.attention_softcap", {"attn_logit_softcapping", "attn_softcap"}},
      {"model.logit_softcap", {"final_logit_softcapping", "softcap"}},
      {"model.norm", {"normalization", "norm_type"}},
      {"model.norm_eps", {"rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon", "norm_epsilon"}},
      {"model.activation", {"hidden_act", "activation_function"}},
      {R"(model.activation = "swiglu")", {"swiglu"}},
      {R"(model.activation = "geglu")", {"geglu"}},
      {"model.norm_offset = true", {"apply_layernorm_1p", "layernorm_zero_centered_gamma"}},
      {"model.positions", {"position_embedding_type", "positional_encoding"}},
      {R"(model.positions = "rope")", {"use_rotary_position_embeddings", "rotary"}},
      {"model.rope_theta", {"rotary_base", "rope_base"}},
      {"model.rope_factor", {"rope_scaling_factor"}},
      {"model.rope_low_freq_factor", {"low_freq_factor"}},
      {"model.rope_high_freq_factor", {"high_freq_factor"}},
      {"model.rope_original_length", {"original_max_position_embeddings"}},
      {"model.qk_norm", {"qk_layernorm"}},
      {"model.qkv_bias", {"add_qkv_bias"}},
      {"model.bias", {"attention_bias", "mlp_bias", "add_bias_linear"}},
      {"model.bias = false", {"disable_bias_linear"}},
      {"model.tied_head", {"tie_word_embeddings", "tie_embeddings", "weight_tying"}},
      {"model.tied_head = false", {"untie_embeddings_and_output_weights"}},
      {"model.residual_dropout", {"hidden_dropout", "resid_pdrop", "embd_pdrop"}},
      {"model.attention_dropout", {"attn_pdrop"}},
      {"model.init_std", {"init_method_std", "initializer_range"}},
      {"model.mup", {"mup_base_width", "mup_base_hidden_size", "mup_base_size", "base_width"}},
      {"data.train", {"data_path", "train_data_path", "train_data", "train_files", "dataset", "dataset_path"}},
      {"data.validation", {"valid_data_path", "validation_data", "val_data", "eval_data"}},
      {"data.tokenizer", {"tokenizer_path", "tokenizer_name", "hf_assets_path", "tokenizer_model"}},
      {"data.mask_documents", {"reset_attention_mask"}},
      {"batch.global", {"global_batch_size", "train_batch_size", "gbs"}},
      {"batch.micro",
       {"micro_batch_size", "mbs", "train_micro_batch_size_per_gpu", "per_device_train_batch_size", "local_batch_size",
        "per_device_eval_batch_size", "pipeline_parallel_microbatch_size"}},
      {"batch.global or batch.micro", {"batch_size", "bs"}},
      {"batch.accumulation",
       {"gradient_accumulation_steps", "gradient_accumulation", "grad_accum_steps", "accumulate_grad_batches", "gas"}},
      {"parallel.tensor",
       {"tensor_model_parallel_size", "tensor_parallel_size", "tensor_parallel_degree", "tensor_parallel", "tp"}},
      {"parallel.context",
       {"context_parallel_size", "context_parallel_degree", "cp", "cp_size", "ulysses_degree", "sp_size"}},
      {"parallel.expert",
       {"expert_model_parallel_size", "expert_parallel_size", "expert_parallel_degree", "expert_parallel", "ep",
        "ep_size"}},
      {"parallel.pipeline",
       {"pipeline_model_parallel_size", "pipeline_parallel_size", "pipeline_parallel_degree", "pp"}},
      {R"(parallel.rank_order = "tensor-pipeline-data")", {"use_tp_pp_dp_mapping"}},
      {"parallel.pipeline_schedule", {"pipeline_parallel_schedule", "pp_schedule"}},
      {"parallel.sequence", {"sequence_parallel"}},
      {"parallel.zero",
       {"zero_stage", "zero_optimization", "stage", "data_parallel_shard_degree", "fsdp", "fsdp_config", "deepspeed"}},
      {"parallel.zero = 1", {"use_distributed_optimizer"}},
      {"parallel.elastic = true", {"elasticity", "elastic_training"}},
      {"precision.compute", {"dtype", "torch_dtype", "params_dtype", "mixed_precision", "precision", "amp"}},
      {R"(precision.compute = "bf16")", {"bf16"}},
      {R"(precision.compute = "fp16")", {"fp16"}},
      {R"(precision.linears = "fp8")", {"fp8", "fp8_format", "float8"}},
      {R"(precision.reduce = "bf16")", {"grad_reduce_in_bf16"}},
      {"precision.loss_scale", {"initial_loss_scale", "initial_scale_power"}},
      {"optimizer.type", {"optim", "optimizer_type", "optimizer_name", "adafactor"}},
      {"optimizer.lr", {"learning_rate", "max_lr", "peak_lr"}},
      {"optimizer.lr_scaling", {"scale_lr", "lr_scale"}},
      {"optimizer.betas", {"beta1", "beta2", "adam_beta1", "adam_beta2"}},
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
      {"schedule.type", {"lr_decay_style", "lr_scheduler", "lr_scheduler_type", "scheduler", "decay_lr", "decay_type"}},
      {"schedule.warmup_steps", {"warmup_iters", "lr_warmup_iters", "num_warmup_steps", "warmup_ratio"}},
      {"schedule.decay_steps", {"lr_wsd_decay_iters", "decay_ratio", "num_decay_steps"}},
      {"schedule.min_lr", {"min_lr_factor", "min_lr_ratio", "end_lr", "lr_end"}},
      {"memory.recompute",
       {"recompute_granularity", "recompute_activations", "activation_checkpointing", "activation_checkpoint",
        "activation_checkpoint_mode", "checkpoint_activations", "gradient_checkpointing"}},
      {"memory.saved_inputs", {"saved_input_bits", "quantize_activations", "compress_activations"}},
      {"memory.activation_budget", {"activation_memory_budget"}},
      {"memory.offload_activations",
       {"activation_offload", "activation_offloading", "cpu_offload_activations", "cpu_offloading", "offload_layers"}},
      {"memory.activation_bits", {"few_bit_activations", "activation_compression"}},
      {"checkpoint.every_steps",
       {"save_interval", "save_steps", "save_every", "checkpoint_interval", "checkpoint_every", "save_strategy",
        "enable_checkpoint"}},
      {"checkpoint.keep_last", {"save_total_limit", "keep_latest_k", "keep_last_k"}},
      {"checkpoint.asynchronous", {"async_mode", "async_save"}},
      {"log.every_steps", {"log_interval", "logging_steps", "log_every", "log_freq"}},
      {"comm.timeout_seconds",
       {"distributed_timeout_minutes", "ddp_timeout", "init_timeout_seconds", "train_timeout_seconds"}},
      {"run.steps",
       {"train_iters", "max_iters", "num_iterations", "max_steps", "num_steps", "total_steps", "training_steps",
        "train_steps", "num_train_epochs", "epochs", "max_epochs"}},
      {"run.out", {"out_dir", "output_dir", "save_dir", "save", "dump_folder", "checkpoint_dir", "ckpt_dir"}},
      {"run.seed", {"data_seed"}},
      {"run.threads", {"num_threads"}},
      {"run.rollback", {"loss_spike", "spike_rollback", "rollback_on_spike"}},
      {"run.validate_every_steps",
       {"eval_interval", "eval_steps", "eval_every", "val_check_interval", "eval_strategy", "evaluation_strategy",
        "validation_freq", "eval_freq"}},
      {"run.validation_samples", {"eval_iters", "validation_steps", "max_eval_samples"}},
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
