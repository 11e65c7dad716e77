#include <algorithm>
#include <array>
#include <compare>
#include <fmt/format.h>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/philox.h"
#include "comm/world.h"
#include "config/load.h"
#include "fit/choose_step.h"
#include "planner/measure_ops.h"
#include "step/plan_step.h"
#include "step/step_profiler.h"

namespace gptrain::inline planner {
namespace {

// Micro-batches of random tokens of the whole vocabulary.
class AnyTokens final : public MicroBatchSource {
 public:
  explicit AnyTokens(const StepConfig& config)
      : memory_(micro_batch_shape(config).bytes()), view_(MicroBatch::at(memory_.data(), micro_batch_shape(config))) {
    for (int64_t i = 0; i < micro_batch_shape(config).rows(); ++i) {
      const auto words = philox({1}, {static_cast<uint32_t>(i)});
      view_.tokens[i] = static_cast<int32_t>(words[0] % static_cast<uint32_t>(config.model.vocab_size));
      view_.targets[i] = static_cast<int32_t>(words[1] % static_cast<uint32_t>(config.model.vocab_size));
    }
  }
  const MicroBatch& next() override { return view_; }

 private:
  std::vector<std::byte> memory_;
  MicroBatch view_;
};

// A model of one layer.
struct ModelSize {
  int64_t hidden, length, batch, vocabulary;

  double flops() const {
    const auto h = static_cast<double>(hidden);
    return 6 * static_cast<double>(length * batch) * h * (12 * h + static_cast<double>(vocabulary));
  }
};
constexpr std::array cpu_sizes{ModelSize{.hidden = 64, .length = 32, .batch = 2, .vocabulary = 256},
                               ModelSize{.hidden = 192, .length = 128, .batch = 2, .vocabulary = 1024},
                               ModelSize{.hidden = 384, .length = 256, .batch = 4, .vocabulary = 4096},
                               ModelSize{.hidden = 1024, .length = 256, .batch = 8, .vocabulary = 4096}};
constexpr std::array gpu_sizes{ModelSize{.hidden = 256, .length = 128, .batch = 2, .vocabulary = 1024},
                               ModelSize{.hidden = 1024, .length = 512, .batch = 8, .vocabulary = 8192},
                               ModelSize{.hidden = 2048, .length = 2048, .batch = 8, .vocabulary = 32768}};

// Settings of GPT-2, of LLaMA without and with norms of queries and keys, and of Gemma 2. The third has GeGLU, as
// activations have tables of their own.
constexpr std::array<std::string_view, 4> families = {
    R"("norm": "layernorm", "activation": "gelu_tanh", "positions": "learned")",
    R"("norm": "rmsnorm", "activation": "swiglu", "positions": "rope", "bias": false)",
    R"("norm": "rmsnorm", "activation": "geglu", "positions": "rope", "bias": false, "qk_norm": true)",
    R"("norm": "rmsnorm", "activation": "geglu_tanh", "positions": "rope", "bias": false,
       "attention_softcap": 50.0, "logit_softcap": 30.0)"};

RunConfig config_of(const ModelSize& size, std::string_view family, DType dtype, bool on_gpu) {
  const std::string text = fmt::format(
      R"({{"model": {{"num_layers": 1, "hidden_size": {}, "num_heads": {}, "sequence_length": {}, "vocab_size": {},
                      "tied_head": false, {}}},
          "data": {{"train": [{{"path": "none"}}]}}, "batch": {{"global": {}, "micro": {}}},
          "precision": {{"compute": "{}"}}, "optimizer": {{"lr": 1e-3}}, "schedule": {{"type": "constant"}},
          "run": {{"steps": 10, "out": "none", "device": "{}"}}}})",
      size.hidden, size.hidden / 64, size.length, size.vocabulary, family, 2 * size.batch, size.batch,
      dtype == DType::f32 ? "fp32" : "bf16", on_gpu ? "cuda" : "cpu");
  return parse_config(text, {}, "a config of the bench");
}

// Key and sizes under which the tables hold an op of a step.
struct AskedOp {
  std::string key;
  std::vector<double> sizes;
  std::string in_step_key;  // empty if the op has no products
  double flops = 0;

  auto operator<=>(const AskedOp&) const = default;
};

// Times of one model's steps.
struct TimedSteps {
  std::map<AskedOp, std::vector<double>> ops;  // seconds of each call, in profiled steps
  int64_t num_profiled = 0;
  std::vector<double> step_seconds;  // seconds of whole steps that were not profiled
};

AskedOp asked_op(const Event& event, const StepConfig& config) {
  const OpKinds kinds = op_kinds(config.model);
  if (event.products.kind == ProductShape::Kind::none)
    return {op_key(event.name, config.precision.compute, kinds), {static_cast<double>(event.bytes_moved)}, "", 0};
  return {op_key(event.name, event.products.dtype, kinds), product_sizes(event.products), in_step_key(event, kinds),
          static_cast<double>(event.executed_flops)};
}

