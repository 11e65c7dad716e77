// Predictions compared with published step times: the table of src/report/README.md.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "catch.h"
#include "config/load.h"
#include "planner/predict.h"
#include "report/formulas.h"

namespace gptrain::test_published {
namespace {

// A GPT with 2048 tokens and a vocabulary of 51200 on A100 with 80 GB.
struct Row {
  const char* name;
  int64_t hidden, layers, heads, gpus, tensor, pipeline, chunks, batch, micro;
  double published;        // seconds of a step, or TFLOP/s per GPU by the reference formula
  bool selective = false;  // recomputation, with sequence parallelism; false: blocks are recomputed
};

// arXiv 2205.05198, table 5.
const Row step_times[] = {
    {.name = "22B",
     .hidden = 6144,
     .layers = 48,
     .heads = 64,
     .gpus = 8,
     .tensor = 8,
     .pipeline = 1,
     .chunks = 1,
     .batch = 4,
     .micro = 4,
     .published = 1.42},
    {.name = "175B",
     .hidden = 12288,
     .layers = 96,
     .heads = 96,
     .gpus = 64,
     .tensor = 8,
     .pipeline = 8,
     .chunks = 3,
     .batch = 64,
     .micro = 1,
     .published = 18.13},
    {.name = "530B",
     .hidden = 20480,
     .layers = 105,
     .heads = 128,
     .gpus = 280,
     .tensor = 8,
     .pipeline = 35,
     .chunks = 3,
     .batch = 280,
     .micro = 1,
     .published = 49.05},
    {.name = "1T",
     .hidden = 25600,
     .layers = 128,
     .heads = 160,
     .gpus = 512,
     .tensor = 8,
     .pipeline = 64,
     .chunks = 1,
     .batch = 512,
     .micro = 1,
     .published = 94.42},
    {.name = "22B selective",
     .hidden = 6144,
     .layers = 48,
     .heads = 64,
     .gpus = 8,
     .tensor = 8,
     .pipeline = 1,
     .chunks = 1,
     .batch = 4,
     .micro = 4,
     .published = 1.10,
     .selective = true},
    {.name = "175B selective",
     .hidden = 12288,
     .layers = 96,
     .heads = 96,
     .gpus = 64,
     .tensor = 8,
     .pipeline = 8,
     .chunks = 3,
     .batch = 64,
     .micro = 1,
     .published = 13.75,
     .selective = true},
    {.name = "530B selective",
     .hidden = 20480,
     .layers = 105,
     .heads = 128,
     .gpus = 280,
     .tensor = 8,
     .pipeline = 35,
     .chunks = 3,
     .batch = 280,
     .micro = 1,
     .published = 37.83,
     .selective = true},
    {.name = "1T selective",
     .hidden = 25600,
     .layers = 128,
     .heads = 160,
     .gpus = 512,
     .tensor = 8,
     .pipeline = 64,
     .chunks = 1,
     .batch = 512,
     .micro = 1,
     .published = 71.49,
     .selective = true},
};

// Megatron-LM's table for A100 (arXiv 2104.04473). It does not give micro-batch and chunks: 1 each.
const Row rates[] = {
    {.name = "1.7B",
     .hidden = 2304,
     .layers = 24,
     .heads = 24,
     .gpus = 32,
     .tensor = 1,
     .pipeline = 1,
     .chunks = 1,
     .batch = 512,
     .micro = 1,
     .published = 137},
    {.name = "3.6B",
     .hidden = 3072,
     .layers = 30,
     .heads = 32,
     .gpus = 64,
     .tensor = 2,
     .pipeline = 1,
     .chunks = 1,
     .batch = 512,
     .micro = 1,
     .published = 138},
    {.name = "7.5B",
     .hidden = 4096,
     .layers = 36,
     .heads = 32,
     .gpus = 128,
     .tensor = 4,
     .pipeline = 1,
     .chunks = 1,
     .batch = 512,
     .micro = 1,
     .published = 142},
    {.name = "18.4B",
     .hidden = 6144,
     .layers = 40,
     .heads = 48,
     .gpus = 256,
     .tensor = 8,
     .pipeline = 1,
     .chunks = 1,
     .batch = 1024,
     .micro = 1,
     .published = 135},
    {.name = "39.1B",
     .hidden = 8192,
     .layers = 48,
     .heads = 64,
     .gpus = 512,
     .tensor = 8,
     .pipeline = 2,
     .chunks = 1,
     .batch = 1536,
     .micro = 1,
     .published = 138},
    {.name = "76.1B",
     .hidden = 10240,
     .layers = 60,
     .heads = 80,
     .gpus = 1024,
     .tensor = 8,
     .pipeline = 4,
     .chunks = 1,
     .batch = 1792,
     .micro = 1,
     .published = 140},
    {.name = "145.6B",
     .hidden = 12288,
     .layers = 80,
     .heads = 96,
     .gpus = 1536,
     .tensor = 8,
     .pipeline = 8,
     .chunks = 1,
     .batch = 2304,
     .micro = 1,
     .published = 148},
    {.name = "310.1B",
     .hidden = 16384,
     .layers = 96,
     .heads = 128,
     .gpus = 1920,
     .tensor = 8,
     .pipeline = 16,
     .chunks = 1,
     .batch = 2160,
     .micro = 1,
     .published = 155},
    {.name = "529.6B",
     .hidden = 20480,
     .layers = 105,
     .heads = 128,
     .gpus = 2520,
     .tensor = 8,
     .pipeline = 35,
     .chunks = 1,
     .batch = 2520,
     .micro = 1,
     .published = 163},
    {.name = "1008B",
     .hidden = 25600,
     .layers = 128,
     .heads = 160,
     .gpus = 3072,
     .tensor = 8,
     .pipeline = 64,
     .chunks = 1,
     .batch = 3072,
     .micro = 1,
     .published = 163},
};

// MT-NLG (arXiv 2201.11990), and GPT-3 on 1,024 GPUs (arXiv 2104.04473, section 5.1).
const Row more_steps[] = {
    {.name = "MT-NLG 530B",
     .hidden = 20480,
     .layers = 105,
     .heads = 128,
     .gpus = 2240,
     .tensor = 8,
     .pipeline = 35,
     .chunks = 1,
     .batch = 1920,
     .micro = 1,
     .published = 60.1},
    {.name = "MT-NLG 530B",
     .hidden = 20480,
     .layers = 105,
     .heads = 128,
     .gpus = 2800,
     .tensor = 8,
     .pipeline = 35,
     .chunks = 1,
     .batch = 1920,
     .micro = 1,
     .published = 50.2},
    {.name = "MT-NLG 530B",
     .hidden = 20480,
     .layers = 105,
     .heads = 128,
     .gpus = 3360,
     .tensor = 8,
     .pipeline = 35,
     .chunks = 1,
     .batch = 1920,
     .micro = 1,
     .published = 44.4},
};
const Row more_rates[] = {{.name = "GPT-3 175B",
                           .hidden = 12288,
                           .layers = 96,
                           .heads = 96,
                           .gpus = 1024,
                           .tensor = 8,
                           .pipeline = 8,
                           .chunks = 1,
                           .batch = 1536,
                           .micro = 1,
                           .published = 138}};

// llm.c's GPT-2 of 1558M parameters (github.com/karpathy/llm.c, discussion 677): 2^20 tokens a step, micro-batches of
// 16 sequences, ZeRO 1, no recomputation. Percent of 989 TFLOP/s by its own count: 6 FLOPs per parameter and token, and
// 6 l h s per token.
constexpr int64_t llm_c_gpus = 8;
const char* const llm_c_row = "GPT-2 1.5B, llm.c";
constexpr double llm_c_published = 47.3;
RunConfig llm_c_config() {
  return parse_config(R"({"model": {"num_layers": 48, "hidden_size": 1600, "num_heads": 25, "vocab_size": 50257,
                                    "sequence_length": 1024},
                          "data": {"train": [{"path": "x"}]}, "batch": {"global": 1024, "micro": 16},
                          "parallel": {"zero": 1}, "precision": {"compute": "bf16"}, "optimizer": {"lr": 6e-4},
                          "run": {"steps": 1, "out": "x"}})",
                      {}, "test", llm_c_gpus);
}
double llm_c_flops() {
  constexpr double parameters = 1558e6, layers = 48, hidden = 1600, length = 1024, tokens = 1 << 20;
  return (6 * parameters + 6 * layers * hidden * length) * tokens;
}

