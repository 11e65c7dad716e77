// Steps with compressed gradients: planned memory, ranks that agree, and losses like those of plain sums.
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "catch.h"
#include "model_fixture.h"
#include "ranks.h"
#include "step/step_design.h"
#include "touched.h"

namespace test_compression {

using namespace gptrain;
using namespace gptrain::testing;

namespace {

const std::string int8 = R"(comm.compression={"kind": "int8", "min_elements": 1000})";
const std::string low_rank = R"(comm.compression={"kind": "powersgd", "min_elements": 1000, "rank": 3})";

RunConfig config_of(std::vector<std::string> overrides, int64_t ranks) {
  overrides.insert(overrides.begin(),
                   {"batch.global=12", "batch.micro=2", "model.num_heads=4", "model.hidden_size=40"});
  return small_config(Family::gpt2, overrides, ranks);
}

}  // namespace

TEST_CASE("steps with compressed gradients use the planned memory, and their losses are nearly the plain ones") {
  struct Case {
    std::vector<std::string> overrides;
    int64_t ranks;
    std::string compression = int8;
    double norm_bound = 0.02;
  };
  // Gradients that lack all but three of a matrix' directions have a smaller norm.
  const std::vector<Case> cases = {
      {.overrides = {"parallel.zero=0", "model.tied_head=true"},
       .ranks = 3,
       .compression = low_rank,
       .norm_bound = 0.8},
      {.overrides = {"parallel.zero=1", "precision.compute=bf16", "precision.residual=fp32"},
       .ranks = 2,
       .compression = low_rank,
       .norm_bound = 0.8},
      {.overrides = {"parallel.zero=1", "parallel.pipeline=3", "checkpoint.every_steps=2"},
       .ranks = 6,
       .compression = low_rank,
       .norm_bound = 0.8},
      {.overrides = {"parallel.context=2", "parallel.context_method=ring", "model.sequence_length=20"},
       .ranks = 4,
       .compression = low_rank,
       .norm_bound = 0.8},
      {.overrides = {"parallel.zero=0"}, .ranks = 3},
      {.overrides = {"parallel.zero=1", "precision.compute=bf16", "precision.residual=fp32"}, .ranks = 2},
      {.overrides = {"parallel.zero=3", "parallel.tensor=2", "parallel.sequence=true"}, .ranks = 4},
      {.overrides = {"parallel.zero=0", "parallel.pipeline=3"}, .ranks = 6},
      {.overrides = {"parallel.context=2", "parallel.zero=1", "model.sequence_length=20"}, .ranks = 4},
      {.overrides = {"parallel.zero=2", "optimizer.type=adamw-8bit", "checkpoint.every_steps=2"}, .ranks = 2},
  };
  for (const Case& layout : cases) {
    INFO(layout.overrides.front() << " " << layout.ranks);
    std::vector<std::string> overrides = layout.overrides;
    const Outcome plain = train_on_ranks(config_of(overrides, layout.ranks), layout.ranks, 4);
    overrides.push_back(layout.compression);
    const RunConfig config = config_of(overrides, layout.ranks);
    Wrapping wrapping;
    wrapping.after = [](RankContext& rank) {
      if (rank.step.taken()[MemoryClass::residuals] != rank.plan.memory().arenas[MemoryClass::residuals] ||
          rank.step.residuals().empty() || rank.plan.memory().arenas[MemoryClass::residuals] == 0)
        throw std::logic_error("the errors have other memory than is planned");
    };
    check_touched_after(wrapping, config, layout.ranks);
    const Outcome coded = train_on_ranks(config, layout.ranks, 4, nullptr, 0, wrapping);
    CHECK(coded.torn.empty());
    CHECK(coded.losses.front() == plain.losses.front());
    CHECK(coded.losses.back() != plain.losses.back());
    for (size_t step = 0; step < plain.losses.size(); ++step) {
      CHECK(coded.losses[step] == Approx(plain.losses[step]).epsilon(layout.norm_bound / 10));
      CHECK(coded.norms[step] == Approx(plain.norms[step]).epsilon(layout.norm_bound));
    }
  }
}

TEST_CASE("a run's first steps may be those of another program in the same memory") {
  const RunConfig plain = config_of({"parallel.zero=1"}, 2);
  const RunConfig config = config_of({"parallel.zero=1", int8}, 2);
  RunConfig warmed = config;
  warmed.comm.compression.start_step = 2;
  std::vector<std::vector<double>> losses;
  const RunConfig* const configs[] = {&plain, &config, &warmed};
  for (const RunConfig* const of : configs) {
    std::vector<double>& found = losses.emplace_back();
    on_ranks(*of, 2, nullptr, {}, [&](RankContext& rank) {
      RandomBatches batches(*of, 0, rank.groups.sample_rank(), rank.groups.num_sample_ranks());
      const StepDesign& design = rank.step.design();
      for (int64_t step = 0; step < 4; ++step) {
        rank.step.use_program(design.program_after(step));
        const double loss = rank.step.run(1e-3, batches).loss;
        if (rank.groups.rank() == 0) found.push_back(loss);
      }
      if (design.programs.size() != (of == &warmed ? 2 : 1)) throw std::logic_error("another number of programs");
    });
  }
  // The sums of two steps are plain, so the first loss that coded sums change is that of the fourth step.
  CHECK(losses[2][2] == losses[0][2]);
  CHECK(losses[1][2] != losses[0][2]);
  CHECK(losses[2][3] != losses[0][3]);
}

TEST_CASE("a program that every third step plays gives the same bits") {
  const RunConfig config = config_of({"parallel.zero=2"}, 2);
  const auto train = [&](bool alternates) {
    std::vector<double> losses;
    on_ranks(config, 2, nullptr, {}, [&](RankContext& rank) {
      StepDesign design = rank.step.design();
      ScheduleOptions options = design.training->schedule.options;
      options.sums_under_way = 1;
      design.programs.insert(
          design.programs.begin(),
          {.name = "one sum at a time",
           .program = make_program(training_schedule(options), design.training->bytes, MemoryPlace::device)});
      RandomBatches batches(config, 0, rank.groups.sample_rank(), rank.groups.num_sample_ranks());
      TrainingStep step(std::make_shared<StepDesign>(design), rank.step.backend(), rank.groups);
      step.initialize();
      for (int i = 0; i < 6; ++i) {
        step.use_program(alternates && i % 3 == 2 ? 0 : 1);
        const double loss = step.run(1e-3, batches).loss;
        if (rank.groups.rank() == 0) losses.push_back(loss);
      }
    });
    return losses;
  };
  CHECK(train(true) == train(false));
}

}  // namespace test_compression
