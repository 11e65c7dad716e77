#include "config/checks.h"

#include <algorithm>
#include <bit>
#include <fmt/format.h>
#include <initializer_list>
#include <limits>
#include <string_view>
#include <utility>

#include "base/amount.h"
#include "base/fp8.h"
#include "base/loss_scale.h"
#include "config/fields.h"

namespace gptrain {
namespace {

constexpr int64_t max_int64 = std::numeric_limits<int64_t>::max();

// A step's schedule is a list of what is done with each of its micro-batches in each layer, the embedding and the head: at
// some 700 bytes for each of these, no machine is short of memory because of its schedule.
constexpr int64_t max_passes = int64_t{1} << 22;

// The largest divisor of a data rank's sequences up to 8.
int64_t default_micro(int64_t sequences) {
  int64_t micro = std::min<int64_t>(8, sequences);
  while (sequences % micro != 0) --micro;
  return micro;
}

class Settler {
 public:
  Settler(RunConfig& config, const std::set<std::string>& given, int64_t world_size, Faults& faults)
      : config_(config), given_(given), world_size_(world_size), faults_(faults) {}

  void run() {
    check_presence();
    check_dropout();
    settle_model();
    check_attention_window();
    check_max_documents();
    check_mixture();
    check_tensor_parallel();
    settle_pipeline();
    settle_batch();
    settle_precision();
    settle_optimizer();
    check_lr_curve();
    check_activation_bits();
    check_totals();
    check_size();
    check_used();
  }

 private:
  bool is_given(const std::string& path) const { return given_.contains(path); }

  // Whether rules may use the values of the paths: none has a fault, and none comes from a preset that does not exist.
  bool sound(std::initializer_list<const char*> paths) const {
    return std::none_of(paths.begin(), paths.end(), [&](const char* path) {
      const bool of_preset = std::string_view(path).starts_with("model.") && !is_given(path);
      return faults_.concern(path) || (of_preset && faults_.concern("model.preset"));
    });
  }

  void fault(const std::string& path, const std::string& rule, const std::string& nearest) {
    faults_.add(path, show_value(find_field(path)->get(config_)), rule, nearest);
  }

  void check_presence() {
    for (const Field& field : fields()) {
      if (field.presence != Presence::required || is_given(field.path) || faults_.concern(field.path)) continue;
      if (field.dependency && (faults_.concern(field.dependency->path) || !field.used(config_))) continue;
      const bool of_model = field.section() == "model";
      if (of_model && is_given("model.preset")) continue;
      std::string rule = "must be given";
      if (of_model) rule += ", here or by model.preset";
      if (field.dependency) rule += ", as " + field.dependency->condition;
      faults_.add(field.path, "", rule, field.example);
    }
  }

  void check_dropout() {
    if (!is_given("model.dropout")) return;
    for (const char* path : {"model.residual_dropout", "model.attention_dropout"}) {
      if (is_given(path) && sound({path, "model.dropout"})) {
        fault(path, "is also set by model.dropout", "leaving one of them out");
      }
    }
  }

  void settle_model() {
    ModelConfig& model = config_.model;
    const bool has_kv_heads = model.num_kv_heads > 0;
    if (!has_kv_heads) model.num_kv_heads = model.num_heads;
    if (model.ffn_hidden_size == 0) {
      model.ffn_hidden_size =
          is_gated(model.activation) ? (8 * model.hidden_size + 191) / 192 * 64 : 4 * model.hidden_size;
    }
    if (!is_given("model.qkv_bias")) model.qkv_bias = model.bias;
    settle_heads(has_kv_heads);
    check_rope_scaling();
  }

  void settle_heads(bool has_kv_heads) {
    ModelConfig& model = config_.model;
    if (!sound({"model.hidden_size", "model.num_heads", "model.head_size", "model.positions"})) return;
    if (model.head_size > 0) {
      if (model.positions == PositionKind::rope && model.head_size % 2 != 0) {
        fault("model.head_size", "must be even for model.positions = rope",
              nearest_integers(model.head_size, 1, 1 << 16, [](int64_t size) { return size % 2 == 0; }));
      }
    } else {
      derive_head_size(has_kv_heads);
    }
    if (has_kv_heads && sound({"model.num_kv_heads", "model.num_heads"}) && model.num_heads % model.num_kv_heads != 0) {
      fault("model.num_kv_heads", fmt::format("must divide model.num_heads = {}", model.num_heads),
            nearest_integers(model.num_kv_heads, 1, model.num_heads,
                             [&](int64_t heads) { return model.num_heads % heads == 0; }));
    }
  }

