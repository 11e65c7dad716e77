// A run config after presets, overrides, defaults and checks: every value final, nothing left to derive.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/kinds.h"
#include "base/offload_choice.h"
#include "base/rotary.h"

namespace gptrain {

struct ModelConfig {
  std::string preset;  // empty: none
  int64_t num_layers = 0;
  int64_t hidden_size = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;     // default: num_heads
  int64_t head_size = 0;        // default: hidden_size / num_heads
  int64_t ffn_hidden_size = 0;  // default: 4 hidden_size; gated: 8/3 hidden_size, rounded up to a multiple of 64
  int64_t vocab_size = 0;       // true, unpadded
  int64_t sequence_length = 0;
  int64_t attention_window = 0;  // tokens that a query attends to, itself included; 0: all
  NormKind norm = NormKind::layernorm;
  ActivationKind activation = ActivationKind::gelu_tanh;
  PositionKind positions = PositionKind::learned;
  double rope_theta = 10000.0;
  RopeScaling rope_scaling = RopeScaling::none;
  double rope_factor = 1;
  double rope_low_freq_factor = 1;   // llama3
  double rope_high_freq_factor = 4;  // llama3
  int64_t rope_original_length = 0;  // llama3
  bool qk_norm = false;
  bool bias = true;      // linears, and beta of layernorm
  bool qkv_bias = true;  // of the linear to queries, keys and values; default: bias
  bool tied_head = true;
  double residual_dropout = 0;  // embedding and both branches of a block
  double attention_dropout = 0;
  double norm_eps = 1e-5;
  double init_std = 0.02;
  double z_loss = 0;  // weight of the squared log-sum-exp
  int64_t mup = 0;    // hidden_size of the model whose hyperparameters are taken over (muP); 0: no scaling by width

  int64_t q_size() const { return num_heads * head_size; }
  int64_t kv_size() const { return num_kv_heads * head_size; }
  // How many times as wide as the model that muP takes as its base; 1 without muP.
  double mup_width() const { return mup == 0 ? 1 : static_cast<double>(hidden_size) / static_cast<double>(mup); }
  // What scores of attention are multiplied with: 1 / sqrt(head_size), and with muP 1 / head_size.
  double attention_scale() const {
    const auto size = static_cast<double>(head_size);
    return 1 / (mup == 0 ? std::sqrt(size) : size);
  }
  RotaryAngles rope() const {
    return {rope_theta,           rope_scaling,          rope_factor,
            rope_low_freq_factor, rope_high_freq_factor, static_cast<double>(rope_original_length)};
  }
};

struct DataSource {
  std::string path;  // PREFIX of PREFIX.bin and PREFIX.idx, or a file of tokens alone
  double weight = 1;
  double epochs = 0;      // weight by size: passes over this source for each of a source with 1; 0: `weight` counts
  double max_epochs = 0;  // of the run; then the other sources take its place; 0: any number
};

// Until that step the sources have these weights, instead of their own.
struct DataPhase {
  int64_t until_step = 0;
  std::vector<double> weights;
};

// Samples of the order in which the training data come, counted from 0.
struct SampleRange {
  int64_t first = 0;
  int64_t count = 0;  // above 0

