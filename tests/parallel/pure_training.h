// Checks of training without master weights (bf16-pure), with gradients in f32 and in bf16.
#pragma once

#include <fmt/format.h>
#include <limits>
#include <string>
#include <vector>

#include "catch.h"
#include "layouts.h"
#include "model_fixture.h"
#include "same_outcomes.h"

namespace gptrain::testing {

struct PureLayout {
  int64_t tensor, ranks;
  std::vector<std::string> overrides;

  std::string name() const { return fmt::format("{} ranks, tensor {} {}", ranks, tensor, fmt::join(overrides, " ")); }
};

inline RunConfig pure_config(Family family, const PureLayout& layout, const std::string& gradients) {
  std::vector<std::string> overrides = {"model.num_heads=6",
                                        "model.num_kv_heads=2",
                                        "model.hidden_size=48",
                                        "model.ffn_hidden_size=60",
                                        "model.sequence_length=20",
                                        "batch.global=12",
                                        "precision.compute=bf16-pure",
                                        "precision.gradients=" + gradients,
                                        fmt::format("parallel.tensor={}", layout.tensor)};
  overrides.insert(overrides.end(), layout.overrides.begin(), layout.overrides.end());
  return small_config(family, overrides, layout.ranks);
}

inline Outcome train_pure(Family family, const PureLayout& layout, const std::string& gradients, int steps) {
  return train_on_ranks(pure_config(family, layout, gradients), layout.ranks, steps);
}

// Checks that ZeRO 0 and 1, and 2 and 3, give the same bits with every recompute mode.
inline void require_same_over_zero(const std::string& gradients, int micro) {
  struct Ranks {
    Family family;
    int64_t tensor, data;
    bool sequence = false;
  };
  for (const auto& [family, tensor, data, sequence] :
       {Ranks{.family = Family::gpt2, .tensor = 1, .data = 3},
        {.family = Family::gpt2, .tensor = 2, .data = 2, .sequence = true},
        {.family = Family::llama, .tensor = 2, .data = 2}}) {
    INFO("tensor " << tensor << " data " << data);
    const auto run = [&, family = family, tensor = tensor, data = data,
                      sequence = sequence](const std::vector<std::string>& more) {
      std::vector<std::string> overrides = {"model.dropout=0.1", fmt::format("batch.micro={}", micro)};
      if (sequence) overrides.push_back("parallel.sequence=true");
      overrides.insert(overrides.end(), more.begin(), more.end());
      return train_pure(family, {tensor, tensor * data, overrides}, gradients, 3);
    };
    const Outcome zero0 = run({"parallel.zero=0"}), zero2 = run({"parallel.zero=2"});
    require_same(zero0, run({"parallel.zero=1", "memory.recompute=block"}));
    require_same(zero2, run({"parallel.zero=3", "memory.recompute=every_nth", "memory.recompute_interval=2"}));
    CHECK(zero0.losses.front() == zero2.losses.front());
  }
}

// Checks that a non-finite step is skipped, changes no bit on any rank, and does not count as an update.
inline void require_unchanged_by_infinity(const std::string& gradients) {
  for (const int zero : {0, 1, 2, 3}) {
    INFO("zero " << zero);
    const RunConfig config =
        pure_config(Family::gpt2, {1, 2, {"batch.micro=2", fmt::format("parallel.zero={}", zero)}}, gradients);
    on_ranks(config, 2, nullptr, {}, [&](RankContext& rank) {
      const auto bits = [&] {
        std::vector<float> values;
        for (const StateSlice& piece : rank.step.state()) {
          for (int64_t i = 0; i < piece.count(); ++i) {
            values.push_back(piece.weight != nullptr ? piece.weight[i] : to_float(piece.narrow_weight[i]));
            values.insert(values.end(), {column(piece, 0)[i], column(piece, 1)[i]});
          }
        }
        return values;
      };
      RandomBatches batches(config, 0, rank.groups.sample_rank(), 2);
      REQUIRE_FALSE(rank.step.run(1e-3, batches).skipped);
      for (const StateSlice& piece : rank.step.state()) {
        const TensorSpec& tensor = rank.step.spec().tensors[static_cast<size_t>(piece.tensor)];
        if (tensor.name == "blocks.1.ffn.in.weight")
          piece.narrow_weight[0] = to_bf16(std::numeric_limits<float>::infinity());
      }
      rank.step.weights_changed();
      const std::vector<float> before = bits();
      const StepResult result = rank.step.run(1e-3, batches);
      REQUIRE(result.skipped);
      REQUIRE(result.updates == 1);
      REQUIRE(same_bits(before, bits()));
    });
  }
}

// Returns the drop of the loss over steps on the same samples.
inline double fall_of_loss(const RunConfig& config, double learning_rate, int steps, const Wrapping& wrapping = {}) {
  std::vector<double> losses;
  on_ranks(config, 1, nullptr, wrapping, [&](RankContext& rank) {
    for (int i = 0; i < steps; ++i) {
      RandomBatches batches(config);
      losses.push_back(rank.step.run(learning_rate, batches).loss);
    }
  });
  return losses.front() - losses.back();
}

}  // namespace gptrain::testing