  void derive_head_size(bool has_kv_heads) {
    ModelConfig& model = config_.model;
    model.head_size = model.hidden_size / model.num_heads;
    const auto divides_hidden = [&](int64_t heads) { return model.hidden_size % heads == 0; };
    const bool rope = model.positions == PositionKind::rope;
    const auto even_head_size = [&](int64_t heads) { return !rope || model.hidden_size / heads % 2 == 0; };
    const bool kv_heads_sound = has_kv_heads && sound({"model.num_kv_heads"});
    const std::string nearest = nearest_integers(model.num_heads, 1, model.hidden_size, [&](int64_t heads) {
      return divides_hidden(heads) && even_head_size(heads) && (!kv_heads_sound || heads % model.num_kv_heads == 0);
    });
    if (!divides_hidden(model.num_heads)) {
      fault("model.num_heads", fmt::format("must divide model.hidden_size = {}", model.hidden_size), nearest);
    } else if (!even_head_size(model.num_heads)) {
      fault("model.num_heads",
            fmt::format("must leave an even head size for model.positions = rope, not {} / {} = {}", model.hidden_size,
                        model.num_heads, model.head_size),
            nearest);
    }
  }

  void check_rope_scaling() {
    const ModelConfig& model = config_.model;
    if (!sound({"model.rope_scaling", "model.rope_low_freq_factor", "model.rope_high_freq_factor"})) return;
    if (model.rope_scaling != RopeScaling::llama3 || model.rope_low_freq_factor < model.rope_high_freq_factor) return;
    fault("model.rope_high_freq_factor",
          fmt::format("must be greater than model.rope_low_freq_factor = {}", model.rope_low_freq_factor), "4");
  }

  void check_attention_window() {
    const int64_t length = config_.model.sequence_length;
    if (!sound({"model.attention_window", "model.sequence_length"}) || config_.model.attention_window <= length) return;
    fault("model.attention_window", fmt::format("must be at most model.sequence_length = {}", length),
          fmt::format("{}", length));
  }

  void check_max_documents() {
    const int64_t length = config_.model.sequence_length;
    if (!sound({"data.max_documents", "model.sequence_length"}) || config_.data.max_documents <= length) return;
    fault("data.max_documents", fmt::format("must be at most model.sequence_length = {}", length),
          fmt::format("{}", length));
  }

  void check_mixture() {
    if (!sound({"data.train"})) return;
    const std::vector<DataSource>& sources = config_.data.train;
    const auto by_epochs = [](const DataSource& source) { return source.epochs > 0; };
    const auto counted = std::count_if(sources.begin(), sources.end(), by_epochs);
    if (counted > 0 && counted < static_cast<int64_t>(sources.size())) {
      const auto other = std::find_if_not(sources.begin(), sources.end(), by_epochs) - sources.begin();
      faults_.add(fmt::format("data.train[{}].epochs", other), "", "must be given, as other sources have it", "1");
    }
    if (counted > 0 && config_.data.temperature > 0 && sound({"data.temperature"}))
      fault("data.temperature", "has no place beside the epochs of sources", "0");
    if (sound({"data.phases"})) check_phases();
  }

  void check_phases() {
    int64_t before = 0;
    for (size_t i = 0; i < config_.data.phases.size(); ++i) {
      const DataPhase& phase = config_.data.phases[i];
      const std::string path = fmt::format("data.phases[{}]", i);
      if (phase.until_step <= before) {
        faults_.add(path + ".until_step", fmt::format("{}", phase.until_step),
                    fmt::format("must be greater than {}", before), fmt::format("{}", before + 1));
      }
      before = phase.until_step;
      if (phase.weights.size() != config_.data.train.size()) {
        faults_.add(
            path + ".weights", show_value(Json(phase.weights)),
            fmt::format("must hold a weight for each of the {} sources of data.train", config_.data.train.size()), "");
      } else if (std::all_of(phase.weights.begin(), phase.weights.end(), [](double w) { return w == 0; })) {
        faults_.add(path + ".weights", show_value(Json(phase.weights)), "must not all be 0", "");
      }
    }
  }

