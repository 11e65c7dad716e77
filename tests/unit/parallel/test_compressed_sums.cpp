// Sums of compressed gradients: no part of a gradient is lost, and all ranks find the same sum.
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "catch.h"
#include "model_fixture.h"
#include "ops/backend.h"
#include "parallel/compressed_reducer.h"
#include "parallel/parameter_exchange.h"

namespace gptrain::compressed_sums_test {
namespace {

using testing::Family;
using testing::small_config;

constexpr int64_t num_ranks = 3;
constexpr int num_steps = 5, skipped_step = 2;

void expect(bool condition, const std::string& text) {
  if (!condition) throw Error(ExitCode::device, "{}", text);
}

// Numbers without a pattern, whose sizes differ between tensors and elements by orders of magnitude.
float gradient_of(int64_t unit, int64_t element, int64_t rank, int64_t sum) {
  const auto word = static_cast<uint32_t>(element * 2654435761 + unit * 40503 + rank * 9973 + sum * 7919);
  const uint32_t mixed = (word ^ word >> 15) * 2246822519U;
  return static_cast<float>(static_cast<int32_t>(mixed ^ mixed >> 13)) * 0x1p-31F *
         std::exp2(static_cast<float>(element / 700 % 9));
}

struct SumOfUnit {
  std::vector<double> applied;    // sums that steps have left
  std::vector<double> gradients;  // sums of all ranks' gradients in the steps that were not skipped
};

// A rank that sums gradients of a small model without training it.
class Rank {
 public:
  Rank(World& world, const RunConfig& config)
      : config_(config),
        groups_(config, world),
        rank_(world.rank()),
        spec_(make_spec(config.model)),
        shards_(shard_tensors(spec_, {1, 0})),
        sharding_{.zero = config.parallel.zero,
                  .places = {groups_.place(CopyGroup::data), groups_.place(CopyGroup::expert_data)}},
        layout_(make_layout(spec_, shards_, sharding_.copies())),
        messages_(make_gradient_messages(config.comm.compression, spec_, shards_, layout_, 1)) {
    const ParameterBytes bytes = parameter_bytes(layout_, sharding_, {});
    weights_.resize(static_cast<size_t>(bytes.weights));
    gradients_.resize(static_cast<size_t>(bytes.gradients));
    store_ = std::make_unique<ParameterStore>(
        spec_, shards_, layout_, sharding_,
        ParameterBuffers{
            .weights = weights_.data(), .gradients = gradients_.data(), .master = nullptr, .state = nullptr});
    for (std::vector<float>* const buffer : {&residuals_, &errors_})
      buffer->resize(static_cast<size_t>(messages_.num_residuals));
  }

  // Checks the sums of several steps.
  void check_steps() {
    const bool keeps = config_.comm.compression.error;
    const GradientCompression compression{
        .messages = messages_,
        .residuals = keeps ? reinterpret_cast<std::byte*>(residuals_.data()) : nullptr,
        .errors = keeps ? reinterpret_cast<std::byte*>(errors_.data()) : nullptr,
        .state = &state_};
    ParameterExchange exchange(*store_, groups_, *backend_, nullptr, [&](const ReductionContext& context, CopyGroup) {
      return make_compressed_reducer(context, compression);
    });
    for (int step = 0; step < num_steps; ++step) {
      state_.skip = step == skipped_step ? 1 : 0;
      const std::vector<float> before = residuals_;
      for (int64_t unit = 0; unit < store_->num_parameter_units(); ++unit) sum(exchange, unit, step);
      for (int64_t unit = 0; unit < store_->num_parameter_units(); ++unit) exchange.end_step(unit);
      expect(state_.skip == 0 || residuals_ == before, "a skipped step changes the errors");
      expect(!keeps || state_.skip != 0 || residuals_ != before, "a step leaves no errors");
    }
    for (int64_t unit = 0; unit < store_->num_parameter_units(); ++unit) check_sum(unit);
  }

 private:
  const UnitRange& range(int64_t unit) const { return layout_.units[static_cast<size_t>(unit)]; }

  // Sums a unit's gradients of two micro-batches, with ZeRO 2 each of them.
  void sum(ParameterExchange& exchange, int64_t unit, int step) {
    const int64_t sums = sharding_.cuts_gradients() ? 2 : 1;
    const UnitMessages& messages = messages_.units[static_cast<size_t>(unit)];
    SumOfUnit& all = sums_.try_emplace(unit).first->second;
    all.applied.resize(static_cast<size_t>(range(unit).elements));
    all.gradients.resize(all.applied.size());
    std::vector<float> bucket(all.applied.size());
    std::vector<std::byte> buffer(static_cast<size_t>(messages.buffer_bytes()));
    for (int64_t micro_batch = 0; micro_batch < sums; ++micro_batch) {
      const int64_t number = step * sums + micro_batch;
      std::byte* const whole = store_->whole(unit, nullptr, reinterpret_cast<std::byte*>(bucket.data())).gradients;
      for (int64_t i = 0; i < range(unit).elements; ++i) {
        reinterpret_cast<float*>(whole)[i] = gradient_of(unit, i, rank_, number);
        for (int64_t rank = 0; rank < num_ranks && step != skipped_step; ++rank)
          all.gradients[static_cast<size_t>(i)] += static_cast<double>(gradient_of(unit, i, rank, number));
      }
      const ParameterExchange::Gradients of{whole, buffer.data()};
      exchange.begin_sum(unit, of);
      if (messages.is_coded() && !sharding_.cuts_state()) exchange.go_on_with_sum(unit, of);
      exchange.await_sum(unit, of, micro_batch);
    }
    if (step == skipped_step) return;
    const UpdateRange updated = store_->update_range(unit);
    for (int64_t i = 0; i < updated.elements; ++i)
      all.applied[static_cast<size_t>(updated.first + i)] +=
          static_cast<double>(reinterpret_cast<const float*>(updated.gradients)[i]);
  }

