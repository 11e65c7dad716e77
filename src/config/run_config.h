// A run config after presets, overrides, defaults and checks: all values are final.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/attention_pattern.h"
#include "base/dtype.h"
#include "base/kinds.h"
#include "base/memory_place.h"
#include "base/offload_choice.h"
#include "base/rotary.h"
#include "config/disk_clones.h"
#include "config/gradient_sums.h"
#include "config/parallelism.h"
#include "config/precision.h"

namespace gptrain::inline config {

// Form of a layer's FFN.
struct FfnKind {
  int64_t hidden_size = 0;  // width; of each expert, if tokens are routed
  bool is_routed = false;   // a mixture of experts (MoeConfig)

  bool operator==(const FfnKind&) const = default;
};

// Mixtures of experts: in some layers a router chooses top_k of `experts` FFNs for each token (arXiv 1701.06538).
struct MoeConfig {
  int64_t experts = 0;  // 0: all layers are dense
  int64_t top_k = 2;
  int64_t ffn_hidden_size = 0;         // width of an expert; default: the model's
  int64_t shared = 0;                  // FFNs that all tokens pass through, beside those of the router's choice
  int64_t shared_ffn_hidden_size = 0;  // width of all shared FFNs; default: shared * ffn_hidden_size
  int64_t every = 1;                   // layers first, first + every, ... have experts
  int64_t first = 0;
  RouterScore score = RouterScore::softmax;
  bool renormalise = true;  // the weights of a token's experts are divided by their sum
  double scale = 1;         // factor of these weights
  double aux_loss = 0.01;   // weight of the loss that balances the experts' loads
  double z_loss = 0.001;    // weight of the router's mean squared log-sum-exp
  SharedGate shared_gate = SharedGate::none;
  BalanceOver aux_over = BalanceOver::sequence;
  double router_bias_rate = 0;          // change by each step of the biases that balance the choice
  int64_t groups = 1, group_top_k = 1;  // groups of experts, and those from which a token's experts are taken
  double jitter = 0;                    // the router's input is multiplied by numbers from 1 - jitter to 1 + jitter
  double capacity = 0;                  // bound of an expert's tokens, over the mean of all experts'; 0: none
  CapacityOver capacity_over = CapacityOver::sequence;
  DropRule drop = DropRule::probability;

  // RETURNS whether routers have vectors that follow the experts' loads.
  bool follows_loads() const { return router_bias_rate > 0 || aux_over == BalanceOver::global; }
  bool is_on() const { return experts > 0; }
  bool is_at(int64_t layer) const { return is_on() && layer >= first && (layer - first) % every == 0; }
  bool operator==(const MoeConfig&) const = default;
};

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
  // Kinds of the first layers, repeated over the others. At least one of attention.
  std::vector<AttentionPattern> attention_pattern = {AttentionPattern{}};
  std::vector<FfnKind> ffn_pattern;  // empty: all layers have ffn_hidden_size
  MoeConfig moe;                     // the layers that it names have experts instead
  double attention_scale = 0;        // factor of attention scores; 0: score_scale() derives it from the head size
  double attention_softcap = 0;      // bound of attention scores, by a hyperbolic tangent; 0: none
  bool attention_sinks = false;      // a learned score per head, without a value
  double embedding_scale = 1;        // factor of the token embedding
  double logit_softcap = 0;          // bound of logits, by a hyperbolic tangent; 0: none
  NormKind norm = NormKind::layernorm;
  bool norm_offset = false;  // gains of norms are 1 + their weights
  bool norm_after = false;   // each branch has a norm behind it, too
  ActivationKind activation = ActivationKind::gelu_tanh;
  PositionKind positions = PositionKind::learned;
  // rope: whether the first layers rotate queries and keys, repeated over the others; at least one.
  std::vector<LayerPositions> positions_pattern = {LayerPositions::rope};
  double rope_theta = 10000.0;
  RopeScaling rope_scaling = RopeScaling::none;
  // Base and scaling for each word of attention_pattern, in place of rope_theta and rope_scaling; empty: those of all.
  std::vector<double> rope_theta_pattern;
  std::vector<RopeScaling> rope_scaling_pattern;
  double rope_factor = 1;
  double rope_low_freq_factor = 1;   // llama3
  double rope_high_freq_factor = 4;  // llama3
  int64_t rope_original_length = 0;  // llama3
  bool qk_norm = false;
  bool bias = true;      // linears have biases, and layernorm has beta
  bool qkv_bias = true;  // bias of the query, key and value linear; default: bias
  bool tied_head = true;
  double residual_dropout = 0;  // dropout of the embedding and of both branches of a block
  double attention_dropout = 0;
  double norm_eps = 1e-5;
  double init_std = 0.02;
  double z_loss = 0;  // weight of the squared log-sum-exp
  int64_t mup = 0;    // hidden_size of the model for which the hyperparameters were tuned (muP); 0: no scaling by width

