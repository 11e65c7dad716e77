#include <algorithm>
#include <bit>
#include <fmt/format.h>
#include <utility>

#include "base/dynamic_map.h"
#include "base/fp8.h"
#include "base/loss_scale.h"
#include "config/rules.h"

namespace gptrain::inline config {
namespace {

class MethodRules : Rules {
 public:
  explicit MethodRules(const RuleContext& context) : Rules(context) {}

  void run() {
    resolve_precision();
    resolve_optimizer();
    check_lr_curve();
    check_qk_clip();
  }

 private:
  void resolve_optimizer() {
    if (!sound({"optimizer.type"})) return;
    OptimizerConfig& optimizer = config_.optimizer;
    const bool lamb = optimizer.type == OptimizerKind::lamb;
    if (optimizer.type == OptimizerKind::lion && !is_given("optimizer.betas")) optimizer.beta2 = 0.99;
    if ((lamb || optimizer.sends_signs()) && !is_given("optimizer.betas")) optimizer.beta2 = 0.999;
    if (optimizer.sends_signs() && !is_given("optimizer.clip_norm")) optimizer.clip_norm = 0;
    if (lamb && !is_given("optimizer.eps")) optimizer.eps = 1e-6;
    if (optimizer.type == OptimizerKind::adafactor && !is_given("optimizer.eps")) optimizer.eps = 1e-30;
    check_mup();
    if (optimizer.type == OptimizerKind::adamw_8bit) check_replicated_blocks();
    check_kept_gradients();
    if (optimizer.type != OptimizerKind::muon) return;
    if (!is_given("optimizer.momentum")) optimizer.momentum = 0.95;
    if (!is_given("optimizer.nesterov")) optimizer.nesterov = optimizer.momentum > 0;
  }

  // Checks that the optimizer's update can read bf16 gradients, and that no average of the weights is kept: its
  // validation puts fp32 weights in the gradients' place.
  void check_kept_gradients() {
    const OptimizerConfig& optimizer = config_.optimizer;
    if (!sound({"precision.gradients", "optimizer.ema"}) || config_.precision.gradients == DType::f32) return;
    const auto& types = types_with_bf16_gradients;
    if (std::find(types.begin(), types.end(), optimizer.type) == types.end())
      fault("precision.gradients", "needs optimizer.type = adamw, adamw-8bit, lion or sgd", "\"fp32\"");
    if (optimizer.ema > 0) fault("precision.gradients", "needs optimizer.ema = 0", "\"fp32\"");
  }

  // Checks that scaling weights of queries and keys bounds the scores, and that all that follows the weights can
  // follow.
  void check_qk_clip() {
    const char* const path = "optimizer.qk_clip";
    if (!sound({path, "optimizer.type"}) || config_.optimizer.qk_clip == 0) return;
    if (sound({"model.qk_norm"}) && config_.model.qk_norm)
      fault(path, "has no effect beside model.qk_norm, which normalizes queries and keys", "0");
    if (sound({"model.attention_softcap"}) && config_.model.attention_softcap > 0)
      fault(path, "cannot be combined with model.attention_softcap, which bounds the scores already", "0");
    if (sound({"optimizer.ema"}) && config_.optimizer.ema > 0) fault(path, "needs optimizer.ema = 0", "0");
    if (sound({"precision.compute"}) && config_.precision.pure)
      fault(path, "needs fp32 master weights, which precision.compute = \"bf16-pure\" does not have", "0");
  }

  // muP's learning rates follow from how the size of an update depends on that of the gradients. These optimizers have
  // updates whose size does not depend on it.
  void check_mup() {
    const OptimizerKind type = config_.optimizer.type;
    if (!sound({"model.mup"}) || config_.model.mup == 0) return;
    if (type == OptimizerKind::adamw || type == OptimizerKind::adamw_8bit || type == OptimizerKind::lion) return;
    fault("model.mup", "needs optimizer.type = adamw, adamw-8bit or lion", "0");
  }