  bool operator==(const SampleRange&) const = default;
};

struct DataConfig {
  std::vector<DataSource> train;
  std::vector<DataSource> validation;  // may be empty
  double temperature = 0;              // weights are those of `train` times size^(1 / temperature); 0: times nothing
  std::vector<DataPhase> phases;       // one after the other, from the first step on
  std::vector<SampleRange> skip_samples;  // of `train`, which the run leaves out; in any order
  std::string tokenizer = "auto";      // its name as in `data pack`; auto: as PREFIX.meta.json of the data says
  bool checksums = true;               // compare data with PREFIX.meta.json, where there is one, as it is first read
  bool mask_documents = false;         // a token attends to its own document only
  int64_t max_documents = 0;           // of a sample on average, that cuDNN has room for; 0: the own kernels mask
};

struct BatchConfig {
  int64_t global = 0;        // sequences per step
  int64_t micro = 0;         // sequences per micro-batch and rank
  int64_t accumulation = 0;  // micro-batches per step and rank: global / (micro * data ranks)
};

struct ParallelConfig {
  int64_t tensor = 1;
  int64_t pipeline = 1;        // stages
  int64_t virtual_stages = 1;  // chunks of each stage
  PipelineOrder pipeline_schedule = PipelineOrder::one_f_one_b;
  RankOrder rank_order = RankOrder::tensor_data_pipeline;
  std::vector<int64_t> layers_per_stage;  // by chunk, in forward order; empty: spread to balance their times
  int64_t zero = 0;
  bool sequence = false;  // sequence parallelism over the tensor axis
  bool elastic = false;   // as many data ranks as there are, and as the batch divides over; the other ranks idle
};

struct PrecisionConfig {
  DType compute = DType::f32;   // f32, bf16 or f16: weights, activations and matrix products
  DType residual = DType::f32;  // the residual stream: f32 or compute, which is the default
  DType reduce = DType::f32;    // gradients on their way between data ranks
  DType gradients = DType::f32;  // with `pure`: what a rank keeps of them, f32 or bf16
  DType linears = DType::f32;   // products of the linears in blocks: compute, which is the default, or f8e4m3 for FP8
  DType weight_gradients = DType::f32;  // factors of gradients of linears' weights in blocks: what linears is, or less
  int64_t loss_scale = 65'536;  // f16: of the first step, a power of two
  int64_t loss_scale_window = 2000;
  bool pure = false;  // "compute": "bf16-pure": bf16, and no fp32 master weights but of norms

  bool scales_loss() const { return compute == DType::f16; }
};

// Whose updates read gradients that are bf16, without an average of the weights.
inline constexpr std::array types_with_bf16_gradients = {OptimizerKind::adamw, OptimizerKind::adamw_8bit,
                                                         OptimizerKind::lion, OptimizerKind::sgd};

struct OptimizerConfig {
  OptimizerKind type = OptimizerKind::adamw;
  double lr = 0;
  LrScaling lr_scaling = LrScaling::none;
  int64_t base_batch = 256;  // sequences of the batch that lr and the section `schedule` are meant for
  double beta1 = 0.9;  // "betas": [beta1, beta2], of adamw and adamw-8bit, lion, lamb, and muon outside matrices
  double beta2 = 0.95;
  double eps = 1e-8;      // adamw, adamw-8bit, lamb, muon and adafactor
  double momentum = 0.9;  // sgd, lars and muon
  bool nesterov = false;  // sgd and muon
  double trust_coefficient = 0.001;  // lars
  NewtonSchulzProducts newton_schulz = NewtonSchulzProducts::as_compute;  // muon
  double beta2_decay = -0.8;     // adafactor, and so the next three
  double clip_threshold = 1;
  bool scale_parameter = true;
  double eps2 = 1e-3;
  double weight_decay = 0.1;
  double clip_norm = 1.0;  // 0: no clipping
  double ema = 0;          // decay of an average of the weights; 0: there is none
};

// The section `schedule`: the learning rate's course over the steps.
struct LrCurveConfig {
  LrCurve type = LrCurve::constant;
  int64_t warmup_steps = 0;
  int64_t decay_steps = 0;  // wsd: steps of the final decay
  double min_lr = 0;
};

// Some linears keep a projection of their input over the tokens of each sequence, from which the gradient of the weight is
// estimated.
struct ProjectionConfig {
  ProjectionKind kind = ProjectionKind::gauss;
  double share = 0.2;  // of a sequence's rows that a projection has
  std::vector<LinearSite> sites;  // empty: there is none