  // Every rank of the tensor axis has as many heads, and as many columns of the MLP, as every other.
  void check_tensor_parallel() {
    const ModelConfig& model = config_.model;
    const int64_t tensor = config_.parallel.tensor;
    if (tensor == 1 || !sound({"parallel.tensor", "model.num_heads", "model.num_kv_heads", "model.ffn_hidden_size"})) {
      return;
    }
    const auto divides_heads = [&](int64_t n) { return model.num_heads % n == 0; };
    const auto divides_kv_heads = [&](int64_t n) { return model.num_kv_heads % n == 0 || n % model.num_kv_heads == 0; };
    const auto divides_ffn = [&](int64_t n) { return model.ffn_hidden_size % n == 0; };
    const std::string nearest = nearest_integers(tensor, 1, model.num_heads, [&](int64_t n) {
      return divides_heads(n) && divides_kv_heads(n) && divides_ffn(n);
    });
    if (!divides_heads(tensor)) {
      fault("parallel.tensor", fmt::format("must divide model.num_heads = {}", model.num_heads), nearest);
    } else if (!divides_kv_heads(tensor)) {
      fault("parallel.tensor",
            fmt::format("must divide model.num_kv_heads = {}, or be a multiple of it", model.num_kv_heads), nearest);
    } else if (!divides_ffn(tensor)) {
      fault("parallel.tensor", fmt::format("must divide model.ffn_hidden_size = {}", model.ffn_hidden_size), nearest);
    }
  }

  void settle_pipeline() {
    ParallelConfig& parallel = config_.parallel;
    if (parallel.pipeline == 1) return;
    if (!sound({"parallel.pipeline", "parallel.pipeline_schedule", "parallel.virtual_stages", "model.num_layers"}))
      return;
    const auto [least, most] = chunks_of(parallel.pipeline_schedule);
    const std::string schedule(pipeline_order_names[static_cast<size_t>(parallel.pipeline_schedule)]);
    if (!is_given("parallel.virtual_stages")) parallel.virtual_stages = least;
    if (parallel.virtual_stages < least || parallel.virtual_stages > most) {
      const std::string range = least == most ? fmt::format("{}", least) : fmt::format("at least {}", least);
      return fault("parallel.virtual_stages",
                   fmt::format("must be {} with parallel.pipeline_schedule = {}", range, schedule),
                   fmt::format("{}", least));
    }
    const int64_t chunks = parallel.pipeline * parallel.virtual_stages;
    if (!parallel.layers_per_stage.empty()) return check_layers_per_stage(chunks);
    const int64_t layers = config_.model.num_layers;
    if (chunks > layers) {
      const int64_t stages = layers / parallel.virtual_stages;
      fault("parallel.pipeline",
            parallel.virtual_stages > 1
                ? fmt::format("times parallel.virtual_stages = {} must be at most model.num_layers = {}",
                              parallel.virtual_stages, layers)
                : fmt::format("must be at most model.num_layers = {}", layers),
            fmt::format("{}", std::max<int64_t>(stages, 1)));
    }
  }

  struct ChunkRange {
    int64_t least, most;
  };
  static ChunkRange chunks_of(PipelineOrder order) {
    switch (order) {
      case PipelineOrder::interleaved:
        return {2, max_int64};
      case PipelineOrder::zero_bubble_v:
        return {2, 2};
      default:
        return {1, 1};
    }
  }

  // The first and the last chunk have the embedding and the head as well.
  void check_layers_per_stage(int64_t chunks) {
    const std::vector<int64_t>& layers = config_.parallel.layers_per_stage;
    if (!sound({"parallel.layers_per_stage"})) return;
    if (std::ssize(layers) != chunks) {
      return fault(
          "parallel.layers_per_stage",
          fmt::format("must have one number for each of parallel.pipeline * parallel.virtual_stages = {} chunks",
                      chunks),
          "[]");
    }
    int64_t sum = 0;
    for (size_t i = 0; i < layers.size(); ++i) {
      sum += layers[i];
      if (layers[i] == 0 && i > 0 && i + 1 < layers.size())
        return fault("parallel.layers_per_stage", "may have 0 as its first and its last number only", "[]");
    }
    if (sum != config_.model.num_layers) {
      fault("parallel.layers_per_stage",
            fmt::format("adds up to {}, must add up to model.num_layers = {}", sum, config_.model.num_layers), "[]");
    }
  }