  // Adds up the ranks' errors. With them, the sums that were applied are the sums of the gradients.
  void check_sum(int64_t unit) {
    const SumOfUnit& all = sums_.at(unit);
    std::vector<double> errors(all.applied.size());
    for (const PieceMessage& piece : messages_.units[static_cast<size_t>(unit)].pieces)
      for (const MessageRun& run : piece.runs)
        for (int64_t i = 0; run.is_coded() && i < run.count; ++i)
          errors[static_cast<size_t>(run.first + i)] =
              static_cast<double>(residuals_[static_cast<size_t>(run.residual + i)]);
    Lane& lane = groups_.lane(LaneKind::gradients);
    Communicator* const data = groups_.group(LaneKind::gradients, GroupKind::data);
    lane.wait(lane.all_reduce(data, errors.data(), std::ssize(errors), DType::f64));
    const UpdateRange updated = store_->update_range(unit);
    double off = 0, size = 0, without = 0;
    for (int64_t i = updated.first; i < updated.first + updated.elements; ++i) {
      const auto at = static_cast<size_t>(i);
      off += std::pow(all.applied[at] + errors[at] - all.gradients[at], 2);
      without += std::pow(all.applied[at] - all.gradients[at], 2);
      size += std::pow(all.gradients[at], 2);
    }
    const bool is_coded = messages_.units[static_cast<size_t>(unit)].is_coded();
    expect(std::sqrt(off / size) < (config_.comm.compression.error || !is_coded ? 1e-6 : 0.02),
           "what was applied and the errors are not the gradients of unit " + std::to_string(unit) + ": " +
               std::to_string(std::sqrt(off / size)));
    expect(!is_coded || without > 0, "nothing is coded");
    // With ZeRO 0 every rank has the same bits.
    if (sharding_.cuts_state()) return;
    std::vector<double> mean = all.applied;
    lane.wait(lane.all_reduce(data, mean.data(), std::ssize(mean), DType::f64, ReduceOp::max));
    expect(mean == all.applied, "ranks have other sums");
  }

  const RunConfig& config_;
  RankGroups groups_;
  const int64_t rank_;
  ModelSpec spec_;
  std::vector<TensorShard> shards_;
  Sharding sharding_;
  ParameterLayout layout_;
  GradientMessages messages_;
  std::vector<std::byte> weights_, gradients_;
  std::vector<float> residuals_, errors_;
  StepState state_{};
  std::map<int64_t, SumOfUnit> sums_;
  std::unique_ptr<ParameterStore> store_;
  std::unique_ptr<Backend> backend_ = make_cpu_backend(1);
};

}  // namespace

TEST_CASE("compressed sums and the errors that ranks keep are together the sums of all gradients") {
  for (const std::string zero : {"0", "1", "2"}) {
    for (const std::string error : {"true", "false"}) {
      INFO("ZeRO " << zero << ", errors kept: " << error);
      const RunConfig config =
          small_config(Family::gpt2,
                       {"batch.global=6", "batch.micro=1", "parallel.zero=" + zero,
                        R"(comm.compression={"kind": "int8", "min_elements": 1000, "error": )" + error + "}"},
                       num_ranks);
      CHECK_NOTHROW(run_local_ranks(num_ranks, [&](World& world) { Rank(world, config).check_steps(); }));
    }
  }
}

TEST_CASE("messages have each element of a piece once, coded or in f32") {
  const RunConfig config = small_config(
      Family::llama, {"batch.global=6", "batch.micro=1", R"(comm.compression={"kind": "int8", "min_elements": 1000})"},
      3);
  const ModelSpec spec = make_spec(config.model);
  for (const int64_t tensor_ranks : {1, 2}) {
    const std::vector<TensorShard> shards = shard_tensors(spec, {tensor_ranks, 0});
    const ParameterLayout layout = make_layout(spec, shards, {3, 1});
    const GradientMessages messages =
        make_gradient_messages(config.comm.compression, spec, shards, layout, tensor_ranks);
    int64_t coded = 0, expected = 0;
    for (size_t i = 0; i < spec.tensors.size(); ++i) {
      // A table of positions, which tensor ranks have in common, is not coded.
      const bool is_coded = spec.tensors[i].shape.size() == 2 && spec.tensors[i].count() >= 1000 &&
                            (tensor_ranks == 1 || spec.tensors[i].split != Split::none);
      CHECK(codes_gradients(config.comm.compression, spec.tensors[i], tensor_ranks) == is_coded);
      if (is_coded) expected += layout.segments[i].count;
    }
    for (size_t unit = 0; unit < messages.units.size(); ++unit) {
      int64_t next = 0;
      for (const PieceMessage& piece : messages.units[unit].pieces) {
        int64_t bytes = 0;
        for (const MessageRun& run : piece.runs) {
          CHECK(run.first == next);
          next += run.count;
          coded += run.is_coded() ? run.count : 0;
          bytes += run.is_coded() ? run.count + 4 * ((run.count + 127) / 128) : 4 * run.count;
          CHECK(run.values + (run.is_coded() ? run.count : 4 * run.count) <= piece.bytes);
        }
        CHECK(piece.bytes == bytes);
        CHECK(piece.bytes <= messages.units[unit].stride);
      }
      CHECK((next == layout.units[unit].elements || messages.units[unit].pieces.empty()));
    }
    CHECK(coded == expected);
  }
}

}  // namespace gptrain::compressed_sums_test
