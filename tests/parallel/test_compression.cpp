// Steps with compressed gradients: planned memory, ranks that agree, and losses like those of plain sums.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unistd.h>
#include <vector>

#include "catch.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/model_check.h"
#include "model_fixture.h"
#include "ranks.h"
#include "step/step_design.h"
#include "touched.h"
#include "train/run_state.h"

namespace test_compression {

using namespace gptrain;
using namespace gptrain::testing;

namespace {

const std::string int8 = R"(comm.compression={"kind": "int8", "min_elements": 1000})";
const std::string between_nodes = R"(comm.compression={"kind": "int8", "min_elements": 1000, "between": "nodes"})";
const std::string largest = R"(comm.compression={"kind": "topk", "min_elements": 1000, "share": 0.05})";
const std::string sketch = R"(comm.compression={"kind": "sketch", "min_elements": 1000, "share": 0.05, "rank": 3})";
const std::string low_rank = R"(comm.compression={"kind": "powersgd", "min_elements": 1000, "rank": 3})";

const std::string alternating =
    R"(comm.compression={"kind": "powersgd", "min_elements": 1000, "rank": 3, "alternate": true})";

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
      {.overrides = {"parallel.zero=1", "parallel.pipeline=3"},
       .ranks = 6,
       .compression = alternating,
       .norm_bound = 0.8},
      {.overrides = {"parallel.zero=0", "model.tied_head=true"}, .ranks = 3, .compression = largest, .norm_bound = 0.8},
      {.overrides = {"parallel.zero=1", "parallel.tensor=2", "checkpoint.every_steps=2"},
       .ranks = 4,
       .compression = largest,
       .norm_bound = 0.8},
      {.overrides = {"parallel.zero=0", "model.tied_head=true"}, .ranks = 3, .compression = sketch, .norm_bound = 0.9},
      {.overrides = {"parallel.zero=1", "parallel.tensor=2", "checkpoint.every_steps=2"},
       .ranks = 4,
       .compression = sketch,
       .norm_bound = 0.9},
      {.overrides = {"parallel.zero=0", "comm.ranks_per_node=2", "batch.micro=1"},
       .ranks = 4,
       .compression = between_nodes},
      {.overrides = {"parallel.zero=1", "comm.ranks_per_node=3", "batch.micro=1", "precision.compute=bf16"},
       .ranks = 6,
       .compression = between_nodes},
      {.overrides = {"parallel.zero=3", "parallel.tensor=2", "comm.ranks_per_node=4", "batch.micro=1"},
       .ranks = 8,
       .compression = between_nodes},
      {.overrides = {"parallel.zero=2", "parallel.context=2", "model.sequence_length=20", "comm.ranks_per_node=2"},
       .ranks = 4,
       .compression = between_nodes},
      {.overrides = {"parallel.zero=0", "parallel.pipeline=3", "comm.ranks_per_node=2", "batch.micro=1"},
       .ranks = 12,
       .compression = between_nodes},
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

TEST_CASE("weights that are gathered in codes train nearly as exact ones, alike for any number of data ranks") {
  struct Case {
    std::vector<std::string> overrides;
    int64_t ranks;
  };
  const std::vector<Case> cases = {{{"model.tied_head=true", "memory.recompute=block"}, 2},
                                   {{"model.tied_head=true"}, 3},
                                   {{"parallel.tensor=2", "parallel.sequence=true"}, 4},
                                   {{"parallel.pipeline=3", "precision.compute=bf16-pure"}, 6},
                                   {{"comm.hierarchy=node", "comm.ranks_per_node=2", "batch.micro=1"}, 4},
                                   {{"parallel.zero_node_copy=true", "comm.ranks_per_node=2", "batch.micro=1"}, 4}};
  std::vector<std::vector<double>> losses;
  for (const Case& layout : cases) {
    INFO(layout.overrides.front() << " " << layout.ranks);
    std::vector<std::string> overrides = {"parallel.zero=3", "precision.compute=bf16", "precision.residual=fp32"};
    overrides.insert(overrides.end(), layout.overrides.begin(), layout.overrides.end());
    const Outcome plain = train_on_ranks(config_of(overrides, layout.ranks), layout.ranks, 4);
    overrides.emplace_back("comm.weights=int8");
    const RunConfig config = config_of(overrides, layout.ranks);
    Wrapping wrapping;
    check_touched_after(wrapping, config, layout.ranks);
    const Outcome coded = train_on_ranks(config, layout.ranks, 4, nullptr, 0, wrapping);
    CHECK(coded.torn.empty());
    for (size_t step = 0; step < plain.losses.size(); ++step) {
      CHECK(coded.losses[step] != plain.losses[step]);
      CHECK(coded.losses[step] == Approx(plain.losses[step]).epsilon(0.002));
      CHECK(coded.norms[step] == Approx(plain.norms[step]).epsilon(0.02));
    }
    losses.push_back(coded.losses);
  }
  // Two and three ranks have the same blocks of codes, so that only the rounding of sums differs.
  for (size_t step = 0; step < 4; ++step) CHECK(losses[1][step] == Approx(losses[0][step]).epsilon(1e-4));
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

namespace {

// Trains six steps with `keys` beside AdamW. `equal`: steps at the beginning with the same losses.
void check_trains(const std::vector<std::string>& keys, int64_t equal, double bound) {
  struct Case {
    std::vector<std::string> overrides;
    int64_t ranks;
  };
  const std::vector<Case> cases = {{{"precision.compute=bf16", "precision.residual=fp32"}, 3},
                                   {{"parallel.tensor=2", "model.num_heads=4", "model.hidden_size=40"}, 4},
                                   {{"parallel.pipeline=3", "model.tied_head=false"}, 6}};
  for (const Case& layout : cases) {
    INFO(layout.overrides.front());
    std::vector<std::string> overrides = layout.overrides;
    overrides.insert(overrides.end(), {"optimizer.clip_norm=0", "optimizer.betas=[0.9,0.999]"});
    const RunConfig adamw = config_of(overrides, layout.ranks);
    overrides.insert(overrides.end(), keys.begin(), keys.end());
    const RunConfig config = config_of(overrides, layout.ranks);
    const RunConfig* const configs[] = {&adamw, &config};
    std::vector<std::vector<double>> losses;
    for (const RunConfig* const of : configs) {
      std::vector<double>& found = losses.emplace_back();
      on_ranks(*of, layout.ranks, nullptr, {}, [&](RankContext& rank) {
        RandomBatches batches(*of, 0, rank.groups.sample_rank(), rank.groups.num_sample_ranks());
        uint32_t crc = 0;
        for (int64_t step = 0; step < 6; ++step) {
          rank.step.use_program(rank.step.design().program_after(step));
          if (rank.step.design().forgets_errors_after(step)) rank.step.forget_errors();
          const double loss = rank.step.run(1e-3, batches).loss;
          if (rank.groups.rank() == 0) found.push_back(loss);
        }
        crc = rank.step.weights_checksum(ReplicaGroup::data);
        double range[2] = {static_cast<double>(crc), -static_cast<double>(crc)};
        Lane& lane = rank.groups.lane(LaneKind::gradients);
        lane.wait(lane.all_reduce(rank.groups.group(LaneKind::gradients, GroupKind::data), range, 2, DType::f64,
                                  ReduceOp::max));
        if (range[0] != -range[1]) throw std::logic_error("ranks have other weights");
        if (rank.step.taken()[MemoryClass::residuals] != rank.plan.memory().arenas[MemoryClass::residuals] ||
            rank.step.taken()[MemoryClass::optimizer] != rank.plan.memory().arenas[MemoryClass::optimizer])
          throw std::logic_error("the errors have other memory than is planned");
      });
    }
    for (size_t step = 0; step < 6; ++step) {
      CHECK((losses[1][step] == losses[0][step]) == (step < static_cast<size_t>(equal)));
      CHECK(losses[1][step] == Approx(losses[0][step]).epsilon(bound));
    }
  }
}

}  // namespace

// The first step with signs changes the weights that the next step reads.
TEST_CASE("1-bit Adam trains as AdamW until its variances freeze, in the planned memory") {
  check_trains({"optimizer.type=onebit-adam", "optimizer.freeze_step=2"}, 3, 0.01);
}

// Its moments have no corrections, so that its first steps are longer than AdamW's.
TEST_CASE("0/1 Adam trains in the planned memory, with equal weights on all ranks after its exchanges") {
  check_trains({"optimizer.type=zero-one-adam", "optimizer.freeze_step=3", "optimizer.variance_scaler=2",
                "optimizer.local_scaler=1", "optimizer.local_most=2", "run.steps=6", "checkpoint.every_steps=0"},
               1, 0.02);
}

namespace {

// Trains six steps of an optimizer that sends signs, and checks that a run that goes on from a checkpoint after one of
// the steps `saved` finds the same losses.
void check_resumes(const std::vector<std::string>& keys, const std::vector<int64_t>& saved) {
  namespace fs = std::filesystem;
  const fs::path out = fs::temp_directory_path() / fmt::format("signs-{}", getpid());
  RunConfig config = config_of(keys, 3);
  config.run.out = out.string();
  // Trains six steps, or goes on after `first` of them; returns the losses.
  const auto train = [&](const RunConfig& of, int64_t ranks, int64_t first, bool saves) {
    std::vector<double> losses;
    on_ranks(of, ranks, nullptr, {}, [&](RankContext& rank) {
      RandomBatches batches(of, first * of.batch.global, rank.groups.sample_rank(), rank.groups.num_sample_ranks());
      for (const CheckpointInfo& checkpoint : first > 0 ? list_checkpoints(out) : std::vector<CheckpointInfo>{}) {
        if (checkpoint.step == first) load_state(checkpoint.path, rank.step, rank.groups, rank.world);
      }
      for (int64_t step = first; step < 6; ++step) {
        rank.step.use_program(rank.step.design().program_after(step));
        if (rank.step.design().forgets_errors_after(step)) rank.step.forget_errors();
        const double loss = rank.step.run(1e-2, batches).loss;
        if (rank.groups.rank() == 0) losses.push_back(loss);
        if (saves && std::find(saved.begin(), saved.end(), step + 1) != saved.end())
          save_state(of, rank.step, {.step = step + 1, .samples = (step + 1) * of.batch.global, .updates = step + 1},
                     rank.groups, rank.world);
      }
    });
    return losses;
  };
  const std::vector<double> whole = train(config, 3, 0, true);
  for (const CheckpointInfo& checkpoint : list_checkpoints(out)) {
    CHECK_NOTHROW(verify_checkpoint(checkpoint.path));
    CHECK_NOTHROW(check_model(checkpoint.path));
  }
  for (const int64_t step : saved) {
    INFO("after step " << step);
    CHECK(train(config, 3, step, false) == std::vector<double>(whole.begin() + step, whole.end()));
  }
  // Two ranks share out the errors of three.
  const std::vector<double> of_two = train(config_of(keys, 2), 2, 4, false);
  CHECK(of_two[0] == Approx(whole[4]).epsilon(1e-5));
  CHECK(of_two[1] == Approx(whole[5]).epsilon(1e-2));
  fs::remove_all(out);
}

// Sums of the ranks' errors, by tensor and element of the global tensor.
class AllErrors {
 public:
  // Adds a rank's errors. Thread-safe.
  void add(const TrainingStep& step) {
    const std::lock_guard lock(mutex_);
    for (const StateSlice& piece : step.residuals()) {
      const int64_t cols = step.spec().tensors[static_cast<size_t>(piece.tensor)].shape.back();
      std::vector<double>& sums = sums_[piece.tensor];
      sums.resize(static_cast<size_t>(step.spec().tensors[static_cast<size_t>(piece.tensor)].count()));
      for (int64_t i = 0; i < piece.count(); ++i) {
        const int64_t row = piece.offset[0] + i / piece.shape[1], col = piece.offset[1] + i % piece.shape[1];
        sums[static_cast<size_t>(row * cols + col)] += static_cast<double>(piece.residual[i]);
      }
    }
  }
  // Returns the norm of the difference to other sums, divided by their norm.
  double difference(const AllErrors& other) const {
    double off = 0, size = 0;
    for (const auto& [tensor, sums] : other.sums_) {
      for (size_t i = 0; i < sums.size(); ++i) {
        off += std::pow(sums_.at(tensor).at(i) - sums[i], 2);
        size += sums[i] * sums[i];
      }
    }
    return size == 0 ? 1 : std::sqrt(off / size);
  }

 private:
  std::mutex mutex_;
  std::map<int64_t, std::vector<double>> sums_;
};

}  // namespace

TEST_CASE("errors of sums between nodes resume to the bit, and pass to other layouts with their sum") {
  namespace fs = std::filesystem;
  const fs::path out = fs::temp_directory_path() / fmt::format("between-nodes-{}", getpid());
  for (const std::string zero : {"parallel.zero=0", "parallel.zero=2"}) {
    INFO(zero);
    const auto of = [&](const std::string& compression, int64_t ranks, int64_t of_node) {
      RunConfig config =
          config_of({zero, compression, fmt::format("comm.ranks_per_node={}", of_node), "batch.micro=1"}, ranks);
      config.run.out = out.string();
      return config;
    };
    // Trains `steps` steps, after those of the checkpoint if it loads; saves after two. Adds up the errors then.
    const auto train = [&](const RunConfig& config, int64_t ranks, bool loads, int64_t steps, AllErrors& errors) {
      const int64_t first = loads ? 2 : 0;
      std::vector<double> losses;
      on_ranks(config, ranks, nullptr, {}, [&](RankContext& rank) {
        RandomBatches batches(config, first * config.batch.global, rank.groups.sample_rank(),
                              rank.groups.num_sample_ranks());
        if (loads) load_state(list_checkpoints(out).front().path, rank.step, rank.groups, rank.world);
        for (int64_t step = first; step <= first + steps; ++step) {
          if (step == 2) errors.add(rank.step);
          if (step == 2 && !loads)
            save_state(config, rank.step, {.step = 2, .samples = 2 * config.batch.global, .updates = 2}, rank.groups,
                       rank.world);
          if (step == first + steps) break;
          const double loss = rank.step.run(1e-2, batches).loss;
          if (rank.groups.rank() == 0) losses.push_back(loss);
        }
      });
      return losses;
    };
    AllErrors saved, same;
    const RunConfig config = of(between_nodes, 4, 2);
    const std::vector<double> whole = train(config, 4, false, 4, saved);
    const fs::path checkpoint = list_checkpoints(out).front().path;
    CHECK_NOTHROW(verify_checkpoint(checkpoint));
    CHECK_NOTHROW(check_model(checkpoint));
    CHECK(train(config, 4, true, 2, same) == std::vector<double>(whole.begin() + 2, whole.end()));
    CHECK(same.difference(saved) == 0);
    struct Other {
      std::string compression;
      int64_t ranks, of_node;
    };
    for (const auto& [compression, ranks, of_node] :
         {Other{between_nodes, 6, 3}, {between_nodes, 6, 2}, {int8, 3, 0}, {int8, 2, 0}}) {
      INFO(compression << " " << ranks);
      AllErrors passed;
      const std::vector<double> losses = train(of(compression, ranks, of_node), ranks, true, 1, passed);
      CHECK(passed.difference(saved) < 1e-6);
      CHECK(losses[0] == Approx(whole[2]).epsilon(1e-5));
    }
    fs::remove_all(out);
  }
}

TEST_CASE("1-bit Adam resumes to the bit with the errors of all ranks, also before its variances freeze") {
  check_resumes({"optimizer.type=onebit-adam", "optimizer.freeze_step=2"}, {1, 4});
}

// The steps 1 and 2 update variances, 3 sums signs, 4 exchanges, 5 is local, and 6 exchanges.
TEST_CASE("0/1 Adam resumes to the bit after steps of each kind that leave equal weights") {
  check_resumes({"optimizer.type=zero-one-adam", "optimizer.freeze_step=3", "optimizer.variance_scaler=2",
                 "optimizer.local_scaler=1", "optimizer.local_most=2", "run.steps=6", "checkpoint.every_steps=0"},
                {2, 3, 4});
}

}  // namespace test_compression