RunConfig config_of(const Row& row) {
  const std::string chunks =
      row.chunks > 1 ? fmt::format(R"(, "pipeline_schedule": "interleaved", "virtual_stages": {})", row.chunks) : "";
  return parse_config(
      fmt::format(R"({{"model": {{"num_layers": {}, "hidden_size": {}, "num_heads": {}, "vocab_size": 51200,
                                  "sequence_length": 2048}},
                       "data": {{"train": [{{"path": "x"}}]}}, "batch": {{"global": {}, "micro": {}}},
                       "parallel": {{"tensor": {}, "pipeline": {}, "zero": 0{}{}}}, "precision": {{"compute": "bf16"}},
                       "memory": {{"recompute": "{}"}}, "optimizer": {{"lr": 1e-4}},
                       "run": {{"steps": 1, "out": "x"}}}})",
                  row.layers, row.hidden, row.heads, row.batch, row.micro, row.tensor, row.pipeline,
                  row.selective ? R"(, "sequence": true)" : "", chunks, row.selective ? "selective" : "block"),
      {}, "test", row.gpus);
}

double predicted_seconds(const Row& row) {
  const Machine machine{find_device("a100-80g"), find_cluster("dgx-a100"),
                        row.selective ? megatron_lm_sequence : megatron_lm};
  return predict_run(config_of(row), machine, row.gpus).forecast.step_seconds;
}

