// 8-bit moments over layouts: blocks are the same as on one rank unless a tensor rank cuts them, and checkpoints carry
// them to other layouts.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <unistd.h>
#include <vector>

#include "base/dynamic_map.h"
#include "catch.h"
#include "checkpoint/checkpoint.h"
#include "fit/choose_step.h"
#include "layouts.h"
#include "model_fixture.h"
#include "poisoning_backend.h"
#include "train/run_state.h"

namespace test_adamw_8bit {

using namespace gptrain;
using namespace gptrain::testing;
using gptrain::testing::train;

namespace {

// The eps of layouts.cpp, for the same reason.
const Overrides coded = {"optimizer.type=adamw-8bit", "optimizer.eps=1e-4"};
// Enough columns that two tensor ranks have whole blocks of each row; both have the only key-value head.
const Overrides wide = {"optimizer.type=adamw-8bit", "optimizer.eps=1e-4",      "model.hidden_size=512",
                        "model.num_heads=4",         "model.num_kv_heads=1",    "model.ffn_hidden_size=512",
                        "model.num_layers=2",        "model.sequence_length=6", "model.vocab_size=101",
                        "model.tied_head=true"};

constexpr auto with_sign = make_decode_table<true>();
constexpr auto without_sign = make_decode_table<false>();

// Moments by "exp_avg/NAME" and "exp_avg_sq/NAME", decoded if they are codes.
using Moments = std::map<std::string, std::vector<float>>;

std::vector<float> downloaded(const TrainingStep& step, const std::byte* data, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  step.backend().download(values.data(), data, count * dtype_bytes(DType::f32));
  return values;
}

// Adds the rank's moments 0 and 1; its columns are {exp_avg, exp_avg_sq, codes, codes, scales, scales}.
void add_moments(const TrainingStep& step, Moments& moments) {
  std::vector<float> scales;
  size_t behind = 0;  // elements of the tensor in earlier pieces
  for (const size_t moment : {size_t{0}, size_t{1}}) {
    for (const StateSlice& piece : step.state()) {
      const TensorSpec& tensor = step.spec().tensors[static_cast<size_t>(piece.tensor)];
      std::vector<float> values;
      if (!tensor.has_block_state()) {
        values = downloaded(step, piece.columns[moment], piece.count());
      } else {
        if (piece.num_blocks > 0) scales = downloaded(step, piece.columns[4 + moment], piece.num_blocks);
        if (piece.num_blocks > 0) behind = 0;
        std::vector<uint8_t> codes(static_cast<size_t>(piece.count()));
        step.backend().download(codes.data(), piece.columns[2 + moment], piece.count());
        for (const uint8_t code : codes) {
          const float value = moment == 0 ? with_sign.values[code] : without_sign.values[code];
          values.push_back(value * scales.at(behind++ / state_block));
        }
      }
      std::vector<float>& all = moments[(moment == 0 ? "exp_avg/" : "exp_avg_sq/") + tensor.name];
      all.resize(static_cast<size_t>(tensor.count()));
      const int64_t cols = tensor.shape.size() == 2 ? tensor.shape[1] : 1;
      const int64_t width = piece.shape.size() == 2 ? piece.shape[1] : 1;
      for (int64_t i = 0; i < piece.count(); ++i) {
        const int64_t col = (piece.shape.size() == 2 ? piece.offset[1] : 0) + i % width;
        all[static_cast<size_t>((piece.offset[0] + i / width) * cols + col)] = values[static_cast<size_t>(i)];
      }
    }
  }
}

// Runs body(step, groups, world) on every rank and returns the resulting moments.
template <typename Body>
Moments moments_after(const RunConfig& config, int64_t world_size, const Body& body) {
  Moments moments;
  std::mutex mutex;
  run_local_ranks(static_cast<int>(world_size), [&](World& world) {
    RankGroups groups(config, world);
    const auto backend = make_cpu_backend(1);
    groups.use_memory_of(*backend, false, config.comm.timeout_seconds);
    const StepPlan plan = plan_rank({config, backend->target(), world_size}, world.rank());
    TrainingStep step(plan.design, *backend, groups);
    step.initialize();
    body(step, groups, world);
    const std::lock_guard lock(mutex);
    add_moments(step, moments);
  });
  return moments;
}

struct Folder {
  std::filesystem::path path = std::filesystem::temp_directory_path() / fmt::format("gptrain-blocks-{}", getpid());
  Folder() { std::filesystem::create_directory(path); }
  ~Folder() { std::filesystem::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
};

Overrides with(Overrides overrides, const std::string& more) {
  overrides.push_back(more);
  return overrides;
}

// Moments after two steps on layout `saved`, and after loading them on layout `loading`.
struct Moved {
  Moments saved, loaded;
};

Moved moved(const SmallLayout& saved, const SmallLayout& loading, const Overrides& overrides) {
  const Folder folder;
  const Overrides in_folder = with(overrides, "run.out=" + folder.path.string());
  const RunConfig config = config_of(saved, in_folder), other = config_of(loading, in_folder);
  Moved result;
  result.saved = moments_after(config, saved.world_size(), [&](TrainingStep& step, RankGroups& groups, World& world) {
    RandomBatches batches(config, 0, groups.sample_rank(), groups.num_sample_ranks());
    for (int i = 0; i < 2; ++i) step.run(1e-3, batches);
    save_state(config, step, {.step = 2, .samples = 24, .updates = 2}, groups, world);
  });
  const std::filesystem::path checkpoint = resolve_checkpoint(folder.path);
  REQUIRE_NOTHROW(checkpoint_to_resume(other, "latest"));
  result.loaded = moments_after(other, loading.world_size(), [&](TrainingStep& step, RankGroups& groups, World& world) {
    load_state(checkpoint, step, groups, world);
  });
  return result;
}

double norm(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(sum);
}

std::vector<float> difference(std::vector<float> a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] -= b[i];
  return a;
}

}  // namespace

TEST_CASE("moments of 8 bits after two steps are those of one rank, but for codes that rounding turns", "[long]") {
  const auto run = [](const SmallLayout& layout) {
    const RunConfig config = config_of(layout, wide);
    return moments_after(config, layout.world_size(), [&](TrainingStep& step, RankGroups& groups, World&) {
      RandomBatches batches(config, 0, groups.sample_rank(), groups.num_sample_ranks());
      for (int i = 0; i < 2; ++i) step.run(1e-3, batches);
    });
  };
  const Moments one = run({1, 1, {}});
  for (const SmallLayout& layout :
       {SmallLayout{2, 1, {}}, SmallLayout{1, 3, {"parallel.zero=1"}},
        SmallLayout{2, 2, {"parallel.zero=2", "parallel.sequence=true"}},
        SmallLayout{.tensor = 2, .data = 2, .overrides = {"parallel.zero=3"}, .pipeline = 2}}) {
    const Moments many = run(layout);
    REQUIRE(many.size() == one.size());
    for (const auto& [name, values] : one) {
      const std::vector<float>& others = many.at(name);
      int64_t turned = 0;
      float largest = 0, furthest = 0;
      for (const float value : values) largest = std::max(largest, std::abs(value));
      for (size_t i = 0; i < values.size(); ++i) {
        const float distance = std::abs(values[i] - others[i]);
        turned += distance > 1e-4F * std::abs(values[i]) + 1e-5F * largest ? 1 : 0;
        furthest = std::max(furthest, distance);
      }
      INFO(layout.world_size() << " ranks, " << name << ": " << turned << " of " << values.size() << " differ, by "
                               << furthest << " of " << largest);
      CHECK(turned <= std::ssize(values) / 200 + 1);
      CHECK(furthest <= 0.02F * largest);
    }
  }
}

// Single codes are off by some percent, their sums hardly at all.
TEST_CASE("steps with moments of 8 bits have the rates, decay and eps of the config", "[long]") {
  const SmallLayout alone{1, 1, {}};
  const auto settings = [](const char* optimizer) -> Overrides {
    return {optimizer, "optimizer.betas=[0.6,0.7]", "optimizer.eps=1e-3", "optimizer.weight_decay=9",
            "model.hidden_size=96"};
  };
  const Overrides coded_settings = settings("optimizer.type=adamw-8bit");
  const Outcome exact = train(alone, settings("optimizer.type=adamw"), 3), codes = train(alone, coded_settings, 3);
  const RunConfig config = config_of(alone, coded_settings);
  const Moments moments = moments_after(config, 1, [&](TrainingStep& step, RankGroups&, World&) {
    RandomBatches batches(config);
    for (int i = 0; i < 3; ++i) step.run(1e-3, batches);
  });
  const auto size = [](const std::vector<float>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0,
                           [](double sum, float value) { return sum + std::abs(value); });
  };
  for (const auto& [name, values] : exact.state) {
    INFO(name);
    if (name.starts_with("weight/")) {
      CHECK(relative_distance(codes.state.at(name), values) < 0.01);
    } else if (std::ssize(values) >= 4096) {
      CHECK(size(moments.at(name)) == Approx(size(values)).epsilon(0.005));
    }
  }
}

