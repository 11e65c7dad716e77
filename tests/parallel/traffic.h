// Bytes that each group of ranks sends in a step: in the plan, and counted at the groups.
#pragma once

#include <cstddef>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "catch.h"
#include "counting_group.h"
#include "model_fixture.h"
#include "ranks.h"
#include "wrappers.h"

namespace gptrain::testing {

// Counts calls by the plan's own rules for bytes.
class CountingCommunicator final : public ForwardingCommunicator {
 public:
  CountingCommunicator(std::unique_ptr<Communicator> inner, TrafficTable& traffic)
      : ForwardingCommunicator(std::move(inner)), counter_(rank(), size(), traffic) {}

  void all_reduce(void* data, int64_t count, DType dtype, ReduceOp op) override {
    counter_.all_reduce(data, count, dtype, op);
    ForwardingCommunicator::all_reduce(data, count, dtype, op);
  }
  void reduce_scatter(const void* in, void* out, int64_t count, DType dtype, ReduceOp op) override {
    counter_.reduce_scatter(in, out, count, dtype, op);
    ForwardingCommunicator::reduce_scatter(in, out, count, dtype, op);
  }
  void all_gather(const void* in, void* out, int64_t count, DType dtype) override {
    counter_.all_gather(in, out, count, dtype);
    ForwardingCommunicator::all_gather(in, out, count, dtype);
  }
  void all_to_all_v(const void* in, std::span<const PeerPart> sent, void* out, std::span<const PeerPart> received,
                    DType dtype) override {
    counter_.all_to_all_v(in, sent, out, received, dtype);
    ForwardingCommunicator::all_to_all_v(in, sent, out, received, dtype);
  }
  void broadcast(void* data, int64_t count, DType dtype, int root) override {
    counter_.broadcast(data, count, dtype, root);
    ForwardingCommunicator::broadcast(data, count, dtype, root);
  }

 private:
  CountingGroup counter_;
};

// Calls body(lane, group, operation).
template <typename Body>
void for_each_entry(const Body& body) {
  for (size_t lane = 0; lane < num_lanes; ++lane) {
    for (size_t group = 0; group < num_group_kinds; ++group)
      for (size_t operation = 0; operation < num_operations; ++operation) body(lane, group, operation);
  }
}

inline void check_equal(const LaneTraffic& actual, const LaneTraffic& expected) {
  for_each_entry([&](size_t lane, size_t group, size_t operation) {
    INFO(lane_names[lane] << ": " << group_names[group] << " " << operation_names[operation]);
    CHECK(actual[lane][group][operation].calls == expected[lane][group][operation].calls);
    CHECK(actual[lane][group][operation].sent_bytes == expected[lane][group][operation].sent_bytes);
  });
}

// The traffic of each rank's second step: in its plan, and counted at the groups.
struct StepTraffic {
  std::vector<LaneTraffic> planned, counted;
};

constexpr size_t no_program = std::numeric_limits<size_t>::max();

inline StepTraffic traffic_of(const RunConfig& config, int64_t world_size, size_t other_program = no_program) {
  StepTraffic traffic;
  traffic.planned.resize(static_cast<size_t>(world_size));
  traffic.counted.resize(static_cast<size_t>(world_size));
  std::vector<LaneTraffic> of_first_step(static_cast<size_t>(world_size));
  Wrapping wrapping;
  wrapping.group = [&](int64_t rank, LaneKind lane, GroupKind kind, std::unique_ptr<Communicator> group) {
    LaneTraffic& of_rank = traffic.counted[static_cast<size_t>(rank)];
    return std::make_unique<CountingCommunicator>(std::move(group),
                                                  of_rank[static_cast<size_t>(lane)][static_cast<size_t>(kind)]);
  };
  on_ranks(config, world_size, nullptr, wrapping, [&](RankContext& rank) {
    const auto index = static_cast<size_t>(rank.groups.rank());
    RandomBatches batches(config, 0, rank.groups.sample_rank(), rank.groups.num_sample_ranks());
    if (other_program != no_program) rank.step.use_program(other_program);
    rank.step.run(1e-3, batches);
    rank.step.state();  // waits for gathers in progress
    of_first_step[index] = traffic.counted[index];
    rank.step.run(1e-3, batches);
    traffic.planned[index] =
        other_program == no_program ? rank.plan.traffic : rank.plan.other_traffic[other_program].traffic;
  });
  for (size_t rank = 0; rank < traffic.counted.size(); ++rank) {
    for_each_entry([&](size_t lane, size_t group, size_t i) {
      Traffic& counted = traffic.counted[rank][lane][group][i];
      counted.calls -= of_first_step[rank][lane][group][i].calls;
      counted.sent_bytes -= of_first_step[rank][lane][group][i].sent_bytes;
    });
  }
  return traffic;
}

}  // namespace gptrain::testing