  // Ranks that see other samples. That the mesh does not fit the number of ranks is reported where the mesh is made.
  int64_t data_ranks() const {
    const int64_t model_ranks = config_.parallel.tensor * config_.parallel.pipeline;
    return world_size_ % model_ranks == 0 ? world_size_ / model_ranks : 1;
  }

  void check_sequence_rows() {
    const int64_t tensor = config_.parallel.tensor;
    if (!config_.parallel.sequence || !sound({"parallel.tensor", "batch.micro", "model.sequence_length"})) return;
    const int64_t length = config_.model.sequence_length;
    if (config_.batch.micro * length % tensor != 0) {
      fault("parallel.tensor",
            fmt::format("must divide batch.micro * model.sequence_length = {} * {} with parallel.sequence",
                        config_.batch.micro, length),
            nearest_integers(tensor, 1, tensor, [&](int64_t n) { return config_.batch.micro * length % n == 0; }));
    }
  }

  void settle_batch() {
    if (!sound({"batch.global", "batch.micro", "batch.accumulation", "parallel.tensor"})) return;
    BatchConfig& batch = config_.batch;
    const int64_t data = data_ranks();
    const std::string over_ranks = data > 1 ? fmt::format(" / {} data ranks", data) : "";
    const bool has_global = is_given("batch.global");
    const bool has_micro = is_given("batch.micro");
    const bool has_accumulation = is_given("batch.accumulation");
    if (config_.parallel.elastic && has_accumulation) {
      return fault("batch.accumulation", "follows from the ranks that are there, as parallel.elastic is true",
                   "leaving it out");
    }
    if (config_.parallel.elastic && !has_global) {
      return faults_.add("batch.global", "", "must be given, as parallel.elastic is true",
                         find_field("batch.global")->example);
    }
    if (!has_global && !(has_micro && has_accumulation)) {
      return faults_.add("batch.global", "", "must be given, or both batch.micro and batch.accumulation",
                         find_field("batch.global")->example);
    }
    if (!has_global && batch.micro <= max_batch_sequences / data)
      batch.global = batch.micro * data * batch.accumulation;
    if (!has_global && (batch.global == 0 || batch.global > max_batch_sequences)) {
      return fault("batch.accumulation",
                   fmt::format("times batch.micro = {}{} must be at most {}", batch.micro,
                               data > 1 ? fmt::format(" times {} data ranks", data) : "", max_batch_sequences),
                   fmt::format("{}", std::max<int64_t>(max_batch_sequences / (batch.micro * data), 1)));
    }
    if (batch.global % data != 0) {
      return fault("batch.global", fmt::format("must be a multiple of the {} data ranks", data),
                   nearest_integers(batch.global, data, max_batch_sequences, [&](int64_t n) { return n % data == 0; }));
    }
    const int64_t sequences = batch.global / data;  // of a data rank
    for (const auto& [path, value] :
         {std::pair{"batch.micro", batch.micro}, {"batch.accumulation", batch.accumulation}}) {
      if (is_given(path) && sequences % value != 0) {
        return fault(path, fmt::format("must divide batch.global{} = {}", over_ranks, sequences),
                     nearest_integers(value, 1, sequences, [&](int64_t n) { return sequences % n == 0; }));
      }
    }
    if (!has_micro) batch.micro = has_accumulation ? sequences / batch.accumulation : default_micro(sequences);
    const int64_t accumulation = sequences / batch.micro;
    if (has_accumulation && batch.accumulation != accumulation) {
      return fault("batch.accumulation",
                   fmt::format("must be batch.global{} / batch.micro = {} / {}", over_ranks, sequences, batch.micro),
                   fmt::format("{}", accumulation));
    }
    batch.accumulation = accumulation;
    const int64_t layers = sound({"model.num_layers"}) ? config_.model.num_layers : 1;
    const int64_t max_micro_batches = max_passes / (layers + 2);
    if (accumulation > max_micro_batches) {
      return fault("batch.micro",
                   fmt::format("leaves {} micro-batches a step, must be at most {} with model.num_layers = {}",
                               accumulation, max_micro_batches, layers),
                   nearest_integers(batch.micro, (sequences + max_micro_batches - 1) / max_micro_batches, sequences,
                                    [&](int64_t n) { return sequences % n == 0; }));
    }
    check_sequence_rows();
  }

