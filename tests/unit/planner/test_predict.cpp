// A rank's predicted clock over ops, collectives and waits, and predictions for a run.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "catch.h"
#include "fit/plan_world.h"
#include "fit/recompute_plan.h"
#include "fit/step_times.h"
#include "model_fixture.h"
#include "planner/predict.h"
#include "planner/recompute_curve.h"

namespace gptrain::test_predict {
namespace {

using testing::Family;
using testing::small_config;

Machine machine_with(double slow_down) {
  Machine machine{find_device("a100-80g"), find_cluster("dgx-a100")};
  machine.device.slow_down_beside_traffic = slow_down;
  return machine;
}

// Returns the times of rank 0 of 8 data ranks, on one node.
EventTimes times_of(const Machine& machine) {
  const RunConfig config = small_config(Family::gpt2, {"batch.global=8", "batch.micro=1"}, 8);
  return {machine, config, config.run.threads, make_mesh(config, 8), 0};
}

Event copies(int64_t bytes) { return {.name = "cast", .bytes_moved = bytes}; }

Event all_reduce(int64_t bytes) {
  return {.kind = Event::Kind::collective,
          .channel = {static_cast<int8_t>(LaneKind::gradients), static_cast<int8_t>(GroupKind::data)},
          .ranks = 8,
          .name = operation_name(Operation::all_reduce),
          .bytes_moved = bytes};
}

Event wait_for(int64_t event) { return {.kind = Event::Kind::wait, .awaits = event}; }

StepLog log_of(EventBlock events) {
  StepLog log;
  log.before = std::move(events);
  return log;
}

constexpr auto gradients = static_cast<size_t>(LaneKind::gradients);

TEST_CASE("a collective runs beside ops, and what is left of it when it is needed is exposed") {
  const EventTimes times = times_of(machine_with(0));
  const Event large = all_reduce(1'000'000'000), op = copies(1'000'000'000);
  const double sum = times.seconds_of(large), work = times.seconds_of(op);
  REQUIRE(sum > 2 * work);
  const StepLog log = log_of({large, op, op, wait_for(0), op});
  RankClock clock(log, times);
  std::vector<TimeSpan> spans;
  clock.next(nullptr, &spans);
  CHECK(clock.end().time == Approx(sum + work));
  CHECK(clock.exposed_seconds()[gradients] == Approx(sum - 2 * work));
  CHECK(clock.longest_waits()[gradients].operation == "all_reduce");
  CHECK(spans[0].seconds() == Approx(sum));
  CHECK(spans[3].seconds() == Approx(sum - 2 * work));
  // The longest chain is the collective and everything after it.
  const Moment end = clock.end();
  CHECK(end.spent[lane_spending(gradients)] == Approx(sum));
  CHECK(end.spent[static_cast<size_t>(Spending::memory)] == Approx(work));
  CHECK(std::accumulate(end.spent.begin(), end.spent.end(), 0.0) == Approx(end.time));
}

TEST_CASE("ops beside a collective are slowed down for as long as it runs") {
  const EventTimes times = times_of(machine_with(0.2));
  const Event op = copies(4'000'000'000), sum = all_reduce(100'000'000);
  const double work = times.seconds_of(op), of_sum = times.seconds_of(sum);
  REQUIRE(of_sum < work);
  const StepLog log = log_of({sum, op});
  RankClock clock(log, times);
  clock.next();
  CHECK(clock.end().time == Approx(work + 0.2 * of_sum));
  const Event long_sum = all_reduce(100'000'000'000);
  const StepLog covered = log_of({long_sum, op});
  RankClock slow(covered, times);
  slow.next();
  CHECK(slow.now().time == Approx(work / 0.8));
  CHECK(slow.end().time == Approx(times.seconds_of(long_sum)));
}

TEST_CASE("software that waits for its collectives hides none of them") {
  Machine machine = machine_with(0.2);
  machine = run_by(machine, "megatron-lm");
  const EventTimes times = times_of(machine);
  const Event op = copies(1'000'000'000), sum = all_reduce(100'000'000);
  const StepLog log = log_of({sum, op, wait_for(0)});
  RankClock clock(log, times);
  clock.next();
  CHECK(clock.end().time == Approx(times.seconds_of(sum) + times.seconds_of(op)));
  CHECK(clock.exposed_seconds()[gradients] == Approx(times.seconds_of(sum)));
}

TEST_CASE("without rates an event takes a microsecond") {
  const StepLog log = log_of({copies(1), all_reduce(1), wait_for(1)});
  RankClock clock(log, EventTimes());
  clock.next();
  CHECK(clock.end().time == Approx(2e-6));
}

TEST_CASE("no other interval between checkpoints loses less") {
  const double mtbf = 40'000, restart = 300;
  for (const SaveTimes save : {SaveTimes{30, 30}, SaveTimes{0.5, 31}}) {
    const Saving best = best_saving(save, mtbf, restart);
    CHECK(best.best_interval == Approx(std::sqrt(2 * save.cost * mtbf)));
    const auto goodput = [&](double interval) {
      return 1 - save.cost / interval - (interval / 2 + save.durable - save.cost + restart) / mtbf;
    };
    CHECK(best.goodput == Approx(goodput(best.best_interval)));
    for (const double factor : {0.5, 0.9, 1.1, 2.0}) CHECK(goodput(factor * best.best_interval) < best.goodput);
  }
  CHECK(best_saving({1e6, 1e6}, 1e3, 0).goodput == 0);
  // A save waits for the previous one.
  CHECK(best_saving({0.001, 600}, mtbf, restart).best_interval == 600);
}

TEST_CASE("steps wait for the copy of an asynchronous checkpoint, and for the whole of another") {
  Machine machine{find_device("a100-80g"), find_cluster("dgx-a100")};
  // The largest rank writes more than an eighth of the largest node's bytes, and that node more than a 128th of all.
  const CheckpointForecast checkpoint{
      .bytes = 16'000'000'000'000, .rank_bytes = 20'000'000'000, .node_bytes = 130'000'000'000, .seconds = 65};
  const StepForecast waits = forecast_step(machine, {}, 1024, checkpoint, false);
  CHECK(waits.checkpoint_cost_seconds == 65);
  const StepForecast beside = forecast_step(machine, {}, 1024, checkpoint, true);
  CHECK(beside.checkpoint_cost_seconds == Approx(2e10 / 3.2e10));
  CHECK(beside.goodput > waits.goodput);
  // Eight devices copy into one memory.
  machine.cluster.host_memory_bytes_per_second = 8e10;
  CHECK(forecast_step(machine, {}, 1024, checkpoint, true).checkpoint_cost_seconds == Approx(1.3e11 / 8e10));
}

TEST_CASE("the best interval is no shorter than the node that writes the most takes") {
  Machine machine{find_device("a100-80g"), find_cluster("dgx-a100")};
  machine.cluster.storage_bytes_per_second = 1e6;
  const RunConfig config = small_config(Family::gpt2, {"batch.global=9", "batch.micro=1"}, 9);  // a node and a rank
  const Prediction prediction = predict_run(config, machine, 9);
  const CheckpointForecast checkpoint = planned_checkpoint(machine, config, prediction.plan, 9);
  CHECK(checkpoint.node_bytes > checkpoint.bytes / 2);
  CHECK(checkpoint.seconds == static_cast<double>(checkpoint.node_bytes) / 1e6);
  machine.cluster.node_mtbf_seconds = 1e-3;  // by which alone the interval would be shorter
  CHECK(predict_run(config, machine, 9).forecast.best_checkpoint_interval >= checkpoint.seconds);
}

}  // namespace
TEST_CASE("the room of a curve is that of the stage that has the least") {
  const Machine machine = machine_with(0);
  const RunConfig config = small_config(Family::gpt2,
                                        {"parallel.pipeline=3", "model.num_layers=7", "batch.global=12",
                                         "batch.micro=1", "run.device=auto", "memory.recompute=optimal"},
                                        3);
  const Target target = planned_target(machine, config.run.threads, 3);
  std::vector<int64_t> rooms;
  for (const int32_t stage : {0, 1, 2}) rooms.push_back(activation_headroom({config, target, 3}, stage));
  const auto [least, most] = std::minmax_element(rooms.begin(), rooms.end());
  REQUIRE(*least < *most);
  CHECK(forecast_recomputation({config, target, 3}, &machine, plan_world({config, target, 3})).headroom_bytes ==
        *least);
}

TEST_CASE("what a setting costs by usual rates is what is predicted") {
  struct Setting {
    std::vector<std::string> overrides;
    double tolerance;
  };
  const std::vector<Setting> settings = {{{"batch.micro=8"}, 0.03},
                                         {{"batch.micro=1"}, 0.08},
                                         {{"memory.recompute=block"}, 0.03},
                                         {{"memory.recompute=selective"}, 0.03},
                                         {{"memory.recompute=ffn"}, 0.03},
                                         {{"memory.saved_inputs=8"}, 0.03},
                                         {{"memory.activation_bits=3"}, 0.03},
                                         {{"memory.offload_activations=hidden"}, 0.03},
                                         {{"memory.offload_activations=all"}, 0.2},
                                         {{"precision.compute=fp32"}, 0.2}};
  for (const char* device : {"v100-32g", "rtx-2080-ti", "a100-80g", "h100", "b200"}) {
    const DeviceProfile profile = find_device(device);
    Machine machine{profile, cluster_of(profile)};
    machine.software.own_attention = false;  // usual rates know one kernel of attention
    const auto config_of = [&](const std::vector<std::string>& overrides) {
      const std::string compute = profile.compute_capability < 8 ? "fp16" : "bf16";
      return parse_config(R"({"model": {"preset": "gpt2-1.5b"}, "data": {"train": [{"path": "x"}]},
                              "batch": {"global": 64, "micro": 32}, "precision": {"compute": ")" +
                              compute + R"("},
                              "optimizer": {"lr": 1e-3}, "run": {"steps": 10, "out": "x"}})",
                          overrides, "test");
    };
    const auto seconds_of = [&](const RunConfig& config) {
      return std::pair(nominal_step_seconds({config, planned_target(machine, config.run.threads, 1), 1}, 0),
                       predict_run(config, machine, 1).forecast.step_seconds);
    };
    const auto [nominal_now, predicted_now] = seconds_of(config_of({}));
    for (const Setting& setting : settings) {
      const auto [nominal, predicted] = seconds_of(config_of(setting.overrides));
      INFO(device << " " << setting.overrides.front());
      CHECK(nominal / nominal_now == Approx(predicted / predicted_now).epsilon(setting.tolerance));
    }
  }
}

}  // namespace gptrain::test_predict