  int64_t q_size() const { return num_heads * head_size; }
  int64_t kv_size() const { return num_kv_heads * head_size; }
  // Width of this model relative to muP's base model; 1 without muP.
  double mup_width() const { return mup == 0 ? 1 : static_cast<double>(hidden_size) / static_cast<double>(mup); }
  const AttentionPattern& attention(int64_t layer) const {
    return attention_pattern[static_cast<size_t>(layer) % attention_pattern.size()];
  }
  FfnKind ffn(int64_t layer) const {
    if (moe.is_at(layer)) return {moe.ffn_hidden_size, true};
    return ffn_pattern.empty() ? FfnKind{ffn_hidden_size}
                               : ffn_pattern[static_cast<size_t>(layer) % ffn_pattern.size()];
  }
  // Returns the width of all FFNs of a layer that a token passes through.
  int64_t active_ffn_width(const FfnKind& ffn) const {
    return ffn.is_routed ? moe.top_k * ffn.hidden_size + moe.shared_ffn_hidden_size : ffn.hidden_size;
  }
  // Returns the number of matrices of a layer's FFN, or of an expert.
  int64_t ffn_matrices(const FfnKind&) const { return is_gated(activation) ? 3 : 2; }
  // Returns whether `ranks` tensor ranks can share the FFN of every layer.
  bool shares_ffn(int64_t ranks) const {
    const auto divides = [&](const FfnKind& ffn) { return ffn.hidden_size % ranks == 0; };
    if (moe.is_on() && (moe.ffn_hidden_size % ranks != 0 || moe.shared_ffn_hidden_size % ranks != 0)) return false;
    return ffn_pattern.empty() ? divides({ffn_hidden_size})
                               : std::all_of(ffn_pattern.begin(), ffn_pattern.end(), divides);
  }
  // Factor of attention scores. Without attention_scale: 1 / sqrt(head_size), or with muP 1 / head_size.
  double score_scale() const {
    if (attention_scale > 0) return attention_scale;
    const auto size = static_cast<double>(head_size);
    return 1 / (mup == 0 ? std::sqrt(size) : size);
  }
  // Returns whether a layer rotates its queries and keys.
  bool rotates(int64_t layer) const {
    return positions == PositionKind::rope &&
           positions_pattern[static_cast<size_t>(layer) % positions_pattern.size()] == LayerPositions::rope;
  }
  // Returns whether some layers scale their rotations in this way.
  bool scales_rope(RopeScaling how) const {
    const auto& all = rope_scaling_pattern;
    return all.empty() ? rope_scaling == how : std::find(all.begin(), all.end(), how) != all.end();
  }
  RotaryAngles rope(int64_t layer) const {
    const size_t word = static_cast<size_t>(layer) % attention_pattern.size();
    RotaryAngles angles{.theta = rope_theta_pattern.empty() ? rope_theta : rope_theta_pattern[word],
                        .scaling = rope_scaling_pattern.empty() ? rope_scaling : rope_scaling_pattern[word]};
    if (angles.scaling != RopeScaling::none) angles.factor = rope_factor;
    if (angles.scaling == RopeScaling::llama3) {
      angles.low_freq_factor = rope_low_freq_factor;
      angles.high_freq_factor = rope_high_freq_factor;
      angles.original_length = static_cast<double>(rope_original_length);
    }
    return angles;
  }
  bool operator==(const ModelConfig&) const = default;
};

