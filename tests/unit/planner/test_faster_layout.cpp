// The quick search of dry runs, and the layouts of shipped configs compared with those that `plan` finds.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <string>
#include <vector>

#include "catch.h"
#include "config/load.h"
#include "planner/faster_layout.h"
#include "planner/layouts.h"
#include "planner/predict.h"
#include "planner/search.h"

namespace gptrain::test_faster_layout {
namespace {

const std::filesystem::path configs = std::filesystem::path(GPTRAIN_SOURCE_ROOT) / "configs";

double step_of(const RunConfig& config, const Machine& machine, int64_t gpus) {
  return predict_layout(config, machine, layout_of(config, gpus), 0).step_seconds;
}

TEST_CASE("a slow layout is answered with settings that lead to a faster one") {
  const Machine machine = machine_named({"a100-80g", "", ""}, true);
  constexpr int64_t gpus = 64;
  const std::vector<std::vector<std::string>> slow = {
      {"memory.recompute=block", "batch.micro=1"},
      {"parallel.tensor=8", "parallel.sequence=true", "parallel.zero=1"},
      {"parallel.pipeline=8", "parallel.pipeline_schedule=interleaved", "parallel.virtual_stages=5", "parallel.zero=1",
       "parallel.rank_order=tensor-pipeline-data"},
      {"memory.recompute=every_nth", "memory.recompute_interval=2", "memory.offload_activations=none"}};
  for (const std::vector<std::string>& settings : slow) {
    CAPTURE(settings);
    const RunConfig config = load_config(configs / "gpt3-13b.json", settings, gpus);
    const double seconds = step_of(config, machine, gpus);
    const std::optional<FasterLayout> faster = find_faster_layout(config, machine, gpus, seconds);
    REQUIRE(faster);
    CHECK(1.1 * faster->step_seconds < seconds);
    std::vector<std::string> all = settings;
    const std::vector<std::string> more = settings_between(layout_of(config, gpus), faster->layout);
    all.insert(all.end(), more.begin(), more.end());
    const RunConfig changed = load_config(configs / "gpt3-13b.json", all, gpus);
    CHECK(layout_of(changed, gpus) == faster->layout);
    CHECK(step_of(changed, machine, gpus) == faster->step_seconds);
    CHECK_FALSE(find_faster_layout(changed, machine, gpus, faster->step_seconds));
  }
}

// A shipped config with the devices that its comment names.
struct Shipped {
  std::filesystem::path file;
  std::string target;
  int64_t gpus = 0;
};

std::vector<Shipped> shipped_configs() {
  const std::regex options("--dry-run --world-size ([0-9]+) --target ([a-z0-9-]+)");
  std::vector<Shipped> all;
  for (const auto& entry : std::filesystem::directory_iterator(configs)) {
    if (entry.path().extension() != ".json") continue;
    std::ifstream file(entry.path());
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    std::smatch found;
    if (std::regex_search(text, found, options)) all.push_back({entry.path(), found[2], std::stoll(found[1])});
  }
  return all;
}

// Seconds of the best step that `plan` finds for each shipped config.
const std::map<std::string, double> planned_seconds = {
    {"gpt2-1.5b", 7.214},
    {"gpt2-124m", 0.3097},
    {"gpt3-1.3b", 1.399},
    {"gpt3-125m", 0.3348},
    {"gpt3-13b", 6.233},
    {"gpt3-175b", 16.2},
    {"gpt3-2.7b", 2.793},
    {"gpt3-350m", 0.8977},
    {"gpt3-6.7b", 6.448},
    {"gpt3-760m", 0.8756},
    {"gpt3-alternating-1.3b", 1.347},
    {"gpt3-alternating-125m", 0.3113},
    {"gpt3-alternating-175b", 16.05},
    {"llama-160m", 0.3924},
    {"llama-1b", 4.846},
    {"llama-70b", 8.769},
    {"llama-7b", 13.2},
    {"llama3-70b", 9.392},
    {"llama3-8b", 8.596},
    {"llama3-8b-128k", 53.8},
    {"megatron-1.7b", 1.728},
    {"megatron-1008b", 67.06},
    {"megatron-145.6b", 13.54},
    {"megatron-18.4b", 4.465},
    {"megatron-3.6b", 1.83},
    {"megatron-310.1b", 22.46},
    {"megatron-39.1b", 7.195},
    {"megatron-529.6b", 33.58},
    {"megatron-7.5b", 1.874},
    {"megatron-76.1b", 8.388},
};

TEST_CASE("shipped configs are laid out at most 10% behind the best layout") {
  const std::vector<Shipped> shipped = shipped_configs();
  CHECK(shipped.size() == planned_seconds.size());
  for (const Shipped& run : shipped) {
    const RunConfig config = load_config(run.file, {}, run.gpus);
    const Machine machine = machine_named({run.target, "", ""}, true);
    const LayoutResult own = predict_layout(config, machine, layout_of(config, run.gpus), 0);
    INFO(run.file.stem().string() << " " << own.step_seconds);
    CHECK(own.peak_bytes <= planned_target(machine, config.run.threads, run.gpus).bytes_of_rank());
    CHECK(own.step_seconds <= 1.1 * planned_seconds.at(run.file.stem()));
  }
}

TEST_CASE("the best layouts of shipped configs are those that a search finds", "[.whole]") {
  for (const Shipped& run : shipped_configs()) {
    const RunConfig config = load_config(run.file, {}, run.gpus);
    const LayoutSearch found =
        search_layouts(config, machine_named({run.target, "", ""}, true), {.gpus = run.gpus, .top = 1});
    const double best = found.best.front().step_seconds;
    INFO(run.file.stem().string() << " " << best);
    CHECK(best == Approx(planned_seconds.at(run.file.stem())).epsilon(0.01));
  }
}

}  // namespace
}  // namespace gptrain::test_faster_layout