  void settle_optimizer() {
    if (!sound({"optimizer.type"})) return;
    OptimizerConfig& optimizer = config_.optimizer;
    const bool lamb = optimizer.type == OptimizerKind::lamb;
    if (optimizer.type == OptimizerKind::lion && !is_given("optimizer.betas")) optimizer.beta2 = 0.99;
    if (lamb && !is_given("optimizer.betas")) optimizer.beta2 = 0.999;
    if (lamb && !is_given("optimizer.eps")) optimizer.eps = 1e-6;
    if (optimizer.type != OptimizerKind::muon) return;
    if (!is_given("optimizer.momentum")) optimizer.momentum = 0.95;
    if (!is_given("optimizer.nesterov")) optimizer.nesterov = optimizer.momentum > 0;
  }

  void settle_precision() {
    PrecisionConfig& precision = config_.precision;
    if (!sound({"precision.compute", "precision.residual"})) return;
    if (!is_given("precision.residual")) precision.residual = precision.compute;
    const auto compute_word = find_field("precision.compute")->get(config_).get<std::string>();
    const std::string dtype_word = precision.pure ? "bf16" : compute_word;
    if (precision.residual != DType::f32 && precision.residual != precision.compute) {
      const char* const or_fp32 = precision.compute == DType::f32 ? "" : " or fp32";
      fault("precision.residual",
            fmt::format("must be {}{} with precision.compute = {}", dtype_word, or_fp32, compute_word),
            fmt::format("\"{}\"", dtype_word));
    }
    if (precision.scales_loss()) check_fp16();
    if (!sound({"precision.linears"})) return;
    if (!is_given("precision.linears")) precision.linears = precision.compute;
    if (is_fp8(precision.linears)) return check_fp8_linears(show_value(dtype_word));
    if (precision.linears != precision.compute) {
      const std::string dtype = show_value(dtype_word);
      fault("precision.linears", fmt::format("must be fp8, or what precision.compute is: {}", dtype), dtype);
    }
  }

  void check_fp16() {
    const auto is_power_of_two = [](int64_t n) { return std::has_single_bit(static_cast<uint64_t>(n)); };
    const int64_t scale = config_.precision.loss_scale;
    if (sound({"precision.loss_scale"}) && !is_power_of_two(scale)) {
      fault("precision.loss_scale", "must be a power of two",
            nearest_integers(scale, 1, static_cast<int64_t>(most_loss_scale), is_power_of_two));
    }
    if (sound({"run.device"}) && config_.run.device == DeviceKind::cpu) {
      fault("run.device", "must be cuda or auto with precision.compute = fp16, which the CPU backend does not have",
            "\"cuda\"");
    }
  }

  // `dtype`: the value of precision.linears that works without FP8.
  void check_fp8_linears(const std::string& dtype) {
    if (config_.precision.compute != DType::bf16)
      return fault("precision.linears", fmt::format("needs precision.compute = bf16, not {}", dtype), dtype);
    if (sound({"run.device"}) && config_.run.device == DeviceKind::cpu)
      fault("precision.linears", "needs a GPU, not run.device = cpu", dtype);
    check_fp8_sizes();
  }

