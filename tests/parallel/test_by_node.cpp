// Ranks that communicate by node, and copies of the state on each node: against one rank, against flat sums, and in
// checkpoints.
#include <array>
#include <filesystem>
#include <fmt/format.h>
#include <string>
#include <unistd.h>
#include <vector>

#include "catch.h"
#include "checkpoint/checkpoint.h"
#include "config/node_groups.h"
#include "fit/choose_step.h"
#include "model_fixture.h"
#include "same_outcomes.h"
#include "train/run_state.h"

namespace test_by_node {

using namespace gptrain;
using namespace gptrain::testing;
using gptrain::testing::train;

namespace {

const Overrides by_node = {"comm.hierarchy=node", "comm.ranks_per_node=2"};
const Overrides copies = {"parallel.zero_node_copy=true", "comm.ranks_per_node=2"};

Overrides with(Overrides overrides, const Overrides& more) {
  overrides.insert(overrides.end(), more.begin(), more.end());
  return overrides;
}

Overrides of_zero(int64_t zero) { return {fmt::format("parallel.zero={}", zero)}; }

RunConfig chosen(RunConfig config, int64_t ranks) {
  choose_hierarchy(config, ranks, 0, [](const NodeSplit&) { return true; });
  return config;
}

std::vector<int64_t> ranks_of(const RunConfig& config, int64_t world_size, int64_t rank, GroupKind kind) {
  const RunConfig of_run = chosen(config, world_size);
  return group_ranks(of_run, make_mesh(of_run, world_size), rank, kind);
}

// Compares a step on the layout with one rank's, from weights after ten steps.
void check_like_one_rank(const SmallLayout& layout, const Overrides& more) {
  const SmallLayout alone{1, 1, {}};
  const Overrides eps = {"optimizer.eps=1e-4"};
  static const GlobalState start = train(alone, eps, 10).state;
  static const Outcome one = train_on_ranks(config_of(alone, eps), 1, 1, &start, 1000);
  const Outcome many = train_on_ranks(config_of(layout, with(eps, more)), layout.world_size(), 1, &start, 1000);
  const Difference found = difference(make_spec(config_of(alone, {}).model), one, many);
  INFO(found.moment_of << " " << found.first_moment << " " << found.weight_of << " " << found.weight << " "
                       << found.torn);
  CHECK(found.small());
}

}  // namespace

TEST_CASE("groups by node are the neighbours of a node, and the ranks with one place on all nodes") {
  const RunConfig config = config_of({1, 6, {}}, {"comm.hierarchy=node", "comm.ranks_per_node=3", "parallel.zero=1"});
  CHECK(ranks_of(config, 6, 4, GroupKind::node) == std::vector<int64_t>{3, 4, 5});
  CHECK(ranks_of(config, 6, 4, GroupKind::nodes) == std::vector<int64_t>{1, 4});
  // Pieces of ranks with the same place on their nodes are neighbours.
  CHECK(ranks_of(config, 6, 4, GroupKind::data) == std::vector<int64_t>{0, 3, 1, 4, 2, 5});
  CHECK(ranks_of(config, 6, 4, GroupKind::islands) == std::vector<int64_t>{4});
  const RunConfig of_tensor = config_of({.tensor = 2, .data = 2, .overrides = {}, .pipeline = 2},
                                        {"comm.hierarchy=node", "comm.ranks_per_node=4"});
  CHECK(ranks_of(of_tensor, 8, 1, GroupKind::node) == std::vector<int64_t>{1});  // data ranks 1 and 3 are on one node
  const RunConfig copied = config_of({1, 4, {"batch.micro=1"}}, with(copies, of_zero(3)));
  CHECK(ranks_of(copied, 4, 2, GroupKind::data) == std::vector<int64_t>{2, 3});
  CHECK(ranks_of(copied, 4, 2, GroupKind::islands) == std::vector<int64_t>{0, 2});
  CHECK(ranks_of(copied, 4, 2, GroupKind::node) == std::vector<int64_t>{2});
  for (int64_t place = 0; place < 6; ++place)
    CHECK(piece_of_replica(place, 6, 3) == std::array<int64_t, 6>{0, 2, 4, 1, 3, 5}[static_cast<size_t>(place)]);
}

TEST_CASE("sums by node train like one rank, with the same bits for ZeRO 0 and 1, 2 and 3", "[long]") {
  struct Case {
    SmallLayout layout;
    Overrides more;
  };
  const std::vector<Case> cases = {
      {{1, 6, {}}, {"comm.hierarchy=node", "comm.ranks_per_node=3"}},
      {{2, 4, {}}, {"comm.hierarchy=node", "comm.ranks_per_node=4", "batch.micro=1", "batch.global=12"}},
      {{.tensor = 1, .data = 4, .overrides = {"model.tied_head=true"}, .pipeline = 2},
       {"comm.hierarchy=node", "comm.ranks_per_node=4", "parallel.rank_order=tensor-pipeline-data", "batch.micro=1"}}};
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto& [layout, more] = cases[i];
    INFO(layout.tensor << " x " << layout.data << " x " << layout.pipeline);
    std::array<Outcome, 4> of_zeros;
    for (size_t zero = 0; zero < (i == 0 ? 4 : 2); ++zero)
      of_zeros[zero] = train(layout, with(more, of_zero(static_cast<int64_t>(zero))), 2);
    require_same(of_zeros[0], of_zeros[1]);
    if (i == 0) require_same(of_zeros[2], of_zeros[3]);
    if (layout.pipeline == 1) {
      check_like_one_rank(layout, with(more, of_zero(0)));
      check_like_one_rank(layout, with(more, of_zero(3)));
    } else {
      const Outcome flat = train(layout, with(more, {"comm.hierarchy=flat", "comm.ranks_per_node=0"}), 2);
      for (size_t step = 0; step < 2; ++step)
        CHECK(of_zeros[0].losses[step] == Approx(flat.losses[step]).epsilon(1e-5));
    }
  }
}