// Returns true for rows on which the constants of a100-80g and dgx-a100 are calibrated; the others test them.
bool is_calibrated(const std::string& name) {
  return name == "22B" || name == "1T" || name == "1.7B" || name == "145.6B";
}

struct Errors {
  double mean = 0, largest = 0;
};

// Checks that the page has the predicted row. Returns its error.
double compare_row(const std::string& name, int64_t gpus, double published, double predicted, const std::string& unit) {
  std::ifstream file(std::string(GPTRAIN_SOURCE_ROOT) + "/src/report/README.md");
  const std::string page((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const double error = predicted / published - 1;
  const std::string line = fmt::format("| {} | {} | {:.4g} {} | {:.4g} {} | {:+.1f}% |\n", name, gpus, published, unit,
                                       predicted, unit, 100 * error);
  INFO(line);
  CHECK(page.find(line) != std::string::npos);
  return error;
}

template <typename Predict>
Errors compare(std::span<const Row> rows, const std::string& unit, const Predict& predict) {
  Errors errors;
  for (const Row& row : rows) {
    const std::string name = std::string(row.name) + (is_calibrated(row.name) ? " (calibrated)" : "");
    const double error = compare_row(name, row.gpus, row.published, predict(row), unit);
    errors.mean += std::abs(error) / static_cast<double>(rows.size());
    errors.largest = std::max(errors.largest, std::abs(error));
  }
  return errors;
}

double predicted_rate(const Row& row) {
  const RunConfig config = config_of(row);
  const auto flops = static_cast<double>(reference_flops_formula(config.model, config.batch.global));
  return flops / predicted_seconds(row) / static_cast<double>(row.gpus) / 1e12;
}

TEST_CASE("predicted and published steps of 22B to 1T") {
  const Errors errors = compare(step_times, "s", predicted_seconds);
  CHECK(errors.mean < 0.036);
  CHECK(errors.largest < 0.088);
}

TEST_CASE("predicted and published rates of Megatron-LM's table") {
  const Errors errors = compare(rates, "TFLOP/s", predicted_rate);
  CHECK(errors.mean < 0.05);
  CHECK(errors.largest < 0.10);
}

TEST_CASE("rows that are reported without a bound") {
  compare(more_steps, "s", predicted_seconds);
  compare(more_rates, "TFLOP/s", predicted_rate);
  const Machine h100{find_device("h100-sxm"), find_cluster("dgx-h100")};
  const Prediction llm_c = predict_run(llm_c_config(), h100, llm_c_gpus);
  CHECK(llm_c.plan.largest.arenas.total() < planned_target(h100, llm_c_config().run.threads, llm_c_gpus).memory_bytes);
  const double rate = llm_c_flops() / llm_c.forecast.step_seconds / static_cast<double>(llm_c_gpus);
  compare_row(llm_c_row, llm_c_gpus, llm_c_published, 100 * rate / 989e12, "% of 989 TFLOP/s");
}

}  // namespace
}  // namespace gptrain::test_published
