// Parameters whose replicas are on other ranks than those of the rest, and the mesh of experts.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "catch.h"
#include "config/parallelism.h"
#include "model_fixture.h"
#include "ops/backend.h"
#include "parallel/parameter_exchange.h"

using namespace gptrain;
using gptrain::testing::Family;
using gptrain::testing::small_config;

namespace {

constexpr int64_t num_ranks = 4, expert_unit = 2;

void expect(bool condition, const std::string& text) {
  if (!condition) throw Error(ExitCode::device, "{}", text);
}

// Numbers that bf16 holds exactly, other ones for each expert.
float weight_of(int64_t unit, int64_t element, int64_t expert) {
  return static_cast<float>(unit * 20 + element % 17 + 40 * expert);
}
float gradient_of(int64_t element, int64_t rank) { return static_cast<float>(element % 13 + (1 << rank)); }

float value_at(const std::byte* values, DType dtype, int64_t element) {
  return dtype == DType::f32 ? reinterpret_cast<const float*>(values)[element]
                             : to_float(reinterpret_cast<const bf16*>(values)[element]);
}
void put(std::byte* values, DType dtype, int64_t element, float value) {
  if (dtype == DType::f32) {
    reinterpret_cast<float*>(values)[element] = value;
  } else {
    reinterpret_cast<bf16*>(values)[element] = to_bf16(value);
  }
}

// The plain sum in two halves, one a phase.
class HalvedReducer final : public GradientReducer {
 public:
  explicit HalvedReducer(const ReductionContext& context) : context_(context) {}

  int phases(int64_t) const override { return 2; }
  Lane::Ticket begin(int64_t unit, int phase, const UnitGradients& of) override {
    const UnitRange& range = context_.parameters.layout().units[static_cast<size_t>(unit)];
    const int64_t half = range.elements / 2;
    return context_.groups.lane(LaneKind::gradients)
        .all_reduce(context_.groups.group(LaneKind::gradients, kind_of(range.replicas)),
                    reinterpret_cast<float*>(of.whole) + phase * half, phase == 0 ? half : range.elements - half,
                    DType::f32);
  }

 private:
  const ReductionContext context_;
};

// A rank with the parameters of a small model. One of its units has replicas on few of the data ranks.
class Rank {
 public:
  Rank(World& world, const RunConfig& config, int64_t experts)
      : groups_(config, world),
        rank_(world.rank()),
        expert_(rank_ % experts),
        num_copies_(num_ranks / experts),
        spec_(make_spec(config.model)),
        shards_(shard_tensors(spec_, {1, 0})),
        sharding_{.zero = config.parallel.zero,
                  .replica_ranks = {groups_.replica_rank(ReplicaGroup::data),
                                    groups_.replica_rank(ReplicaGroup::expert_data)},
                  .compute = config.precision.compute,
                  .reduce = config.precision.reduce} {
    spec_.units[expert_unit].replicas = ReplicaGroup::expert_data;
    layout_ = make_layout(spec_, shards_, sharding_.replica_counts());
    const ParameterBytes bytes = parameter_bytes(layout_, sharding_, {});
    weights_.resize(static_cast<size_t>(bytes.weights));
    gradients_.resize(static_cast<size_t>(bytes.gradients));
    master_.resize(static_cast<size_t>(bytes.master));
    store_ = std::make_unique<ParameterStore>(
        spec_, shards_, layout_, sharding_,
        ParameterBuffers{
            .weights = weights_.data(), .gradients = gradients_.data(), .master = master_.data(), .state = nullptr});
  }

  // Every rank knows only its pieces, and after a gather the whole units.
  void check_gathers() {
    for (int64_t unit = 0; unit < store_->num_parameter_units(); ++unit) {
      const int64_t expert = unit == expert_unit ? expert_ : 0;
      const UnitPiece piece = store_->piece(unit);
      expect(piece.elements * (unit == expert_unit ? num_copies_ : num_ranks) == range(unit).elements, "a piece");
      const UpdateRange updated = store_->update_range(unit);
      for (int64_t i = 0; i < piece.elements; ++i) {
        const float weight = weight_of(unit, piece.first + i, expert);
        put(store_->weights_piece(unit), sharding_.compute, i, weight);
        if (sharding_.has_master()) updated.master[i] = weight;
      }
    }
    for (int64_t unit = 0; unit < store_->num_parameter_units(); ++unit) {
      std::vector<std::byte> gathered(static_cast<size_t>(range(unit).elements * dtype_bytes(sharding_.compute)));
      const UnitParameters whole = store_->whole(unit, gathered.data());
      groups_.lane(LaneKind::weights).wait(begin_gather(*store_, unit, gathered.data(), groups_, *backend_));
      for (int64_t i = 0; i < range(unit).elements; ++i) {
        const float weight = weight_of(unit, i, unit == expert_unit ? expert_ : 0);
        expect(value_at(whole.weights, sharding_.compute, i) == weight, "a weight of unit " + std::to_string(unit));
        expect(i >= store_->f32_norm_elements(unit) || value_at(whole.norms, DType::f32, i) == weight, "a norm");
      }
    }
  }