TEST_CASE("bf16 weights and sums, context ranks, experts and Muon work by node as flat") {
  struct Case {
    SmallLayout layout;
    Overrides more;
    double epsilon;
  };
  const Overrides experts = {R"(model.moe={"experts": 4, "top_k": 2, "ffn_hidden_size": 16})", "model.bias=false",
                             "parallel.expert=2", "batch.global=16"};
  const std::vector<Case> cases = {
      {{1, 4, {"parallel.zero=3", "precision.compute=bf16"}}, {}, 1e-5},
      {{1, 4, {"parallel.zero=1", "precision.compute=bf16", "precision.reduce=bf16"}}, {}, 1e-3},
      {{1, 4, {"parallel.zero=2", "parallel.context=2"}}, {"model.num_heads=4"}, 1e-5},
      {{1, 8, {"parallel.zero=1"}}, with(experts, {"comm.ranks_per_node=4"}), 1e-5},
      {{1, 4, {"parallel.zero=1", "optimizer.type=muon"}}, {}, 1e-5}};
  for (const Case& of : cases) {
    INFO(of.layout.overrides.back());
    const Overrides more = with({"batch.micro=1", "comm.ranks_per_node=2"}, of.more);
    const Outcome node = train(of.layout, with(more, {"comm.hierarchy=node"}), 2);
    const Outcome flat = train(of.layout, with(more, {"comm.hierarchy=flat", "comm.ranks_per_node=0"}), 2);
    CHECK(node.torn == "");
    for (size_t step = 0; step < 2; ++step) {
      CHECK(node.losses[step] == Approx(flat.losses[step]).epsilon(of.epsilon));
      CHECK(node.norms[step] == Approx(flat.norms[step]).epsilon(10 * of.epsilon));
    }
  }
}