  // Tensor cores take FP8 matrices whose sizes are multiples of 16, on each of the tensor ranks.
  void check_fp8_sizes() {
    constexpr int64_t multiple = 16;
    const ModelConfig& model = config_.model;
    const int64_t tensor = sound({"parallel.tensor"}) ? config_.parallel.tensor : 1;
    const auto fits = [](int64_t n) { return n % multiple == 0; };
    const auto fits_ranks = [&](int64_t n) { return n % (multiple * tensor) == 0; };
    const std::string with = tensor > 1 ? fmt::format("precision.linears = fp8 and parallel.tensor = {}", tensor)
                                        : "precision.linears = fp8";
    for (const auto& [path, value] :
         {std::pair{"model.hidden_size", model.hidden_size}, {"model.ffn_hidden_size", model.ffn_hidden_size}}) {
      if (!sound({path}) || fits_ranks(value)) continue;
      fault(path, fmt::format("must be a multiple of {} with {}", multiple * tensor, with),
            nearest_integers(value, 1, 1 << 22, fits_ranks));
    }
    if (is_given("model.head_size") && sound({"model.head_size", "model.num_heads"}) && !fits_ranks(model.q_size())) {
      fault("model.head_size",
            fmt::format("times model.num_heads = {} must be a multiple of {} with {}", model.num_heads,
                        multiple * tensor, with),
            nearest_integers(model.head_size, 1, 1 << 16,
                             [&](int64_t size) { return fits_ranks(size * model.num_heads); }));
    }
    if (sound({"model.hidden_size", "model.num_heads", "model.num_kv_heads"})) {
      // A rank has whole heads of keys and values, and where there are more ranks than heads, a copy of one.
      const auto of_rank = [&](int64_t heads) { return std::max<int64_t>(1, heads / tensor); };
      const auto fits_heads = [&](int64_t heads) {
        return fits(2 * of_rank(heads) * model.head_size) && model.num_heads % heads == 0 &&
               (heads % tensor == 0 || tensor % heads == 0);
      };
      if (!fits(2 * of_rank(model.num_kv_heads) * model.head_size)) {
        fault("model.num_kv_heads",
              fmt::format("{}times the head size, {}, must be a multiple of 8 with {}",
                          tensor > 1 ? "those of a tensor rank " : "", model.head_size, with),
              nearest_integers(model.num_kv_heads, 1, model.num_heads, fits_heads));
      }
    }
    if (sound({"batch.global", "batch.micro", "batch.accumulation", "model.sequence_length"})) {
      const int64_t length = model.sequence_length;
      const int64_t sequences = config_.batch.global / data_ranks();
      const auto fits_rows = [&](int64_t micro) { return fits(micro * length) && sequences % micro == 0; };
      if (!fits(config_.batch.micro * length)) {
        fault("batch.micro",
              fmt::format("times model.sequence_length = {} must be a multiple of 16 with precision.linears = fp8",
                          length),
              nearest_integers(config_.batch.micro, 1, sequences, fits_rows));
      }
    }
  }

  void check_lr_curve() {
    const LrCurveConfig& curve = config_.lr_curve;
    const int64_t steps = config_.run.steps;
    const bool scaled = config_.optimizer.lr_scaling != LrScaling::none;
    const bool known = !scaled || sound({"optimizer.lr_scaling", "optimizer.base_batch", "batch.global"});
    const double factor = config_.lr_factor();
    const int64_t warmup = config_.warmup_steps();
    if (known && sound({"schedule.warmup_steps", "run.steps"}) && warmup > steps) {
      const std::string by =
          scaled ? fmt::format(" over {:g}, which optimizer.lr_scaling stretches it by", factor) : "";
      const auto most = static_cast<int64_t>(static_cast<double>(steps) / factor);
      fault("schedule.warmup_steps", fmt::format("must be at most run.steps = {}{}", steps, by),
            fmt::format("{}", most));
    }
    if (known && curve.type == LrCurve::wsd &&
        sound({"schedule.type", "schedule.decay_steps", "schedule.warmup_steps", "run.steps"}) &&
        curve.decay_steps > steps - warmup) {
      const int64_t most = steps - warmup;
      fault("schedule.decay_steps",
            fmt::format("must be at most run.steps - schedule.warmup_steps = {} - {}", steps, warmup),
            most > 0 ? fmt::format("{}", most) : "fewer schedule.warmup_steps");
    }
    if (curve.type != LrCurve::constant && sound({"schedule.type", "schedule.min_lr", "optimizer.lr"}) &&
        curve.min_lr > config_.optimizer.lr) {
      fault("schedule.min_lr", fmt::format("must be at most optimizer.lr = {}", config_.optimizer.lr),
            fmt::format("{}", config_.optimizer.lr));
    }
  }

  // Products that later code forms in 64 (tokens of the run) and 32 bits (rows of a matrix).
  void check_activation_bits() {
    const int64_t bits = config_.memory.activation_bits;
    if (!sound({"memory.activation_bits", "memory.recompute"}) || bits == 16) return;
    if (bits > 4) return fault("memory.activation_bits", "must be 16, 4, 3 or 2", "4");
    if (config_.memory.recompute == RecomputeKind::selective)
      fault("memory.activation_bits", "saves nothing with memory.recompute = \"selective\", which keeps the input", "16");
  }

