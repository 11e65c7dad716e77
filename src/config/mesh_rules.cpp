#include <algorithm>
#include <fmt/format.h>
#include <utility>

#include "config/rules.h"

namespace gptrain::inline config {
namespace {

// Upper limit of a schedule's length: actions per micro-batch times layers, embedding and head. At about 700 bytes
// each, the schedule then fits any machine's memory.
constexpr int64_t max_passes = int64_t{1} << 22;

// Returns the largest divisor of a data rank's sequences, at most 8.
int64_t default_micro(int64_t sequences) {
  int64_t micro = std::min<int64_t>(8, sequences);
  while (sequences % micro != 0) --micro;
  return micro;
}

class MeshRules : Rules {
 public:
  explicit MeshRules(const RuleContext& context) : Rules(context) {}

  void run() {
    check_tensor_parallel();
    resolve_pipeline();
    resolve_batch();
  }

 private:
  // Checks that heads and MLP columns divide evenly over the tensor ranks.
  void check_tensor_parallel() {
    const ModelConfig& model = config_.model;
    const int64_t tensor = config_.parallel.tensor;
    if (tensor == 1 || !sound({"parallel.tensor", "model.num_heads", "model.num_kv_heads", "model.ffn_hidden_size"})) {
      return;
    }
    const auto divides_heads = [&](int64_t n) { return model.num_heads % n == 0; };
    const auto divides_kv_heads = [&](int64_t n) { return model.num_kv_heads % n == 0 || n % model.num_kv_heads == 0; };
    const auto divides_ffn = [&](int64_t n) { return model.shares_ffn(n); };
    const std::string nearest = nearest_integers(tensor, 1, model.num_heads, [&](int64_t n) {
      return divides_heads(n) && divides_kv_heads(n) && divides_ffn(n);
    });
    if (!divides_heads(tensor)) {
      fault("parallel.tensor", fmt::format("must divide model.num_heads = {}", model.num_heads), nearest);
    } else if (!divides_kv_heads(tensor)) {
      fault("parallel.tensor",
            fmt::format("must divide model.num_kv_heads = {}, or be a multiple of it", model.num_kv_heads), nearest);
    } else if (const MoeConfig& moe = model.moe;
               moe.is_on() && (moe.ffn_hidden_size % tensor != 0 || moe.shared_ffn_hidden_size % tensor != 0)) {
      fault("parallel.tensor", "must divide model.moe's ffn_hidden_size and shared_ffn_hidden_size", nearest);
    } else if (!divides_ffn(tensor)) {
      fault("parallel.tensor", fmt::format("must divide model.ffn_hidden_size = {}", model.ffn_hidden_size), nearest);
    }
  }

  void resolve_pipeline() {
    ParallelConfig& parallel = config_.parallel;
    if (parallel.pipeline == 1) return;
    if (!sound({"parallel.pipeline", "parallel.pipeline_schedule", "parallel.virtual_stages", "model.num_layers"}))
      return;
    const auto [least, most] = chunks_of(parallel.pipeline_schedule);
    const std::string schedule(pipeline_order_names[parallel.pipeline_schedule]);
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

  // Checks the list of layers. The first and the last chunk also hold the embedding and the head.
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

  void check_overlap() {
    if (config_.parallel.overlap_tensor && sound({"parallel.tensor", "parallel.overlap_tensor"}) &&
        config_.parallel.tensor == 1)
      fault("parallel.overlap_tensor", "has no effect unless parallel.tensor is greater than 1", "false");
  }

  void check_sequence_rows() {
    const int64_t tensor = config_.parallel.tensor;
    if (!config_.parallel.sequence ||
        !sound({"parallel.tensor", "parallel.context", "batch.micro", "model.sequence_length"}))
      return;
    const int64_t length = config_.model.sequence_length, context = config_.parallel.context;
    const int64_t rows = config_.batch.micro * (length / context);
    if (rows % tensor != 0) {
      fault("parallel.tensor",
            fmt::format("must divide batch.micro * model.sequence_length{} = {} * {}{} with parallel.sequence",
                        context > 1 ? " / parallel.context" : "", config_.batch.micro, length,
                        context > 1 ? fmt::format(" / {}", context) : ""),
            nearest_integers(tensor, 1, tensor, [&](int64_t n) { return rows % n == 0; }));
    }
  }

  void resolve_batch() {
    if (!sound({"batch.global", "batch.micro", "batch.accumulation", "parallel.tensor"})) return;
    BatchConfig& batch = config_.batch;
    const int64_t data = data_ranks();
    const std::string over_ranks = data > 1 ? fmt::format(" / {} data ranks", data) : "";
    const bool has_global = is_given("batch.global");
    const bool has_micro = is_given("batch.micro");
    const bool has_accumulation = is_given("batch.accumulation");
    if (config_.parallel.elastic && has_accumulation) {
      return fault("batch.accumulation", "is computed from the number of ranks, as parallel.elastic is true",
                   "--set batch.accumulation=null or leaving it out");
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
    const int64_t sequences = batch.global / data;  // sequences per step of a data rank
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
    check_overlap();
    check_sequence_rows();
  }
};

}  // namespace

void resolve_mesh(const RuleContext& context) { MeshRules(context).run(); }

}  // namespace gptrain::config