  // Gradients of a unit are summed over the ranks with replicas of it, and over no other.
  void check_sums(const ParameterExchange::ReducerMaker& make, int phases) {
    ParameterExchange exchange(*store_, groups_, *backend_, nullptr, make);
    for (int64_t unit = 0; unit < store_->num_parameter_units(); ++unit) {
      const auto elements = static_cast<size_t>(range(unit).elements);
      std::vector<float> bucket(elements);
      std::vector<bf16> narrow(elements);
      std::byte* const whole = store_->whole(unit, nullptr, reinterpret_cast<std::byte*>(bucket.data())).gradients;
      for (int64_t i = 0; i < range(unit).elements; ++i) put(whole, DType::f32, i, gradient_of(i, rank_));
      const ParameterExchange::Gradients of{whole, reinterpret_cast<std::byte*>(narrow.data())};
      exchange.begin_sum(unit, of);
      if (phases == 2) exchange.go_on_with_sum(unit, of, 1);
      exchange.await_sum(unit, of, 0);
      const UnitPiece piece = store_->piece(unit);
      const auto* const sums = store_->gradients_piece(unit).as<const float>();
      for (int64_t i = 0; i < piece.elements; ++i) {
        float sum = 0;
        for (int64_t rank = 0; rank < num_ranks; ++rank)
          if (unit != expert_unit || rank % (num_ranks / num_copies_) == expert_)
            sum += gradient_of(piece.first + i, rank);
        expect(sums[i] == sum, "a sum of unit " + std::to_string(unit));
      }
    }
  }

 private:
  const UnitRange& range(int64_t unit) const { return layout_.units[static_cast<size_t>(unit)]; }

  RankGroups groups_;
  const int64_t rank_, expert_, num_copies_;
  ModelSpec spec_;
  std::vector<TensorShard> shards_;
  Sharding sharding_;
  ParameterLayout layout_;
  std::vector<std::byte> weights_, gradients_, master_;
  std::unique_ptr<ParameterStore> store_;
  std::unique_ptr<Backend> backend_ = make_cpu_backend(1);
};

}  // namespace

TEST_CASE("a unit's parameters may have replicas on half of the data ranks, or on none") {
  for (const int64_t experts : {2, 4}) {
    for (const std::string zero : {"0", "1", "2", "3"}) {
      for (const std::string precision : {"fp32", "bf16"}) {
        INFO(experts << " experts, ZeRO " << zero << ", " << precision);
        RunConfig config = small_config(Family::gpt2,
                                        {"batch.micro=1", "parallel.zero=" + zero, "precision.compute=" + precision,
                                         "precision.reduce=" + precision},
                                        num_ranks);
        config.parallel.expert = experts;
        CHECK_NOTHROW(run_local_ranks(num_ranks, [&](World& world) {
          Rank rank(world, config, experts);
          if (cuts_state(config.parallel.zero)) rank.check_gathers();
          rank.check_sums(make_reducer, 1);
          rank.check_sums(
              [](const ReductionContext& context, ReplicaGroup) { return std::make_unique<HalvedReducer>(context); },
              2);
        }));
      }
    }
  }
}

TEST_CASE("more experts than data ranks pass counters to each other") {
  RunConfig config = small_config(Family::gpt2, {"parallel.tensor=2", "batch.micro=1", "model.num_heads=2"}, 8);
  config.parallel.expert = 8;
  const Mesh mesh = make_mesh(config, 8);
  REQUIRE(mesh.size(ExpertAxis::expert) > mesh.size(MeshAxis::data));
  CHECK_NOTHROW(run_local_ranks(8, [&](World& world) {
    RankGroups groups(config, world);
    Lane& lane = groups.lane(LaneKind::expert);
    Communicator* const group = groups.group(LaneKind::expert, GroupKind::expert);
    std::vector<int64_t> sent(8), received(8), returned(8);
    for (int64_t expert = 0; expert < 8; ++expert) sent[static_cast<size_t>(expert)] = 10 * world.rank() + expert;
    lane.wait(lane.all_to_all(group, sent.data(), received.data(), 1, DType::i64));
    for (size_t peer = 0; peer < 8; ++peer) {
      expect(received[peer] == 10 * static_cast<int64_t>(peer) + world.rank(), "a counter on its way there");
      ++received[peer];
    }
    lane.wait(lane.all_to_all(group, received.data(), returned.data(), 1, DType::i64));
    for (size_t expert = 0; expert < 8; ++expert) expect(returned[expert] == sent[expert] + 1, "a counter's way back");
  }));
}

TEST_CASE("ranks that share sequences pass keys on in a ring, beside the sums of their tensor group") {
  const RunConfig config = small_config(
      Family::gpt2,
      {"parallel.tensor=2", "parallel.context=2", "batch.micro=1", "model.num_heads=4", "model.sequence_length=20"}, 8);
  const Mesh mesh = make_mesh(config, 8);
  CHECK(mesh.size(MeshAxis::data) == 2);
  CHECK(group_ranks(config, mesh, 5, GroupKind::context) == std::vector<int64_t>{5, 7});
  CHECK(group_ranks(config, mesh, 5, GroupKind::data) == std::vector<int64_t>{1, 3, 5, 7});
  CHECK_NOTHROW(run_local_ranks(8, [&](World& world) {
    RankGroups groups(config, world);
    expect(groups.num_sample_ranks() == 2 && groups.num_data_ranks() == 4, "context ranks see the same samples");
    Communicator* const ring = groups.group(LaneKind::context, GroupKind::context);
    const int own = ring->rank(), other = 1 - own;
    const int64_t key = 100 * world.rank();
    int64_t received = -1;
    float sum = 1;
    Lane& lane = groups.lane(LaneKind::context);
    lane.transfers_start(ring);
    lane.send(ring, &key, 1, DType::i64, other);
    lane.receive(ring, &received, 1, DType::i64, other);
    const Lane::Ticket received_keys = lane.transfers_end(ring);
    Lane& tensor = groups.lane(LaneKind::tensor);
    tensor.wait(tensor.all_reduce(groups.group(LaneKind::tensor, GroupKind::tensor), &sum, 1, DType::f32));
    lane.wait(received_keys);
    expect(sum == 2, "a sum over tensor ranks");
    expect(received == 100 * (world.rank() + 2 * (other - own)), "a key of the other half of the sequence");
  }));
}