struct DataSource {
  std::string path;  // PREFIX of PREFIX.bin and PREFIX.idx, or the path of a single token file
  double weight = 1;
  double epochs = 0;  // > 0: weight by size: passes over this source per pass over a source with 1; 0: `weight` counts
  double max_epochs = 0;  // most passes over this source, after which the other sources take its place; 0: no limit
  // > 0: number of tokens of a source without files, for plans; runs refuse such a source. 0: the files have them.
  int64_t tokens = 0;
  // Type of tokens in files without a header: u16, or i32 for any of four bytes; nullopt: files without a header are
  // u16.
  std::optional<DType> dtype = {};
};

// Weights of the sources until a step, instead of their own.
struct DataPhase {
  int64_t until_step = 0;
  std::vector<double> weights;
};

// A range of training samples, counted from 0 in the order of training.
struct SampleRange {
  int64_t first = 0;
  int64_t count = 0;  // > 0

  bool operator==(const SampleRange&) const = default;
};

struct DataConfig {
  std::vector<DataSource> train;
  std::vector<DataSource> validation;     // may be empty
  double temperature = 0;                 // weights are multiplied by size^(1 / temperature); 0: by nothing
  std::vector<DataPhase> phases;          // consecutive, from the first step on
  std::vector<SampleRange> skip_samples;  // ranges of training samples that the run leaves out, in any order
  std::string tokenizer = "auto";         // name as in `data pack`; auto: from the data's PREFIX.meta.json
  bool checksums = true;                  // compare data with PREFIX.meta.json, if it exists, when they are first read
  bool mask_documents = false;            // a token attends to its own document only
  int64_t max_documents = 0;  // mean number of documents per sample that cuDNN has room for; 0: our own kernels mask
};

struct BatchConfig {
  int64_t global = 0;        // sequences per step
  int64_t micro = 0;         // sequences per micro-batch and rank
  int64_t accumulation = 0;  // micro-batches per step and rank: global / (micro * data ranks)
};

// How islands' weights are averaged (LocalStepsConfig::outer).
enum class OuterStep : uint8_t { average, nesterov };
inline constexpr std::array<std::string_view, 2> outer_step_names = {"average", "nesterov"};

// Islands of data ranks that sum gradients among themselves and average their weights now and then.
struct LocalStepsConfig {
  int64_t islands = 1;     // 1: off
  int64_t every = 1;       // steps from one averaging to the next
  int64_t start_step = 0;  // steps at the run's start in which all data ranks sum gradients
  OuterStep outer = OuterStep::average;
  double outer_lr = 1;        // nesterov only
  double outer_momentum = 0;  // nesterov only

  bool is_on() const { return islands > 1; }
  bool has_momentum() const { return is_on() && outer == OuterStep::nesterov; }
  // Whether the islands have the same weights after `step` steps of a run of `steps`.
  bool are_equal_after(int64_t step, int64_t steps) const {
    return !is_on() || step <= start_step || step % every == 0 || step == steps;
  }
};

// Ranks that hold the same parameters and share a node, if such ranks communicate by node (config/node_groups.h); 0:
// they take no account of nodes. Loading leaves 0, and choose_hierarchy chooses.
struct NodeReplicas {
  int64_t dense = 0;    // with the same parameters outside experts
  int64_t experts = 0;  // with the same experts

  bool operator==(const NodeReplicas&) const = default;
};

struct ParallelConfig {
  int64_t tensor = 1;
  int64_t context = 1;        // ranks that share sequences
  int64_t expert = 1;         // ranks of a stage over which each layer's experts are spread
  int64_t expert_tensor = 1;  // tensor ranks over which each expert is cut: 1 or all; 1 unless expert > 1
  ExpertOverflowRule expert_overflow = ExpertOverflowRule::stop;
  double expert_room = 2;      // rows for which a rank's experts have room, as a multiple of those that it sends
  int64_t pipeline = 1;        // stages
  int64_t virtual_stages = 1;  // chunks of each stage
  PipelineOrder pipeline_schedule = PipelineOrder::one_f_one_b;
  RankOrder rank_order = RankOrder::tensor_data_pipeline;
  std::vector<int64_t> layers_per_stage;  // layers of each chunk, in forward order; empty: spread to balance times
  int64_t zero = 0;
  bool sequence = false;        // sequence parallelism over the tensor axis
  bool overlap_tensor = false;  // products alternate with the tensor ranks' exchange of their rows
  bool elastic = false;         // use as many data ranks as there are and divide the batch; the other ranks idle
  ContextMethod context_method =
      ContextMethod::automatic;         // loading replaces automatic by heads or ring if context > 1
  bool chooses_context_method = false;  // the key was "auto"
  LocalStepsConfig local_steps = {};
  bool zero_node_copy = false;  // ZeRO cuts over the data ranks of a node, and each node has all pieces
  NodeReplicas node_replicas = {};