TEST_CASE("ranks that hold the same weights have the same bits with moments of 8 bits", "[long]") {
  for (const SmallLayout& layout :
       {SmallLayout{.tensor = 2, .data = 1, .overrides = {}, .pipeline = 2}, SmallLayout{2, 2, {"parallel.zero=1"}}}) {
    for (const char* precision : {"precision.compute=fp32", "precision.compute=bf16-pure"}) {
      INFO(layout.world_size() << " ranks " << precision);
      CHECK(train(layout, with(wide, precision), 3).torn.empty());
    }
  }
}

TEST_CASE("a checkpoint takes moments of 8 bits to every layout, to the bit where blocks are not cut", "[long]") {
  const std::vector<SmallLayout> layouts = {{1, 1, {}},
                                            {2, 2, {"parallel.zero=3"}},
                                            {1, 3, {"parallel.zero=1"}},
                                            {.tensor = 2, .data = 1, .overrides = {}, .pipeline = 2},
                                            {1, 2, {"parallel.zero=0"}}};
  for (size_t i = 0; i < layouts.size(); ++i) {
    const SmallLayout& saved = layouts[i];
    const SmallLayout& loading = layouts[(i + 1) % layouts.size()];
    const Moved both = moved(saved, loading, wide);
    INFO("from layout " << i << " to the next");
    REQUIRE(both.saved.size() == both.loaded.size());
    for (const auto& [name, values] : both.saved) {
      INFO(name);
      CHECK(same_bits(values, both.loaded.at(name)));
    }
  }
}

