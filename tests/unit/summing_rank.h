// A rank that sums gradients of a small model without training it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "config/node_groups.h"
#include "ops/backend.h"
#include "optim/types.h"
#include "parallel/compressed_reducer.h"
#include "parallel/gradient_sums.h"
#include "parallel/groups.h"
#include "parallel/parameters.h"

namespace gptrain::testing {

// Returns a number from -1 to 1; numbers have no pattern. tools/compare/compare_sums.py has the same.
inline double hashed(int64_t a, int64_t b, int64_t c, int64_t d) {
  const auto word = static_cast<uint32_t>(a * 2654435761 + b * 40503 + c * 9973 + d * 7919);
  const uint32_t mixed = (word ^ word >> 15) * 2246822519U;
  return static_cast<double>(static_cast<int32_t>(mixed ^ mixed >> 13)) * 0x1p-31;
}

// Borrows the config. Weights and state are zero.
class SummingRank {
 public:
  SummingRank(World& world, const RunConfig& config)
      : config_(config),
        groups_(config, world),
        rank_(world.rank()),
        spec_(make_spec(config_.model)),
        shards_(shard_tensors(spec_, {1, 0})),
        sharding_{.zero = config_.parallel.zero,
                  .replica_ranks = {groups_.replica_rank(ReplicaGroup::data),
                                    groups_.replica_rank(ReplicaGroup::expert_data)}},
        layout_(make_layout(spec_, shards_, sharding_.replica_counts())),
        messages_(
            make_gradient_messages(config_.compression(), spec_, shards_, layout_, 1,
                                   {ranks_of_residual(config_), groups_.data_rank() % ranks_of_residual(config_)})),
        columns_(optimizer_columns(config_.optimizer)) {
    const ParameterBytes bytes = parameter_bytes(layout_, sharding_, columns_);
    weights_.resize(static_cast<size_t>(bytes.weights));
    gradients_.resize(static_cast<size_t>(bytes.gradients));
    state_memory_.resize(static_cast<size_t>(bytes.state));
    store_ = std::make_unique<ParameterStore>(spec_, shards_, layout_, sharding_,
                                              ParameterBuffers{.weights = weights_.data(),
                                                               .gradients = gradients_.data(),
                                                               .master = nullptr,
                                                               .state = state_memory_.data()},
                                              columns_);
    for (std::vector<float>* const buffer : {&residuals_, &errors_})
      buffer->resize(static_cast<size_t>(messages_.num_residuals));
    backend_->set_scratch(scratch_.data(), std::ssize(scratch_));
  }

 protected:
  const UnitRange& range(int64_t unit) const { return layout_.units[static_cast<size_t>(unit)]; }
  const UnitMessages& messages_of(int64_t unit) const { return messages_.units[static_cast<size_t>(unit)]; }

  // Returns the messages and the memory of errors for a reducer.
  GradientCompression compression() {
    const bool keeps = config_.compression().error;
    return {.messages = messages_,
            .residuals = keeps ? reinterpret_cast<std::byte*>(residuals_.data()) : nullptr,
            .errors = keeps ? reinterpret_cast<std::byte*>(errors_.data()) : nullptr,
            .state = &state_,
            .rank = config_.compression().rank,
            .factors = config_.compression().alternate ? FactorSums::left : FactorSums::both,
            .seed = 7};
  }

  // Makes the optimizer. `compression`, if given, and `exchange` are for UpdateContext.
  std::unique_ptr<Optimizer> make_optimizer(const GradientCompression* compression = nullptr) {
    const OptimizerType& type = optimizer_type(config_.optimizer.type);
    tables_.resize(static_cast<size_t>(type.table_bytes(*store_)));
    exchange_.resize(static_cast<size_t>(exchange_bytes(config_.optimizer, *store_, messages_)));
    return type.make(config_.optimizer,
                     {.parameters = *store_,
                      .state = &state_,
                      .backend = *backend_,
                      .groups = groups_,
                      .workspace = workspace_,
                      .compression = compression,
                      .exchange = exchange_.data()},
                     7, tables_.data());
  }

  const RunConfig& config_;
  RankGroups groups_;
  const int64_t rank_;
  ModelSpec spec_;
  std::vector<TensorShard> shards_;
  Sharding sharding_;
  ParameterLayout layout_;
  GradientMessages messages_;
  StateColumns columns_;
  std::vector<float> residuals_, errors_;
  StepState state_{};
  std::unique_ptr<ParameterStore> store_;
  std::unique_ptr<Backend> backend_ = make_cpu_backend(1);

 private:
  std::vector<std::byte> weights_, gradients_, state_memory_, tables_, exchange_;
  std::vector<std::byte> scratch_ = std::vector<std::byte>(size_t{1} << 23);
  Workspace workspace_;
};

}  // namespace gptrain::testing