TEST_CASE("nodes with a copy of the state train like one rank, with the same bits for ZeRO 2 and 3") {
  const SmallLayout layout{1, 4, {"batch.micro=1"}};
  check_like_one_rank(layout, with(copies, of_zero(1)));
  check_like_one_rank(layout, with(copies, of_zero(3)));
  check_like_one_rank({2, 4, {"batch.micro=1"}},
                      {"parallel.zero_node_copy=true", "comm.ranks_per_node=4", "parallel.zero=2"});
  require_same(train(layout, with(copies, of_zero(2)), 2), train(layout, with(copies, of_zero(3)), 2));
  const Outcome narrow = train(layout, with(copies, {"parallel.zero=1", "precision.compute=bf16"}), 2);
  const Outcome flat = train(layout, {"parallel.zero=1", "precision.compute=bf16"}, 2);
  CHECK(narrow.torn == "");
  for (size_t step = 0; step < 2; ++step) {
    CHECK(narrow.losses[step] == Approx(flat.losses[step]).epsilon(1e-5));
    CHECK(narrow.norms[step] == Approx(flat.norms[step]).epsilon(1e-4));
  }
}

TEST_CASE("a node's copy takes the memory of as many data ranks as the node has") {
  for (const int64_t zero : {1, 2, 3}) {
    INFO("ZeRO " << zero);
    const auto memory = [&](const Overrides& more, int64_t ranks) {
      const RunConfig config =
          chosen(config_of({1, ranks, {}}, with(more, with(of_zero(zero), {"batch.micro=1"}))), ranks);
      return plan_rank({config, make_cpu_backend(1)->target(), ranks}).memory().arenas;
    };
    const MemoryPlan copied = memory(copies, 4), of_two = memory({}, 2), of_four = memory({}, 4);
    for (const MemoryClass kind : {MemoryClass::optimizer, MemoryClass::weights, MemoryClass::gradients})
      CHECK(copied[kind] == of_two[kind]);
    CHECK(copied[MemoryClass::optimizer] > of_four[MemoryClass::optimizer]);
  }
}

TEST_CASE("checkpoints pass between copies by node, sums by node and flat ranks to the bit") {
  namespace fs = std::filesystem;
  const fs::path out = fs::temp_directory_path() / fmt::format("by-node-{}", getpid());
  const SmallLayout layout{1, 4, {"batch.micro=1", "parallel.zero=1"}};
  const auto of = [&](const Overrides& more) {
    RunConfig config = config_of(layout, more);
    config.run.out = out.string();
    return config;
  };
  // Saves after two steps, or loads; returns the state.
  const auto state_of = [&](const RunConfig& config, bool loads, int steps) {
    Wrapping wrapping;
    wrapping.before = [&](RankContext& rank) {
      if (loads) load_state(list_checkpoints(out).front().path, rank.step, rank.groups, rank.world);
    };
    wrapping.after = [&](RankContext& rank) {
      if (!loads) save_state(config, rank.step, {.step = 2, .samples = 24, .updates = 2}, rank.groups, rank.world);
    };
    return train_on_ranks(config, 4, steps, nullptr, loads ? 24 : 0, wrapping);
  };
  for (const Overrides& saved : {copies, by_node}) {
    const Outcome at_save = state_of(of(saved), false, 2);
    CHECK_NOTHROW(verify_checkpoint(list_checkpoints(out).front().path));
    for (const Overrides& loaded : {copies, by_node, Overrides{}}) {
      INFO(saved.front() << " " << (loaded.empty() ? "flat" : loaded.front()));
      require_bits_of(at_save, state_of(of(loaded), true, 0));
    }
    // A resumed run has the bits of one that was not stopped.
    require_bits_of(train_on_ranks(of(saved), 4, 4), state_of(of(saved), true, 2));
    fs::remove_all(out);
  }
}

}  // namespace test_by_node
