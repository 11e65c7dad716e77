// Decisions that ranks take together, and the detection of ranks that diverge.
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "catch.h"
#include "model_fixture.h"
#include "ranks.h"
#include "wrappers.h"

namespace test_agreement {

using namespace gptrain;
using namespace gptrain::testing;

namespace {

// Makes the loss NaN while gradients stay numbers.
class LosesLoss final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  using ForwardingBackend::run;
  void run(const AccumulateLoss& op) override {
    inner_.run(op);
    op.state->loss_sum = std::numeric_limits<double>::quiet_NaN();
  }
};

RunConfig config_of(const std::string& mesh, int64_t world_size) {
  return small_config(Family::llama,
                      {"model.num_heads=6", "model.num_kv_heads=6", "model.hidden_size=48", "model.ffn_hidden_size=60",
                       "batch.global=12", "model.attention_sinks=true", mesh},
                      world_size);
}

// Checksums of every rank, after rank `changed` has changed its first weight of `tensor`.
struct Checksums {
  std::vector<uint32_t> weights, norms;
};
Checksums checksums(const RunConfig& config, int64_t world_size, int64_t changed, const std::string& tensor) {
  Checksums found{std::vector<uint32_t>(static_cast<size_t>(world_size)),
                  std::vector<uint32_t>(static_cast<size_t>(world_size))};
  on_ranks(config, world_size, nullptr, {}, [&](RankContext& rank) {
    for (const StateSlice& piece : rank.step.state()) {
      const bool wanted = rank.step.spec().tensors[static_cast<size_t>(piece.tensor)].name == tensor;
      if (wanted && rank.groups.rank() == changed) piece.weight[0] += 1;
    }
    found.weights[static_cast<size_t>(rank.groups.rank())] = rank.step.weights_checksum(ReplicaGroup::data);
    found.norms[static_cast<size_t>(rank.groups.rank())] = rank.step.norms_checksum();
  });
  return found;
}

}  // namespace

TEST_CASE("a loss that is not finite on one rank makes all skip the step") {
  for (const char* zero : {"parallel.zero=0", "parallel.zero=2"}) {
    const RunConfig config = config_of(zero, 3);
    for (const int64_t faulty : {0, 2}) {
      INFO(zero << ", rank " << faulty);
      std::vector<StepResult> results(3);
      std::vector<float> before(3), after(3);
      Wrapping wrapping;
      wrapping.backend = [&](int64_t rank, Backend& inner) -> std::unique_ptr<Backend> {
        if (rank == faulty) return std::make_unique<LosesLoss>(inner);
        return std::make_unique<ForwardingBackend>(inner);
      };
      on_ranks(config, 3, nullptr, wrapping, [&](RankContext& rank) {
        const auto index = static_cast<size_t>(rank.groups.rank());
        RandomBatches batches(config, 0, rank.groups.sample_rank(), rank.groups.num_sample_ranks());
        before[index] = *rank.step.state().front().weight;
        results[index] = rank.step.run(1e-3, batches);
        after[index] = *rank.step.state().front().weight;
      });
      for (size_t rank = 0; rank < 3; ++rank) {
        CHECK(results[rank].skipped);
        CHECK(results[rank].updates == 0);
        CHECK(std::isfinite(results[rank].grad_norm));
        CHECK(after[rank] == before[rank]);
      }
    }
  }
}

TEST_CASE("tensor ranks have sinks of their own, which their checksum of norms leaves out") {
  const Checksums changed = checksums(config_of("parallel.tensor=3", 3), 3, 1, "blocks.0.attention.sinks");
  CHECK(changed.norms == std::vector<uint32_t>(3, changed.norms[0]));
}

TEST_CASE("checksums tell a rank whose weights or norms are not the others'") {
  const std::string norm = "blocks.0.norm1.weight";
  for (const auto& [mesh, data] : {std::pair{"parallel.tensor=1", true}, {"parallel.tensor=3", false}}) {
    INFO(mesh);
    const RunConfig config = config_of(mesh, 3);
    const Checksums alike = checksums(config, 3, -1, norm);
    const std::vector<uint32_t>& of_alike = data ? alike.weights : alike.norms;
    CHECK(of_alike == std::vector<uint32_t>(3, of_alike[0]));
    const Checksums changed = checksums(config, 3, 1, norm);
    const std::vector<uint32_t>& of_changed = data ? changed.weights : changed.norms;
    CHECK(of_changed[0] == of_alike[0]);
    CHECK(of_changed[1] != of_alike[0]);
    CHECK(of_changed[2] == of_alike[0]);
  }
}

}  // namespace test_agreement