  void check_totals() {
    const BatchConfig& batch = config_.batch;
    const int64_t length = config_.model.sequence_length;
    if (!sound({"batch.global", "batch.micro", "batch.accumulation", "model.sequence_length"})) return;
    if (batch.global == 0) return;  // left open by a fault elsewhere
    constexpr int64_t max_rows = std::numeric_limits<int32_t>::max();
    if (batch.micro > max_rows / length) {
      fault("batch.micro", fmt::format("times model.sequence_length = {} must be at most {} tokens", length, max_rows),
            nearest_integers(batch.micro, 1, max_rows / length, [&](int64_t n) { return batch.global % n == 0; }));
    }
    const int64_t step_tokens = batch.global * length;
    if (sound({"run.steps"}) && config_.run.steps > max_int64 / step_tokens) {
      fault("run.steps",
            fmt::format("times batch.global * model.sequence_length = {} * {} must be less than 2^63 tokens",
                        batch.global, length),
            fmt::format("{}", max_int64 / step_tokens));
    }
  }

  // What a run without any sharding would take, each part generously rounded up: below the limit no sum or product of
  // bytes that a plan forms can leave 64 bits, and no machine comes near it.
  void check_size() {
    if (!faults_.empty()) return;
    constexpr Amount limit = int64_t{1} << 62;
    const ModelConfig& model = config_.model;
    const Amount hidden = model.hidden_size, ffn = model.ffn_hidden_size, layers = model.num_layers;
    const Amount heads = Amount(model.num_heads) * model.head_size;
    const Amount vocabulary = model.vocab_size, length = model.sequence_length;
    constexpr int64_t bytes_of_parameter = 64;  // weights, gradients and state in all their forms
    const Amount of_block = hidden * heads * 4 + hidden * ffn * 3 + (hidden + heads + ffn) * 16;
    const Amount parameters = (layers * of_block + vocabulary * hidden * 2 + length * hidden) * bytes_of_parameter;
    constexpr int64_t bytes_of_feature = 64;  // of a row: what forward saves and backward adds
    const Amount features = (hidden + heads) * 32 + ffn * 16 + Amount(model.num_heads) * 32 + 64;
    const Amount rows = Amount(config_.batch.micro) * length;
    const Amount activations = rows * (layers + 4) * features * bytes_of_feature;
    constexpr int64_t default_chunk = 8192, bytes_of_logit = 64;
    const Amount chunk = std::max(config_.memory.loss_chunk_tokens, default_chunk);
    const Amount logits = chunk * (vocabulary + (int64_t{1} << 22)) * bytes_of_logit;
    const auto refuse = [&](const char* path, const char* what) {
      fault(path, fmt::format("makes {} too large for 64-bit sizes of bytes", what), "");
    };
    if (parameters >= limit) return refuse("model.hidden_size", "the weights and their state");
    if (activations >= limit) return refuse(rows > layers * hidden ? "batch.micro" : "model.num_layers", "activations");
    if (logits >= limit) return refuse("memory.loss_chunk_tokens", "logits");
    if ((parameters + activations + logits).too_large())
      refuse("model.hidden_size", "weights, activations and logits together");
  }

  void check_used() {
    const RunConfig defaults;
    for (const Field& field : fields()) {
      if (field.used(config_) || !sound({field.dependency->path.c_str()})) continue;
      if (is_given(field.path) && sound({field.path.c_str()})) {
        fault(field.path, "has no effect unless " + field.dependency->condition, "leaving it out");
      }
      field.set(config_, field.get(defaults));
    }
  }

  RunConfig& config_;
  const std::set<std::string>& given_;
  const int64_t world_size_;
  Faults& faults_;
};

// The most of `world_size` ranks for which the config has no fault. Where there are none: as few as hold one model, of
// whose faults none is the number's.
int64_t most_ranks_without_fault(const RunConfig& config, const std::set<std::string>& given, int64_t world_size,
                                 const Faults& faults) {
  const int64_t of_model = config.parallel.tensor * config.parallel.pipeline;
  if (!faults.empty() || world_size < of_model) return world_size;
  for (int64_t data = std::min(world_size / of_model, config.batch.global); data > 1; --data) {
    if (config.batch.global % data != 0) continue;
    RunConfig settled = config;
    Faults found;
    Settler(settled, given, data * of_model, found).run();
    if (found.empty()) return data * of_model;
  }
  return of_model;
}

}  // namespace

void settle(RunConfig& config, const std::set<std::string>& given, int64_t world_size, Faults& faults) {
  if (config.parallel.elastic) world_size = most_ranks_without_fault(config, given, world_size, faults);
  Settler(config, given, world_size, faults).run();
}

}  // namespace gptrain