  // Whether sums and gathers go by node among ranks that cut their state over all nodes.
  bool sums_by_node() const { return node_replicas.dense > 0 && !zero_node_copy; }
};

// Optimizers whose update can read bf16 gradients; they must not keep an average of the weights.
inline constexpr std::array types_with_bf16_gradients = {OptimizerKind::adamw, OptimizerKind::adamw_8bit,
                                                         OptimizerKind::lion, OptimizerKind::sgd};

struct OptimizerConfig {
  OptimizerKind type = OptimizerKind::adamw;
  double lr = 0;
  LrScaling lr_scaling = LrScaling::none;
  int64_t base_batch = 256;  // sequences per step for which lr and the section `schedule` were tuned
  double beta1 = 0.9;        // "betas": [beta1, beta2] of adamw, adamw-8bit, lion, lamb, and muon's non-matrix part
  double beta2 = 0.95;
  double eps = 1e-8;                                                      // adamw, adamw-8bit, lamb, muon and adafactor
  double momentum = 0.9;                                                  // sgd, lars and muon
  bool nesterov = false;                                                  // sgd and muon
  double trust_coefficient = 0.001;                                       // lars
  NewtonSchulzProducts newton_schulz = NewtonSchulzProducts::as_compute;  // muon
  double beta2_decay = -0.8;                                              // adafactor, as the next three
  double clip_threshold = 1;
  bool scale_parameter = true;
  double eps2 = 1e-3;
  double qk_clip = 0;  // muon: bound of attention scores; 0: none
  double weight_decay = 0.1;
  double clip_norm = 1.0;         // 0: no clipping
  double ema = 0;                 // decay of the weights' moving average; 0: no average
  int64_t freeze_step = 1;        // onebit-adam: steps of AdamW at the start; zero-one-adam: steps before local ones
  int64_t variance_scaler = 16;   // zero-one-adam: updates of the variances between doublings of their distance
  int64_t local_scaler = 32'768;  // zero-one-adam: local steps between doublings of the distance of exchanges
  int64_t local_most = 16;        // zero-one-adam: largest such distance, a power of two

  // Whether ranks send signs.
  bool sends_signs() const { return type == OptimizerKind::onebit_adam || type == OptimizerKind::zero_one_adam; }
};

// The section `schedule`: the learning rate over the steps.
struct LrCurveConfig {
  LrCurve type = LrCurve::constant;
  int64_t warmup_steps = 0;
  int64_t decay_steps = 0;  // wsd: steps of the final decay
  double min_lr = 0;
};

// Linears that save a projection of their input over the tokens of each sequence instead of the input; the weight's
// gradient is estimated from it.
struct ProjectionConfig {
  ProjectionKind kind = ProjectionKind::gauss;
  double share = 0.2;             // rows of a projection, as a share of the sequence's rows
  std::vector<LinearSite> sites;  // empty: no linear

  bool is_on() const { return !sites.empty(); }
  bool is_at(LinearSite site) const { return std::find(sites.begin(), sites.end(), site) != sites.end(); }
};

// Where state lies between its uses: in the memory of the device (none), of a GPU's host, or on drives; fit: not in the
// device's as far as that is short (fit/fitted_places.h).
enum class StatePlace : uint8_t { none, disk, host, fit };
constexpr std::array<std::string_view, 4> state_place_names = {"none", "disk", "host", "fit"};
constexpr std::string_view state_place_name(StatePlace place) { return state_place_names[static_cast<size_t>(place)]; }
// Whether a step computes with the weights of all updates before it, or not yet with the last one, which runs beside
// it.
enum class UpdateTime : uint8_t { now, delayed };
constexpr std::array<std::string_view, 2> update_time_names = {"now", "delayed"};