TimedSteps time_steps(Backend& backend, const RunConfig& config, const MeasuringTime& time) {
  constexpr int most_steps = 12;
  const auto world = std::move(make_local_world(1).front());
  RankGroups groups(config, *world);
  groups.use_memory_of(backend, true, config.comm.timeout_seconds);
  StepProfiler profiler(backend, groups);
  const StepPlan plan = plan_rank({config, backend.target()});
  TrainingStep step(plan.design, profiler.backend(), groups);
  step.choose_algorithms();
  step.initialize();
  AnyTokens batches(config);
  step.run(1e-3, batches);
  TimedSteps timed;
  const double start = steady_seconds();
  double round_seconds = 0;
  for (int i = 0; i < most_steps; ++i) {
    const double before = steady_seconds();
    if (i > 0 && before - start + round_seconds > time.seconds) break;
    timed.step_seconds.push_back(step.run(1e-3, batches).seconds);
    profiler.start();
    step.run(1e-3, batches, &profiler);
    const StepProfile profile = profiler.finish(i, 0, {config.precision.compute, 1, 1}, step.design().stages);
    ++timed.num_profiled;
    for_each_part(profile, [&](const StepPart& part) {
      for (const Event& event : part.events) {
        if (event.kind == Event::Kind::op)
          timed.ops[asked_op(event, config)].push_back(event.end_seconds - event.start_seconds);
      }
    });
    round_seconds = steady_seconds() - before;
    if (time.tick) time.tick();
  }
  return timed;
}

// Sums over all calls of one kind of op with products, in models of one size: seconds in steps, seconds by the tables,
// FLOPs.
struct Products {
  double in_step = 0, alone = 0, flops = 0, calls = 0;
};

// Seconds of all ops of a step in fast runs, and their number.
struct QuickOps {
  double seconds = 0, calls = 0;
};
QuickOps quick_ops(const TimedSteps& timed) {
  QuickOps all;
  for (const auto& [op, seconds] : timed.ops) {
    const double calls = static_cast<double>(seconds.size()) / static_cast<double>(timed.num_profiled);
    all.seconds += calls * quick_quarter(seconds);
    all.calls += calls;
  }
  return all;
}

class StepTables {
 public:
  // REQUIRES: `ops`, which must outlive this, has the tables of ops with products.
  explicit StepTables(MeasuredOps& ops) : ops_(ops) {}

  void add(const TimedSteps& timed, size_t size) {
    for (const auto& [op, seconds] : timed.ops) {
      if (op.in_step_key.empty()) {
        std::vector<double>& samples = others_[{op.key, op.sizes.front()}];
        samples.insert(samples.end(), seconds.begin(), seconds.end());
        continue;
      }
      const auto table = ops_.tables.find(op.key);
      if (table == ops_.tables.end()) continue;
      Products& products = products_[{op.in_step_key, size}];
      const auto calls = static_cast<double>(seconds.size());
      products.in_step += calls * quick_quarter(seconds);
      products.alone += calls * op.flops / table->second.at(op.sizes);
      products.flops += calls * op.flops;
      products.calls += calls;
    }
  }

  void finish() {
    std::map<std::string, std::vector<std::vector<double>>> rows, ratios;
    for (const auto& [what, seconds] : others_)
      rows[what.first].push_back({what.second, std::max(quick_quarter(seconds), 1e-9)});
    // Products of the smallest model mostly measure how threads start and stop; they are used if there is no larger
    // model.
    size_t largest = 0;
    for (const auto& [what, products] : products_) largest = std::max(largest, what.second);
    for (const auto& [what, products] : products_) {
      if (what.second == 0 && largest > 0) continue;
      ratios[what.first].push_back({products.flops / products.calls, products.in_step / products.alone});
    }
    for (const auto& [key, of_key] : rows)
      ops_.tables.insert_or_assign(key, RateTable(RateTable::Kind::seconds, of_key));
    for (const auto& [key, of_key] : ratios)
      ops_.in_steps.insert_or_assign(key, RateTable(RateTable::Kind::ratio, of_key));
  }

 private:
  MeasuredOps& ops_;
  std::map<std::pair<std::string, double>, std::vector<double>> others_;  // by key and bytes
  std::map<std::pair<std::string, size_t>, Products> products_;  // by in_step_key and number of the model's size
};

}  // namespace

void measure_steps(Backend& backend, DType dtype, const MeasuringTime& time, MeasuredOps& ops) {
  const double start = steady_seconds();
  const bool on_gpu = backend.target().kind == Target::Kind::gpu;
  const double rate = usual_rate(backend, dtype);
  std::vector<ModelSize> sizes(cpu_sizes.begin(), cpu_sizes.end());
  if (on_gpu) sizes.assign(gpu_sizes.begin(), gpu_sizes.end());
  StepTables tables(ops);
  for (size_t i = 0; i < sizes.size(); ++i) {
    // A model needs three steps of two micro-batches; products take about three quarters of a step.
    const double least = static_cast<double>(families.size()) * 2 * 3 * sizes[i].flops() / rate / 0.75;
    const double left = time.seconds - (steady_seconds() - start);
    if (i > 0 && least > left) break;
    // Time that small models leave goes to larger ones.
    const double part = left / static_cast<double>(sizes.size() - i) / static_cast<double>(families.size());
    for (const std::string_view family : families) {
      const TimedSteps timed = time_steps(backend, config_of(sizes[i], family, dtype, on_gpu), {part, time.tick});
      tables.add(timed, i);
      const QuickOps quick = quick_ops(timed);
      ops.step_seconds += median(timed.step_seconds);
      ops.quick_seconds += quick.seconds;
      // The pause between ops comes from steps that are not profiled.
      if (i == 0 && dtype == DType::f32 && family == families.front())
        ops.between_ops_seconds = std::max(0.0, quick_quarter(timed.step_seconds) - quick.seconds) / quick.calls;
    }
  }
  tables.finish();
}

}  // namespace gptrain::planner