  // Checks that a key-value head held by several tensor ranks falls into the same blocks of optimizer state on each.
  void check_replicated_blocks() {
    const ModelConfig& model = config_.model;
    if (!sound({"parallel.tensor", "model.num_heads", "model.num_kv_heads", "model.head_size", "model.hidden_size"}))
      return;
    const int64_t of_head = model.head_size * model.hidden_size;
    if (config_.parallel.tensor <= model.num_kv_heads || of_head % state_block == 0) return;
    fault("optimizer.type",
          fmt::format("needs head_size x hidden_size = {} to be a multiple of {} where parallel.tensor is greater than "
                      "model.num_kv_heads = {}",
                      of_head, state_block, model.num_kv_heads),
          "\"adamw\"");
  }

  void resolve_precision() {
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
    const std::string dtype = show_value(dtype_word);
    if (is_fp8(precision.linears)) {
      check_fp8("precision.linears", dtype);
    } else if (precision.linears != precision.compute) {
      fault("precision.linears", fmt::format("must be fp8, or equal to precision.compute: {}", dtype), dtype);
    }
    resolve_weight_gradients(dtype);
  }

  // `dtype`: the name of precision.compute.
  void resolve_weight_gradients(const std::string& dtype) {
    constexpr const char* path = "precision.weight_gradients";
    PrecisionConfig& precision = config_.precision;
    if (!sound({path})) return;
    DType& factors = precision.weight_gradients;
    if (!is_given(path)) factors = precision.linears;
    if (factors == precision.linears) return;
    if (is_fp8(precision.linears))
      return fault(path, "cannot be combined with precision.linears = \"fp8\", whose products are all of FP8",
                   "\"fp8\"");
    if (is_fp8(factors)) return check_fp8(path, dtype);
    if (factors == DType::bf16 && precision.compute == DType::f32) return;
    const char* const less = precision.compute == DType::f32    ? " or \"bf16\""
                             : precision.compute == DType::bf16 ? " or \"fp8\""
                                                                : "";
    fault(path, fmt::format("must be {}{} with precision.compute = {}", dtype, less, dtype), dtype);
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

  // `path`: the key that asks for FP8; `dtype`: its value without FP8.
  void check_fp8(const std::string& path, const std::string& dtype) {
    if (config_.precision.compute != DType::bf16)
      return fault(path, fmt::format("needs precision.compute = bf16, not {}", dtype), dtype);
    if (sound({"run.device"}) && config_.run.device == DeviceKind::cpu)
      fault(path, "needs a GPU, not run.device = cpu", dtype);
    if (sound({"parallel.overlap_tensor"}) && config_.parallel.overlap_tensor)
      fault("parallel.overlap_tensor",
            fmt::format("cannot be combined with {} = \"fp8\": the scale of FP8 numbers needs all rows at once", path),
            "false");
    check_fp8_sizes(path + " = fp8");
  }

  // Tensor cores take FP8 matrices whose sizes, on each tensor rank, are multiples of 16.
  void check_fp8_sizes(const std::string& asked) {
    constexpr int64_t multiple = 16;
    const ModelConfig& model = config_.model;
    const int64_t tensor = sound({"parallel.tensor"}) ? config_.parallel.tensor : 1;
    const auto fits = [](int64_t n) { return n % multiple == 0; };
    const auto fits_ranks = [&](int64_t n) { return n % (multiple * tensor) == 0; };
    const std::string with = tensor > 1 ? fmt::format("{} and parallel.tensor = {}", asked, tensor) : asked;
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
      // A rank holds whole key-value heads; if there are more ranks than heads, a replica of one.
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
      const int64_t context = sound({"parallel.context"}) ? config_.parallel.context : 1;
      const int64_t rows = length / context;  // rows of a sequence on a rank
      const int64_t sequences = config_.batch.global / data_ranks();
      const auto fits_rows = [&](int64_t micro) { return fits(micro * rows) && sequences % micro == 0; };
      if (!fits(config_.batch.micro * rows)) {
        fault("batch.micro",
              fmt::format("times model.sequence_length{} = {}{} must be a multiple of 16 with {}",
                          context > 1 ? " / parallel.context" : "", length,
                          context > 1 ? fmt::format(" / {}", context) : "", asked),
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
      const std::string by = scaled ? fmt::format(" divided by {:g}, the factor of optimizer.lr_scaling", factor) : "";
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
};

}  // namespace

void resolve_method(const RuleContext& context) { MethodRules(context).run(); }

}  // namespace gptrain::config
