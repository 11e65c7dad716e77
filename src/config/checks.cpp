#include "config/checks.h"

#include <algorithm>
#include <fmt/format.h>
#include <initializer_list>
#include <limits>
#include <utility>

#include "config/fields.h"

namespace gptrain {
namespace {

constexpr int64_t max_int64 = std::numeric_limits<int64_t>::max();

// The largest divisor of the global batch up to 8.
int64_t default_micro(int64_t global) {
  int64_t micro = std::min<int64_t>(8, global);
  while (global % micro != 0) --micro;
  return micro;
}

class Settler {
 public:
  Settler(RunConfig& config, const std::set<std::string>& given, Faults& faults)
      : config_(config), given_(given), faults_(faults) {}

  void run() {
    check_presence();
    check_dropout();
    settle_model();
    settle_batch();
    settle_precision();
    check_schedule();
    check_totals();
    check_used();
  }

 private:
  bool is_given(const std::string& path) const { return given_.contains(path); }

  bool sound(std::initializer_list<const char*> paths) const {
    return std::none_of(paths.begin(), paths.end(), [&](const char* path) { return faults_.concern(path); });
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
    if (!sound({"model.hidden_size", "model.num_heads", "model.positions"})) return;

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
                        model.num_heads, model.head_size()),
            nearest);
    }
    if (kv_heads_sound && sound({"model.num_heads"}) && model.num_heads % model.num_kv_heads != 0) {
      fault("model.num_kv_heads", fmt::format("must divide model.num_heads = {}", model.num_heads),
            nearest_integers(model.num_kv_heads, 1, model.num_heads,
                             [&](int64_t heads) { return model.num_heads % heads == 0; }));
    }
  }

  void settle_batch() {
    if (!sound({"batch.global", "batch.micro", "batch.accumulation"})) return;
    BatchConfig& batch = config_.batch;
    const bool has_global = is_given("batch.global");
    const bool has_micro = is_given("batch.micro");
    const bool has_accumulation = is_given("batch.accumulation");
    if (!has_global && !(has_micro && has_accumulation)) {
      return faults_.add("batch.global", "", "must be given, or both batch.micro and batch.accumulation",
                         find_field("batch.global")->example);
    }
    if (!has_global) batch.global = batch.micro * batch.accumulation;
    if (batch.global > max_batch_sequences) {
      return fault("batch.accumulation",
                   fmt::format("times batch.micro = {} must be at most {}", batch.micro, max_batch_sequences),
                   fmt::format("{}", max_batch_sequences / batch.micro));
    }
    for (const auto& [path, value] :
         {std::pair{"batch.micro", batch.micro}, {"batch.accumulation", batch.accumulation}}) {
      if (is_given(path) && batch.global % value != 0) {
        return fault(path, fmt::format("must divide batch.global = {}", batch.global),
                     nearest_integers(value, 1, batch.global, [&](int64_t n) { return batch.global % n == 0; }));
      }
    }
    if (!has_micro) batch.micro = has_accumulation ? batch.global / batch.accumulation : default_micro(batch.global);
    const int64_t accumulation = batch.global / batch.micro;
    if (has_accumulation && batch.accumulation != accumulation) {
      return fault("batch.accumulation",
                   fmt::format("must be batch.global / batch.micro = {} / {}", batch.global, batch.micro),
                   fmt::format("{}", accumulation));
    }
    batch.accumulation = accumulation;
  }

  void settle_precision() {
    PrecisionConfig& precision = config_.precision;
    if (!sound({"precision.compute", "precision.residual"})) return;
    if (!is_given("precision.residual")) precision.residual = precision.compute;
    if (precision.compute == DType::f32 && precision.residual != DType::f32) {
      fault("precision.residual", "must be fp32 with precision.compute = fp32", "\"fp32\"");
    }
  }

  void check_schedule() {
    const ScheduleConfig& schedule = config_.schedule;
    const int64_t steps = config_.run.steps;
    if (sound({"schedule.warmup_steps", "run.steps"}) && schedule.warmup_steps > steps) {
      fault("schedule.warmup_steps", fmt::format("must be at most run.steps = {}", steps), fmt::format("{}", steps));
    }
    if (schedule.type == ScheduleKind::wsd &&
        sound({"schedule.type", "schedule.decay_steps", "schedule.warmup_steps", "run.steps"}) &&
        schedule.decay_steps > steps - schedule.warmup_steps) {
      const int64_t most = steps - schedule.warmup_steps;
      fault("schedule.decay_steps",
            fmt::format("must be at most run.steps - schedule.warmup_steps = {} - {}", steps, schedule.warmup_steps),
            most > 0 ? fmt::format("{}", most) : "fewer schedule.warmup_steps");
    }
    if (schedule.type != ScheduleKind::constant && sound({"schedule.type", "schedule.min_lr", "optimizer.lr"}) &&
        schedule.min_lr > config_.optimizer.lr) {
      fault("schedule.min_lr", fmt::format("must be at most optimizer.lr = {}", config_.optimizer.lr),
            fmt::format("{}", config_.optimizer.lr));
    }
  }

  // Products that later code forms in 64 (tokens of the run) and 32 bits (rows of a matrix).
  void check_totals() {
    const BatchConfig& batch = config_.batch;
    const int64_t length = config_.model.sequence_length;
    if (!sound({"batch.global", "batch.micro", "batch.accumulation", "model.sequence_length"})) return;
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

  void check_used() {
    const RunConfig defaults;
    for (const Field& field : fields()) {
      if (field.used(config_) || faults_.concern(field.dependency->path)) continue;
      if (is_given(field.path) && sound({field.path.c_str()})) {
        fault(field.path, "has no effect unless " + field.dependency->condition, "leaving it out");
      }
      field.set(config_, field.get(defaults));
    }
  }

  RunConfig& config_;
  const std::set<std::string>& given_;
  Faults& faults_;
};

}  // namespace

void settle(RunConfig& config, const std::set<std::string>& given, Faults& faults) {
  Settler(config, given, faults).run();
}

}  // namespace gptrain