struct MemoryConfig {
  RecomputeKind recompute = RecomputeKind::none;
  int64_t recompute_interval = 0;  // every_nth: blocks 0, n, 2n, ... are recomputed
  int64_t activation_budget = 0;   // optimal: bytes of activations per rank; 0: all that the device has left
  OffloadChoice offload = {};      // offload_activations
  int64_t activation_bits = 16;  // 2, 3, 4: bits of GELU's saved derivative; 16: its input is saved, in type `compute`
  int64_t saved_inputs = 16;     // 8: inputs of linears and norms are saved as 8-bit codes; 16: in type `compute`
  ProjectionConfig linear_projection = {};
  int64_t loss_chunk_tokens = 0;  // rows of logits in memory at a time; 0: chosen for the device
  StatePlace offload_optimizer = StatePlace::none;
  StatePlace offload_parameters = StatePlace::none;  // the weights that ops read
  StatePlace offload_gradients = StatePlace::none;
  double offload_optimizer_share = 1;  // share of the layers, from the last one on
  UpdateTime offload_update = UpdateTime::now;
  int64_t update_threads = 0;  // threads of updates whose state is away; 0: as the ops
  std::string disk_path = {};  // folders, one on each drive, with ':' between them
  int64_t disk_units = 3;      // most units on disk whose state is in memory at a time
  int64_t disk_transfer_bytes = int64_t{1} << 20, disk_depth = 16;  // bytes of a transfer, most transfers under way
  DiskClones disk_clones = DiskClones::automatic;
  bool clones_files = false;  // loading sets it with `always`; with `automatic` a run sets it if all folders can

  // Return true if state lies on drives, or outside of the device's memory; if it is chosen by fit, it may.
  bool uses_disk() const { return offload_optimizer == StatePlace::disk || fits_places(); }
  bool keeps_state_away() const { return offload_optimizer != StatePlace::none; }
  bool delays_updates() const { return keeps_state_away() && offload_update == UpdateTime::delayed; }
  bool fits_places() const { return offload_optimizer == StatePlace::fit; }
  // Returns the word for the place of optimizer state that is away: "disk" or "host".
  std::string_view away_name() const { return state_place_name(uses_disk() ? StatePlace::disk : offload_optimizer); }
  // Returns the place of optimizer state that is away, and whether only GPUs have it.
  MemoryPlace away_place() const { return uses_disk() ? MemoryPlace::disk : MemoryPlace::pinned_host; }
  bool needs_gpu() const { return offload_optimizer == StatePlace::host; }
  std::vector<std::string> disk_folders() const;
};

struct CheckpointConfig {
  int64_t every_steps = 0;   // 0: saves by every_seconds, at the end and when stopped only
  double every_seconds = 0;  // 0: saves by every_steps only
  bool asynchronous = true;
  int64_t keep_last = 2;
  int64_t keep_every = 0;  // saves at multiples of this step are never deleted; 0: none

  bool saves_on_the_way() const { return every_steps > 0 || every_seconds > 0; }
  // Returns true if a rank has a snapshot of its state, which is written to disk while training goes on. The last save
  // needs none.
  bool keeps_snapshot() const { return asynchronous && saves_on_the_way(); }
};

struct LogConfig {
  int64_t every_steps = 1;
};

// Sums and gathers over ranks that hold the same parameters: over all at once, or within nodes and between them.
enum class CommHierarchy : uint8_t { automatic, flat, node };
constexpr std::array<std::string_view, 3> comm_hierarchy_names = {"auto", "flat", "node"};

// Form in which weights cut by ZeRO 3 travel when they are gathered.
enum class WeightCodec : uint8_t { as_is, int8 };
constexpr std::array<std::string_view, 2> weight_codec_names = {"as-is", "int8"};

struct CommConfig {
  std::string interface = "auto";  // network interface or address to listen at; auto: the one that reaches MASTER_ADDR
  double timeout_seconds = 60;     // limit for peers to arrive, and for a silent one to count as lost
  bool mixed_machines = false;     // allow ranks with different instruction sets or GPU models
  int64_t compare_every_steps = 100;  // steps between comparisons of the replicas' weights; 0: never
  CompressionConfig compression = {};
  WeightCodec weights = WeightCodec::as_is;
  CommHierarchy hierarchy = CommHierarchy::automatic;
  int64_t ranks_per_node = 0;  // 0: as the launcher or the cluster's profile tells
};

