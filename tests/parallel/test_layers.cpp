// Layers run by hand: their declared buffer uses are true, and W may run at any time once its records exist.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "catch.h"
#include "comm/world.h"
#include "fit/fixed_choices.h"
#include "model/model.h"
#include "model/spec/tensor_key.h"
#include "model_fixture.h"
#include "step/training_step.h"

namespace test_layers {

using namespace gptrain;
using namespace gptrain::testing;

namespace {

constexpr int64_t plenty = int64_t{4} << 20;
constexpr int poison = 0xFF;  // NaN in every dtype

// Memory filled with poison, aligned as arenas are.
class BufferMemory {
 public:
  explicit BufferMemory(int64_t bytes) : bytes_(static_cast<size_t>(bytes) + memory_alignment) { spoil(); }
  std::byte* data() {
    const auto address = reinterpret_cast<uintptr_t>(bytes_.data());
    return bytes_.data() + (memory_alignment - address % memory_alignment) % memory_alignment;
  }
  void spoil() { std::memset(bytes_.data(), poison, bytes_.size()); }
  bool is_spoilt() const {
    return std::all_of(bytes_.begin(), bytes_.end(), [](std::byte b) { return b == std::byte{poison}; });
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

// One pass of a layer, or two at once.
struct Step {
  std::vector<UnitPass> passes;
  int64_t micro_batch, unit;
};

using Program = std::vector<Step>;
using enum UnitPass;

// Adds all passes of a micro-batch up to the head's backward.
void add_forward(Program& program, int64_t micro_batch, int64_t num_layers, const std::vector<bool>& recomputed) {
  for (int64_t unit = 0; unit < num_layers; ++unit) program.push_back({{forward}, micro_batch, unit});
  for (int64_t unit = num_layers - 1; unit > 0; --unit) {
    if (recomputed[static_cast<size_t>(unit)]) program.push_back({{recompute}, micro_batch, unit});
  }
  program.push_back({{loss}, micro_batch, num_layers - 1});
  program.push_back({{backward_input, backward_weight}, micro_batch, num_layers - 1});
}

// Runs each micro-batch to its end, B and W at once.
Program joint_program(int64_t micro_batches, int64_t num_layers) {
  Program program;
  for (int64_t m = 0; m < micro_batches; ++m) {
    add_forward(program, m, num_layers, std::vector<bool>(static_cast<size_t>(num_layers)));
    for (int64_t unit = num_layers - 2; unit >= 0; --unit)
      program.push_back({{backward_input, backward_weight}, m, unit});
  }
  return program;
}

// Runs B of all micro-batches, and then all W in unit order, the reverse of B's.
Program late_weights_program(int64_t micro_batches, int64_t num_layers, const std::vector<bool>& recomputed) {
  Program program;
  for (int64_t m = 0; m < micro_batches; ++m) {
    add_forward(program, m, num_layers, recomputed);
    for (int64_t unit = num_layers - 2; unit > 0; --unit) program.push_back({{backward_input}, m, unit});
  }
  for (int64_t m = 0; m < micro_batches; ++m) {
    for (int64_t unit = 0; unit + 1 < num_layers; ++unit) program.push_back({{backward_weight}, m, unit});
  }
  return program;
}

SavedPart saved_part(RecomputeKind kind) {
  if (kind == RecomputeKind::selective) return SavedPart::products;
  return kind == RecomputeKind::ffn ? SavedPart::attention : SavedPart::nothing;
}

// One rank's model with a buffer for everything; a buffer is poisoned once no later pass declares that it reads it.
class Player {
 public:
  Player(const RunConfig& config, RankGroups& groups)
      : backend_(make_cpu_backend(1)),
        spec_(make_spec(config.model)),
        shards_(shard_tensors(spec_, groups.on_tensor_axis())),
        layout_(make_layout(spec_, shards_, {1})),
        weights_(layout_.elements * 4),
        norms_(layout_.elements * 4),
        gradients_(layout_.elements * 4),
        scratch_(plenty),
        frames_(plenty),
        model_({.model = config.model,
                .precision = config.precision,
                .batch = config.batch.micro,
                .sequence_length = config.model.sequence_length,
                .seed = config.run.seed,
                .saved_parts = std::vector<SavedPart>(static_cast<size_t>(config.model.num_layers),
                                                      saved_part(config.memory.recompute)),
                .choices = layer_choices(config.memory, backend_->target())},
               spec_, shards_, layout_,
               {.tensor = {.axis = groups.on_tensor_axis(),
                           .sequence = groups.on_tensor_axis().size > 1 && config.parallel.sequence,
                           .group = groups.group(LaneKind::tensor, GroupKind::tensor),
                           .lane = &groups.lane(LaneKind::tensor)}},
               *backend_),
        config_(config) {
    backend_->set_scratch(scratch_.data(), plenty);
    state_.inverse_tokens = 1e-2F;
    auto* const norms = reinterpret_cast<float*>(norms_.data());
    for (size_t i = 0; i < spec_.tensors.size(); ++i) {
      // Any fixed weights will do; biases must not be zero either.
      std::vector<float> values(static_cast<size_t>(shards_[i].count()));
      backend_->run(NormalValues{
          .key = tensor_key(spec_.tensors[i], 3, RandomUse::initial_weights),
          .deviation = 0.05F,
          .first = 0,
          .row_step = 0,
          .to = Matrix(values.data(), DType::f32, 1, std::min(shards_[i].count(), spec_.tensors[i].count()))});
      const int64_t offset = layout_.segments[i].offset;
      std::copy(values.begin(), values.end(), norms + offset);
      const auto count = static_cast<int64_t>(values.size());
      backend_->run(Cast{.from = Matrix(values.data(), DType::f32, 1, count),
                         .to = Matrix(weights_.data() + offset * dtype_bytes(config.precision.compute),
                                      config.precision.compute, 1, count)});
    }
  }

  const Model& model() const { return model_; }

  // Returns the gradients of every unit and micro-batch; one slot per unit holds them in turn, as with ZeRO 2 and 3.
  std::map<std::pair<int64_t, int64_t>, std::vector<std::byte>> play(const Program& program) {
    std::map<std::pair<int64_t, int64_t>, std::vector<std::byte>> results;
    RandomBatches source(config_);
    gradients_.spoil();
    for (size_t i = 0; i < program.size(); ++i) {
      const Step& step = program[i];
      if (step.passes.front() == forward && step.unit == 0) upload(step.micro_batch, source);
      frames_.spoil();
      run(step);
      spoil_what_is_over(program, i);
      if (step.passes.back() != backward_weight) {
        if (step.passes.back() != loss && !gradients_.is_spoilt())
          throw std::logic_error("a pass before W writes gradients of weights");
        continue;
      }
      const UnitRange& range = layout_.units[static_cast<size_t>(step.unit)];
      std::byte* const first = gradients_.data() + range.offset * 4;
      results[{step.unit, step.micro_batch}].assign(first, first + range.elements * 4);
      std::memset(first, poison, static_cast<size_t>(range.elements * 4));
    }
    return results;
  }

 private:
  // A stream buffer is named by the unit that reads it in forward, a gradient of the stream by the unit that reads it
  // in backward.
  using Name = std::tuple<Operand, int64_t, int64_t>;  // operand, micro-batch, unit

  static Name name_of(Operand buffer, const Step& step) {
    if (buffer == Operand::output) return {Operand::input, step.micro_batch, step.unit + 1};
    if (buffer == Operand::d_input) return {Operand::d_output, step.micro_batch, step.unit - 1};
    return {buffer, step.micro_batch, step.unit};
  }

  int64_t bytes_of(Operand buffer, int64_t unit) const {
    const LayerRecords& records = model_.records(std::clamp<int64_t>(unit, 0, model_.num_layers() - 1));
    switch (buffer) {
      case Operand::saved_for_recompute:
        return records.saved_for_recompute_bytes;
      case Operand::saved_for_input:
        return records.saved_for_input_bytes;
      case Operand::saved_for_weight:
        return records.saved_for_weight_bytes;
      case Operand::gradients:
        return records.gradients_bytes;
      case Operand::batch:
        return model_.shape().micro_batch().bytes();
      case Operand::d_output:
        return model_.stream_gradient_bytes(unit);
      default:
        return model_.stream_bytes();
    }
  }

  BufferMemory& memory_of(Operand buffer, const Step& step) {
    const Name name = name_of(buffer, step);
    return memories_.try_emplace(name, bytes_of(buffer, std::get<2>(name))).first->second;
  }

  // All units read the same micro-batch.
  MicroBatch micro_batch(int64_t m) {
    return MicroBatch::at(memory_of(Operand::batch, {{}, m, 0}).data(), model_.shape().micro_batch());
  }

  void upload(int64_t m, RandomBatches& source) {
    const MicroBatch& from = source.next();
    std::memcpy(micro_batch(m).tokens, from.tokens, static_cast<size_t>(model_.shape().micro_batch().bytes()));
  }

  LayerCall call_of(const Step& step) {
    LayerCall call;
    const UnitRange& range = layout_.units[static_cast<size_t>(step.unit)];
    call.parameters = {weights_.data() + range.offset * dtype_bytes(config_.precision.compute),
                       norms_.data() + range.offset * 4, gradients_.data() + range.offset * 4};
    const UnitRange& head = layout_.units.back();
    call.head_matrix = {weights_.data() + head.offset * dtype_bytes(config_.precision.compute),
                        norms_.data() + head.offset * 4, gradients_.data() + head.offset * 4};
    const MicroBatch batch = micro_batch(step.micro_batch);
    call.tokens = batch.tokens;
    call.targets = batch.targets;
    call.sample_ids = batch.sample_ids;
    call.document_starts = batch.document_starts;
    call.state = &state_;
    call.workspace = &workspace_;
    call.input = memory_of(Operand::input, step).data();
    call.output = memory_of(Operand::output, step).data();
    call.saved_for_recompute = memory_of(Operand::saved_for_recompute, step).data();
    call.saved_for_input = memory_of(Operand::saved_for_input, step).data();
    call.saved_for_weight = memory_of(Operand::saved_for_weight, step).data();
    call.gradients = memory_of(Operand::gradients, step).data();
    call.d_output = memory_of(Operand::d_output, step).data();
    call.d_input = memory_of(Operand::d_input, step).data();
    const int64_t fp8_bytes = model_.records(step.unit).fp8_weights_bytes;
    if (fp8_bytes > 0) {
      call.fp8_weights = fp8_weights_.try_emplace(step.unit, fp8_bytes).first->second.data();
      call.prepare_weights = step.passes.front() == forward;
    }
    return call;
  }

  void run(const Step& step) {
    workspace_ = Workspace(frames_.data(), plenty);
    const LayerCall call = call_of(step);
    Layer& layer = model_.layer(step.unit);
    if (step.passes.size() == 2) return layer.backward(call, BackwardPart::both);
    switch (step.passes.front()) {
      case forward:
        return layer.forward(call);
      case recompute:
        return layer.recompute(call);
      case loss:
        return model_.head().loss(call);
      case evaluate:
        return model_.head().evaluate(call);
      case backward_input:
        return layer.backward(call, BackwardPart::input);
      case backward_weight:
        return layer.backward(call, BackwardPart::weight);
    }
  }

  // Returns true if a later pass reads the buffer before another overwrites it.
  bool is_read_later(const Program& program, size_t done, const Name& name) const {
    for (size_t i = done + 1; i < program.size(); ++i) {
      for (const UnitPass pass : program[i].passes) {
        const OperandUse& use = model_.records(program[i].unit).use(pass);
        for (const Operand buffer : buffers) {
          if (name_of(buffer, program[i]) != name) continue;
          if (use.reads.contains(buffer)) return true;
          if (use.writes.contains(buffer)) return false;
        }
      }
    }
    return false;
  }

  void spoil_what_is_over(const Program& program, size_t done) {
    for (auto& [name, memory] : memories_) {
      if (std::get<0>(name) != Operand::batch && !is_read_later(program, done, name)) memory.spoil();
    }
  }

  static constexpr std::array buffers = {
      Operand::input,           Operand::output,           Operand::saved_for_recompute,
      Operand::saved_for_input, Operand::saved_for_weight, Operand::gradients,
      Operand::d_output,        Operand::d_input};

  const std::unique_ptr<Backend> backend_;
  const ModelSpec spec_;
  const std::vector<TensorShard> shards_;
  const ParameterLayout layout_;
  BufferMemory weights_, norms_, gradients_, scratch_, frames_;
  Workspace workspace_;
  StepState state_;
  const Model model_;
  const RunConfig config_;
  std::map<Name, BufferMemory> memories_;
  std::map<int64_t, BufferMemory> fp8_weights_;
};

struct Case {
  Family family;
  int64_t tensor;
  bool sequence;
  std::vector<std::string> overrides;
};

const std::vector<Case>& cases() {
  static const std::vector<std::string> fp8 = {"model.hidden_size=64",     "model.ffn_hidden_size=128",
                                               "model.sequence_length=20", "run.device=auto",
                                               "precision.compute=bf16",   "precision.linears=fp8"};
  static const std::vector<std::string> gemma = {"model.norm_after=true", "model.norm_offset=true",
                                                 "model.embedding_scale=6.5", "model.logit_softcap=5",
                                                 R"(model.positions_pattern=["rope","none"])"};
  static const auto with = [](std::vector<std::string> all, const std::vector<std::string>& more) {
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  static const std::vector<Case> all = {
      {.family = Family::gpt2, .tensor = 1, .sequence = false, .overrides = {}},
      {.family = Family::gpt2, .tensor = 1, .sequence = false, .overrides = {"model.dropout=0.1"}},
      {.family = Family::llama,
       .tensor = 1,
       .sequence = false,
       .overrides = {"precision.compute=bf16", "precision.residual=fp32", "data.mask_documents=true"}},
      {.family = Family::gpt2, .tensor = 2, .sequence = false, .overrides = {"model.dropout=0.1"}},
      {.family = Family::gpt2, .tensor = 2, .sequence = true, .overrides = {}},
      {.family = Family::llama, .tensor = 2, .sequence = false, .overrides = {"precision.compute=bf16"}},
      {.family = Family::llama, .tensor = 2, .sequence = true, .overrides = {"model.dropout=0.1"}},
      {.family = Family::llama, .tensor = 2, .sequence = true, .overrides = with(gemma, {"model.dropout=0.1"})},
      {.family = Family::gpt2,
       .tensor = 1,
       .sequence = false,
       .overrides = {"model.norm_after=true", "memory.saved_inputs=8"}},
      {.family = Family::gpt2,
       .tensor = 2,
       .sequence = false,
       .overrides = {"model.norm_after=true", "memory.recompute=selective"}},
      {.family = Family::llama, .tensor = 1, .sequence = false, .overrides = with(fp8, gemma)},
      {.family = Family::gpt2, .tensor = 1, .sequence = false, .overrides = fp8},
      {.family = Family::llama, .tensor = 2, .sequence = false, .overrides = fp8},
      {.family = Family::gpt2, .tensor = 2, .sequence = true, .overrides = with(fp8, {"model.dropout=0.1"})},
      {.family = Family::gpt2,
       .tensor = 1,
       .sequence = false,
       .overrides = {"memory.saved_inputs=8", "model.dropout=0.1"}},
      {.family = Family::llama,
       .tensor = 2,
       .sequence = true,
       .overrides = {"memory.saved_inputs=8", "precision.compute=bf16"}},
      {.family = Family::gpt2,
       .tensor = 1,
       .sequence = false,
       .overrides = {R"(memory.linear_projection={"kind":"gauss","share":0.3})", "model.dropout=0.1"}},
      {.family = Family::gpt2,
       .tensor = 2,
       .sequence = true,
       .overrides = {"precision.weight_gradients=bf16", "memory.recompute=selective"}},
      {.family = Family::llama,
       .tensor = 2,
       .sequence = true,
       .overrides = {R"(memory.linear_projection={"kind":"rows"})", "precision.compute=bf16"}},
      {.family = Family::gpt2,
       .tensor = 1,
       .sequence = false,
       .overrides = {"memory.recompute=selective", "model.dropout=0.1"}},
      {.family = Family::llama,
       .tensor = 2,
       .sequence = true,
       .overrides = {"memory.recompute=selective", "model.qk_norm=true", "data.mask_documents=true"}},
      {.family = Family::llama,
       .tensor = 2,
       .sequence = false,
       .overrides = with(fp8, {"memory.recompute=selective", "model.dropout=0.1"})},
      {.family = Family::gpt2,
       .tensor = 1,
       .sequence = false,
       .overrides = {"model.norm_after=true", "memory.recompute=ffn", "model.dropout=0.1"}},
      {.family = Family::llama,
       .tensor = 2,
       .sequence = true,
       .overrides = {"memory.recompute=ffn", "model.qk_norm=true", "data.mask_documents=true"}},
      {.family = Family::llama, .tensor = 2, .sequence = false, .overrides = with(fp8, {"memory.recompute=ffn"})}};
  return all;
}

}  // namespace

TEST_CASE("every W may wait until all B are over, with the same bits, and nothing else is kept than is said",
          "[long]") {
  for (const Case& c : cases()) {
    std::string name = "tensor " + std::to_string(c.tensor) + (c.sequence ? " sequence" : "");
    for (const std::string& text : c.overrides) name += " " + text;
    INFO((c.family == Family::gpt2 ? "gpt2 " : "llama ") << name);
    std::vector<std::string> overrides = {"model.num_heads=4", "model.tied_head=false",
                                          "parallel.tensor=" + std::to_string(c.tensor)};
    if (c.sequence) overrides.push_back("parallel.sequence=true");
    overrides.insert(overrides.end(), c.overrides.begin(), c.overrides.end());
    const RunConfig config = small_config(c.family, overrides, c.tensor);
    std::vector<std::string> faults(static_cast<size_t>(c.tensor), "did not run");
    run_local_ranks(static_cast<int>(c.tensor), [&](World& world) {
      RankGroups groups(config, world);
      Player player(config, groups);
      std::string& fault = faults[static_cast<size_t>(world.rank())];
      const int64_t num_layers = player.model().num_layers();
      std::vector<bool> recomputed(static_cast<size_t>(num_layers));
      recomputed[2] = true;
      const auto joint = player.play(joint_program(2, num_layers));
      const auto late_weights = player.play(late_weights_program(2, num_layers, recomputed));
      fault = joint.size() == static_cast<size_t>(2 * num_layers) ? "" : "a unit has no gradients";
      for (const auto& [unit_and_row, bytes] : joint) {
        const bool changed =
            std::any_of(bytes.begin(), bytes.end(), [](std::byte b) { return b != std::byte{poison}; });
        if (!changed) fault = "a unit has no gradients";
        if (bytes != late_weights.at(unit_and_row)) fault = "unit " + std::to_string(unit_and_row.first) + " differs";
      }
      // Reading a poisoned buffer makes gradients NaN.
      const ModelSpec spec = make_spec(config.model);
      const std::vector<TensorShard> shards = shard_tensors(spec, groups.on_tensor_axis());
      const ParameterLayout layout = make_layout(spec, shards, {1});
      for (size_t i = 0; i < spec.tensors.size(); ++i) {
        const TensorSpec& tensor = spec.tensors[i];
        const int64_t first = layout.segments[i].offset - layout.units[static_cast<size_t>(tensor.unit)].offset;
        const auto* const values = reinterpret_cast<const float*>(late_weights.at({tensor.unit, 1}).data()) + first;
        if (!std::all_of(values, values + shards[i].count(), [](float g) { return std::isfinite(g); }))
          fault = tensor.name + " is not finite";
      }
    });
    for (const std::string& fault : faults) CHECK(fault == "");
  }
}

TEST_CASE("what a block saves lies in the record of its last reader") {
  const auto block_of = [](const std::vector<std::string>& overrides) {
    const RunConfig config = small_config(Family::gpt2, overrides);
    OneRank rank(config);
    const Player player(config, rank.groups);
    CHECK(player.model().records(1) == player.model().records(2));
    return player.model().records(1);
  };
  const auto names = [](const LayerRecords& records, RecordKind kind) {
    std::vector<std::string> found;
    for (const LayerRecords::Entry& entry : records.entries)
      if (entry.record == kind) found.push_back(entry.tensor.name);
    std::sort(found.begin(), found.end());
    return found;
  };
  using Names = std::vector<std::string>;
  const LayerRecords plain = block_of({});
  CHECK(names(plain, RecordKind::saved_for_input) == Names{"attention.lse", "attention.qkv", "ffn.hidden", "mid",
                                                           "norm1.mean", "norm1.rstd", "norm2.mean", "norm2.rstd"});
  CHECK(names(plain, RecordKind::saved_for_weight) == Names{"attention.o", "attention.qkv.x", "ffn.in.x", "ffn.out.x"});
  CHECK(names(plain, RecordKind::gradients) ==
        Names{"attention.qkv.dy", "d_mid", "ffn.in.dy", "norm1.sums", "norm1.sums", "norm2.sums", "norm2.sums"});
  CHECK(plain.use(backward_weight).reads.contains(Operand::d_output));
  // 76 rows of f32, widths 36, 108 and 144; statistics of 304 bytes take 512, as do sums of 36 f64.
  const auto matrix = [](int64_t width) { return align_up(76 * width * 4); };
  CHECK(plain.saved_for_input_bytes == matrix(108) + matrix(144) + matrix(36) + align_up(4 * 3 * 19 * 4) + 4 * 512);
  CHECK(plain.saved_for_weight_bytes == 3 * matrix(36) + matrix(144));
  CHECK(plain.gradients_bytes == matrix(108) + matrix(36) + matrix(144) + 4 * 512);

  // Outputs of products are kept; all else exists from the recomputation to the pass that reads it.
  const LayerRecords selective = block_of({"memory.recompute=selective"});
  CHECK(names(selective, RecordKind::saved_for_recompute) == Names{"attention.qkv", "ffn.hidden", "mid"});
  CHECK(names(selective, RecordKind::saved_for_input) ==
        Names{"attention.lse", "norm1.mean", "norm1.rstd", "norm2.mean", "norm2.rstd"});
  CHECK(names(selective, RecordKind::saved_for_weight) == names(plain, RecordKind::saved_for_weight));
  CHECK(selective.saved_for_recompute_bytes == matrix(108) + matrix(144) + matrix(36));
  CHECK(plain.saved_for_recompute_bytes == 0);

  // Attention's values and the stream behind it are kept; W reads attention's output.
  const LayerRecords ffn = block_of({"memory.recompute=ffn"});
  CHECK(names(ffn, RecordKind::saved_for_recompute) == Names{"attention.lse", "attention.o", "attention.qkv", "mid"});
  CHECK(names(ffn, RecordKind::saved_for_input) ==
        Names{"ffn.hidden", "norm1.mean", "norm1.rstd", "norm2.mean", "norm2.rstd"});
  CHECK(names(ffn, RecordKind::saved_for_weight) == Names{"attention.qkv.x", "ffn.in.x", "ffn.out.x"});
  CHECK(ffn.use(backward_weight).reads.contains(Operand::saved_for_recompute));
  CHECK(!selective.use(backward_weight).reads.contains(Operand::saved_for_recompute));

  // Codes replace the tensors that they encode. One of these is the incoming stream, which B then does not read.
  const LayerRecords coded = block_of({"memory.saved_inputs=8"});
  CHECK(names(coded, RecordKind::saved_for_weight) == names(plain, RecordKind::saved_for_weight));
  CHECK(names(coded, RecordKind::saved_for_input) == Names{"attention.lse", "attention.qkv", "ffn.hidden", "mid",
                                                           "norm1.mean", "norm1.rstd", "norm1.x", "norm2.mean",
                                                           "norm2.rstd"});
  const auto codes = [](int64_t width) { return align_up(76 * width) + align_up(76 * ((width + 127) / 128) * 4); };
  CHECK(coded.saved_for_weight_bytes == 3 * codes(36) + codes(144));
  CHECK(coded.saved_for_input_bytes == matrix(108) + matrix(144) + 2 * codes(36) + align_up(4 * 3 * 19 * 4) + 4 * 512);
  CHECK(plain.use(backward_input).reads.contains(Operand::input));
  CHECK(!coded.use(backward_input).reads.contains(Operand::input));

  // Inputs of linears in bf16; B also reads attention's output.
  const LayerRecords rounded = block_of({"precision.weight_gradients=bf16"});
  CHECK(names(rounded, RecordKind::saved_for_weight) == names(plain, RecordKind::saved_for_weight));
  CHECK(rounded.saved_for_weight_bytes == matrix(36) + 2 * align_up(76 * 36 * 2) + align_up(76 * 144 * 2));
  CHECK(rounded.saved_for_input_bytes == plain.saved_for_input_bytes);

  const LayerRecords dropped = block_of({"model.dropout=0.1"});
  CHECK(names(dropped, RecordKind::gradients) == Names{"attention.out.dy", "attention.qkv.dy", "ffn.in.dy",
                                                       "ffn.out.dy", "norm1.sums", "norm1.sums", "norm2.sums",
                                                       "norm2.sums"});
  CHECK(!dropped.use(backward_weight).reads.contains(Operand::d_output));
}

TEST_CASE("only where a layer reads the amax of its output's gradient is there memory for it") {
  const RunConfig config =
      small_config(Family::gpt2, {"model.hidden_size=64", "model.num_heads=4", "model.ffn_hidden_size=128",
                                  "model.sequence_length=20", "precision.compute=bf16",
                                  "precision.weight_gradients=fp8", "run.device=auto"});
  OneRank rank(config);
  const Player player(config, rank.groups);
  const Model& model = player.model();
  CHECK(model.stream_gradient_bytes(0) == model.stream_bytes());
  CHECK(model.stream_gradient_bytes(1) == model.stream_bytes() + align_up(amax_parts * dtype_bytes(DType::f32)));
}

}  // namespace test_layers