TEST_CASE("blocks that tensor ranks cut are coded anew, as near as codes are") {
  const SmallLayout alone{1, 1, {}}, two{2, 1, {}};
  for (const auto& [saved, loading] : {std::pair{alone, two}, std::pair{two, alone}}) {
    const Moved both = moved(saved, loading, coded);
    int64_t changed = 0;
    for (const auto& [name, values] : both.saved) {
      INFO(name);
      const std::vector<float>& others = both.loaded.at(name);
      // Half a cell of the largest codes is 0.7%; only one in ten thousand is among the coarser small codes.
      CHECK(norm(difference(values, others)) <= 0.01 * norm(values));
      changed += same_bits(values, others) ? 0 : 1;
    }
    CHECK(changed > 0);
  }
}

TEST_CASE("state of 8 bits takes the bytes of the closed formula, and touches them") {
  const auto padded = [](int64_t count, int64_t multiple) { return (count + multiple - 1) / multiple * multiple; };
  for (const int64_t data : {1, 3}) {
    for (const char* ema : {"optimizer.ema=0", "optimizer.ema=0.9"}) {
      const SmallLayout layout{1, data, {data > 1 ? "parallel.zero=1" : "parallel.zero=0"}};
      const RunConfig config = config_of(layout, with(coded, ema));
      const ModelSpec spec = make_spec(config.model);
      int64_t expected = 0, codes = 0;
      for (size_t unit = 0; unit < spec.units.size(); ++unit) {
        int64_t first = 0, last = 0;
        for (const TensorSpec& tensor : spec.tensors) {
          if (tensor.unit != static_cast<int64_t>(unit)) continue;
          // The vocabulary is padded.
          const int64_t rows = tensor.split == Split::vocabulary ? padded(tensor.shape[0], 64) : tensor.shape[0];
          const int64_t count = padded(rows * tensor.count() / tensor.shape[0], 256);
          const bool small = tensor.shape.size() == 1 || tensor.count() < 4096;
          (small ? first : last) += count;
        }
        const int64_t all = padded(first + last, 256 * data);
        const int64_t coded_here = std::min(last == 0 ? 0 : all - first, all / data);
        codes += coded_here;
        expected += 2 * 4 * std::min(last == 0 ? all : first, all / data) + 2 * coded_here;
        expected += config.optimizer.ema > 0 ? 4 * all / data : 0;
      }
      expected += 2 * padded(codes / 256 * 4, 256);
      std::mutex mutex;
      on_poisoned_ranks(config, data, [&](RankContext& rank, RandomBatches& batches, const PoisoningBackend& backend) {
        rank.step.run(1e-3, batches);
        rank.step.state();  // waits for gathers in progress
        const std::lock_guard lock(mutex);
        const auto c = static_cast<size_t>(MemoryClass::optimizer);
        const DeviceMemory& arena = *backend.arenas[c];
        INFO(data << " ranks " << ema);
        CHECK(arena.bytes() == expected);
        CHECK(arena.bytes() == rank.plan.memory().arenas[MemoryClass::optimizer]);
        CHECK(backend.touched_bytes(arena) == arena.bytes());
      });
    }
  }
}

}  // namespace test_adamw_8bit