// After a spike of the loss, the run returns to the previous checkpoint and leaves samples out.
struct RollbackConfig {
  double spike = 4;          // standard deviations above the window's mean
  int64_t window = 100;      // length in steps
  int64_t skip_samples = 0;  // samples left out after the checkpoint; 0: rollback is off
  int64_t steps = 3;         // consecutive high losses that make a spike
  int64_t limit = 5;         // most rollbacks in a run

  bool is_on() const { return skip_samples > 0; }
};

struct RunSettings {
  int64_t steps = 0;
  uint64_t seed = 1;
  std::string out;
  DeviceKind device = DeviceKind::automatic;
  int64_t threads = 0;                   // 0: all cores that the process may use
  bool thread_independent = false;       // same bits for any number of threads
  bool deterministic = true;             // same bits in every run; false: a GPU's library may sum in any order
  std::string algorithm_cache = "auto";  // folder of timed algorithms; auto: in the user's cache; none: not kept
  int64_t max_skipped_steps = 10;        // consecutive; more end the run with exit code 6
  RollbackConfig rollback;
  int64_t validate_every_steps = 0;  // 0: at the end only
  int64_t validation_samples = 64;   // sequences per validation
  bool validate_ema = false;         // validate the weights' moving average
  int64_t sample_every_steps = 0;    // steps between generated texts; 0: none
  int64_t sample_tokens = 64;
  std::string sample_prompt;
};

// The course of the learning rate with all scaling applied.
struct LrCourse {
  LrCurve type = LrCurve::constant;
  double lr = 0;  // at its peak
  double min_lr = 0;
  int64_t steps = 0;
  int64_t warmup_steps = 0;
  int64_t decay_steps = 0;  // wsd: steps of the final decay
};

// The sections that determine the ops and tensors of a step, and which ranks hold and sum them.
struct StepConfig {
  ModelConfig model;
  DataConfig data;
  BatchConfig batch;
  ParallelConfig parallel;
  PrecisionConfig precision;
  OptimizerConfig optimizer;
  CommConfig comm;

  // Returns how sums over data ranks are compressed. With zero-one-adam, zero_one_step says in which steps.
  CompressionConfig compression() const {
    if (!optimizer.sends_signs()) return comm.compression;
    const bool zero_one = optimizer.type == OptimizerKind::zero_one_adam;
    return {.kind = GradientCodec::signs, .start_step = zero_one ? 0 : optimizer.freeze_step, .min_elements = 1};
  }
  // Whether gathered weights travel in codes.
  bool codes_weights() const { return comm.weights == WeightCodec::int8 && cuts_weights(parallel.zero); }
  // Whether all ranks have the same weights after `step` steps of a run of `steps`, so that they can be saved.
  bool has_equal_weights_after(int64_t step, int64_t steps) const;
};

struct RunConfig : StepConfig {
  LrCurveConfig lr_curve;
  MemoryConfig memory;
  CheckpointConfig checkpoint;
  LogConfig log;
  RunSettings run;

  // Factor that lr_scaling applies to the learning rate, to its minimum, and to the warm-up steps.
  double lr_factor() const {
    const double ratio = static_cast<double>(batch.global) / static_cast<double>(optimizer.base_batch);
    if (optimizer.lr_scaling == LrScaling::none) return 1;
    return optimizer.lr_scaling == LrScaling::linear ? ratio : std::sqrt(ratio);
  }
  // Returns the scaled warm-up in whole steps, capped at 1e18.
  int64_t warmup_steps() const {
    return std::llround(std::fmin(static_cast<double>(lr_curve.warmup_steps) * lr_factor(), 1e18));
  }
  LrCourse lr_course() const {
    return {.type = lr_curve.type,
            .lr = optimizer.lr * lr_factor(),
            .min_lr = lr_curve.min_lr * lr_factor(),
            .steps = run.steps,
            .warmup_steps = warmup_steps(),
            .decay_steps = lr_curve.decay_steps};
  }
};

}  // namespace gptrain::config