  bool is_on() const { return !sites.empty(); }
  bool is_at(LinearSite site) const { return std::find(sites.begin(), sites.end(), site) != sites.end(); }
};

struct MemoryConfig {
  RecomputeKind recompute = RecomputeKind::none;
  int64_t recompute_interval = 0;  // every_nth: blocks 0, n, 2n, ... are recomputed
  int64_t activation_budget = 0;   // optimal: bytes of activations on a rank; 0: what the device leaves
  OffloadChoice offload;           // offload_activations
  int64_t activation_bits = 16;    // 2, 3, 4: of the derivative of GELU; 16: its input is kept, in the type of compute
  int64_t saved_inputs = 16;       // 8: of inputs of linears and norms, codes of 8 bits are kept; 16: the type of compute
  ProjectionConfig linear_projection;
  int64_t loss_chunk_tokens = 0;   // rows of logits that exist at a time; 0: as many as suit the device
};

struct CheckpointConfig {
  int64_t every_steps = 0;   // 0: none but those of every_seconds, at the end and when stopped
  double every_seconds = 0;  // 0: as every_steps says
  bool asynchronous = true;
  int64_t keep_last = 2;
  int64_t keep_every = 0;  // 0: none; steps that are multiples are kept for good

  bool saves_on_the_way() const { return every_steps > 0 || every_seconds > 0; }
  // Whether a rank keeps a copy of its state, which is written while training goes on. The last save has nothing to go
  // on beside it.
  bool keeps_snapshot() const { return asynchronous && saves_on_the_way(); }
};

struct LogConfig {
  int64_t every_steps = 1;
};

struct CommConfig {
  std::string interface = "auto";     // a network interface or address to listen at; auto: that towards MASTER_ADDR
  double timeout_seconds = 60;        // for peers to come, and for a silent one to count as lost
  bool mixed_machines = false;        // ranks may have different instruction sets or GPU models
  int64_t compare_every_steps = 100;  // steps from one comparison of the replicas' weights to the next; 0: never
};

// When the loss spikes, the run goes back to the checkpoint before and leaves samples out.
struct RollbackConfig {
  double spike = 4;          // standard deviations above the mean of the window
  int64_t window = 100;      // steps
  int64_t skip_samples = 0;  // that are left out from the checkpoint on; 0: there is no going back
  int64_t steps = 3;         // in a row that are above
  int64_t limit = 5;         // times in a run

  bool is_on() const { return skip_samples > 0; }
};

struct RunSettings {
  int64_t steps = 0;
  uint64_t seed = 1;
  std::string out;
  DeviceKind device = DeviceKind::automatic;
  int64_t threads = 0;                   // 0: every core the process may use
  bool thread_independent = false;       // same bits for any number of threads
  bool deterministic = true;             // same bits in every run; else a GPU's library may add up in any order
  std::string algorithm_cache = "auto";  // folder of the algorithms that were timed; auto: the user's; none
  int64_t max_skipped_steps = 10;        // in a row; more end the run with exit 6
  RollbackConfig rollback;
  int64_t validate_every_steps = 0;      // 0: at the end only
  int64_t validation_samples = 64;       // sequences per validation
  bool validate_ema = false;             // validations are of the weights' average
  int64_t sample_every_steps = 0;        // steps from one written text to the next; 0: none
  int64_t sample_tokens = 64;
  std::string sample_prompt;
};

struct RunConfig {
  ModelConfig model;
  DataConfig data;
  BatchConfig batch;
  ParallelConfig parallel;
  PrecisionConfig precision;
  OptimizerConfig optimizer;
  LrCurveConfig lr_curve;
  MemoryConfig memory;
  CheckpointConfig checkpoint;
  LogConfig log;
  CommConfig comm;
  RunSettings run;

  // What lr_scaling multiplies the learning rate with, its minimum, and the steps of warm-up.
  double lr_factor() const {
    const double ratio = static_cast<double>(batch.global) / static_cast<double>(optimizer.base_batch);
    if (optimizer.lr_scaling == LrScaling::none) return 1;
    return optimizer.lr_scaling == LrScaling::linear ? ratio : std::sqrt(ratio);
  }
  // Stretched, and rounded to whole steps; a number that is too large for a run stays one.
  int64_t warmup_steps() const {
    return std::llround(std::fmin(static_cast<double>(lr_curve.warmup_steps) * lr_factor(), 1e18));
  }
};

}  // namespace gptrain
