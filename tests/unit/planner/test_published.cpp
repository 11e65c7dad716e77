// Predictions compared with published steps: the table of src/report/README.md, and the expected errors that the
// program prints. Each step is predicted by profiles that were made without it.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <fstream>
#include <iterator>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "catch.h"
#include "config/load.h"
#include "planner/predict.h"
#include "report/formulas.h"

namespace gptrain::test_published {
namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(std::string(GPTRAIN_SOURCE_ROOT) + path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// A published step: a line of published_steps.json, and its times by profiles.
struct Row {
  Json line;
  double published = 0;  // seconds
  double modelled = 0;   // seconds by the profiles of device, cluster and software, except for Software::slowness
  double without = 0;    // the same by profiles whose calibrated figures were found without this row

  std::string software() const { return line["software"].get<std::string>(); }
  std::string device() const { return line["device"].get<std::string>(); }
  double ratio() const { return published / modelled; }
};

RunConfig config_of(const Json& line, const Json& models) {
  Json parallel{{"tensor", line["tensor"]}, {"pipeline", line["pipeline"]}, {"zero", line["zero"]}};
  if (line.value("sequence", false)) parallel["sequence"] = true;
  if (line["chunks"].get<int64_t>() > 1)
    parallel.update({{"pipeline_schedule", "interleaved"}, {"virtual_stages", line["chunks"]}});
  Json precision{{"compute", "bf16"}};
  for (const char* key : {"reduce", "linears"})
    if (line.contains(key)) precision[key] = line[key];
  Json memory{{"recompute", line["recompute"]}};
  if (line["recompute"] == "every_nth") memory["recompute_interval"] = 2;
  const Json config{{"model", models[line["model"].get<std::string>()]},
                    {"data", {{"train", Json::array({{{"path", "x"}}})}}},
                    {"batch", {{"global", line["batch"]}, {"micro", line["micro"]}}},
                    {"parallel", parallel},
                    {"precision", precision},
                    {"memory", memory},
                    {"optimizer", {{"lr", 1e-4}}},
                    {"run", {{"steps", 1}, {"out", "x"}}}};
  return parse_config(json_text(config, 0), {}, "published_steps.json", line["gpus"].get<int64_t>());
}

// Returns the machine of a row except for Software::slowness. llm.c has no profile: gptrain's stands for it.
Machine machine_of(const Json& line) {
  const auto software = line["software"].get<std::string>();
  Machine machine =
      machine_named({line["device"].get<std::string>(), "", software == "llm.c" ? "gptrain" : software}, true);
  machine.software.slowness = 1;
  return machine;
}

// Returns the machine with figures calibrated without this row.
Machine machine_without(Machine machine, const Json& figures) {
  machine.device.half.sustained = figures.value("half", machine.device.half.sustained);
  machine.device.memory_sustained = figures.value("memory", machine.device.memory_sustained);
  machine.cluster.link_sustained = figures.value("links", machine.cluster.link_sustained);
  const double nics = figures.value("nics", machine.software.nic_share);
  machine.cluster.nic_sustained *= nics / machine.software.nic_share;
  return machine;
}

// Returns the published seconds of a step. Some sources give tokens a second of each GPU, or its TFLOP/s by the
// reference formula.
double published_seconds(const Json& line, const RunConfig& config) {
  const auto value = line["published"].get<double>();
  const auto gpus = line["gpus"].get<double>();
  if (line["unit"] == "TFLOP/s")
    return static_cast<double>(reference_flops_formula(config.model, config.batch.global)) / (value * 1e12 * gpus);
  if (line["unit"] == "tokens/s")
    return static_cast<double>(config.batch.global * config.model.sequence_length) / (value * gpus);
  return value;
}

std::vector<Row> published_rows() {
  const Json file = parse_json_or_discard(text_of("/tests/unit/planner/published_steps.json"));
  std::vector<Row> rows;
  for (const Json& line : file["rows"]) {
    const RunConfig config = config_of(line, file["models"]);
    const auto gpus = line["gpus"].get<int64_t>();
    const auto seconds_on = [&](const Machine& machine) {
      return predict_run(config, machine, gpus).forecast.step_seconds;
    };
    const Machine machine = machine_of(line);
    Row row{.line = line, .published = published_seconds(line, config), .modelled = seconds_on(machine)};
    row.without = line.contains("without") ? seconds_on(machine_without(machine, line["without"])) : row.modelled;
    rows.push_back(std::move(row));
  }
  return rows;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// Returns the median of published over modelled steps of the same software and device, `left_out` not counted; 1
// without such steps.
double slowness_without(const std::vector<Row>& rows, const Row& like, const Row* left_out) {
  std::vector<double> ratios;
  for (const Row& row : rows)
    if (row.software() == like.software() && row.device() == like.device() && &row != left_out)
      ratios.push_back(row.ratio());
  return ratios.empty() ? 1 : median(ratios);
}

// Returns the slowness for the prediction of a step, found without this step: the stored one if the rates were fitted
// again without it, else the median of the software's other steps.
double slowness_for(const std::vector<Row>& rows, const Row& row) {
  return row.line.contains("without") ? row.line["without"]["slowness"].get<double>()
                                      : slowness_without(rows, row, &row);
}

std::string layout_of(const Json& line) {
  std::string text = fmt::format("{} {} {} {}", line["tensor"].get<int>(), line["pipeline"].get<int>(),
                                 line["chunks"].get<int>(), line["zero"].get<int>());
  if (line.value("sequence", false)) text += " sequence";
  if (line["recompute"] != "none") text += " " + line["recompute"].get<std::string>();
  return text;
}

TEST_CASE("published steps, each predicted by profiles made without it") {
  const std::vector<Row> rows = published_rows();
  const std::string page = text_of("/src/report/README.md");
  const auto of_megatron = std::count_if(rows.begin(), rows.end(), [](const Row& row) {
    return row.software() == "megatron-lm" || row.software() == "nemo";
  });
  CHECK(rows.size() >= 24);
  CHECK(std::ssize(rows) - of_megatron >= 6);
  std::map<std::pair<std::string, bool>, std::vector<double>> errors;  // by device, and whether with ZeRO 3
  for (const Row& row : rows) {
    const double predicted = row.without * slowness_for(rows, row);
    const double error = predicted / row.published - 1;
    errors[{row.device(), row.line["zero"] == 3}].push_back(std::abs(error));
    const std::string line = fmt::format("| {} | {} | {} | {} {} | {}, {} | {:.4g} s | {:.4g} s | {:+.1f}% |\n",
                                         row.line["model"].get<std::string>(), row.software(), layout_of(row.line),
                                         row.line["gpus"].get<int>(), row.device(), row.line["micro"].get<int>(),
                                         row.line["batch"].get<int>(), row.published, predicted, 100 * error);
    INFO(line);
    CHECK(page.find(line) != std::string::npos);
  }
  for (const PublishedErrors& cell : published_errors()) {
    const std::string device = cell.device == "A100" ? "a100-80g" : "h100-sxm";
    const std::vector<double>& of_cell = errors.at({device, cell.sharded});
    const double mean = std::accumulate(of_cell.begin(), of_cell.end(), 0.0) / static_cast<double>(of_cell.size());
    const double largest = *std::max_element(of_cell.begin(), of_cell.end());
    INFO(device << " " << cell.sharded << " " << mean << " " << largest);
    CHECK(std::ssize(of_cell) == cell.steps);
    CHECK(std::abs(mean - cell.mean) < 0.0005);
    CHECK(std::abs(largest - cell.largest) < 0.0005);
    const std::string line =
        fmt::format("| {} | {} | {} | {:.1f}% | {:.1f}% |\n", cell.device, cell.sharded ? "with" : "without",
                    cell.steps, 100 * cell.mean, 100 * cell.largest);
    INFO(line);
    CHECK(page.find(line) != std::string::npos);
  }
  CHECK(errors.size() == published_errors().size());
  for (const Row& row : rows) {
    if (row.software() == "llm.c") continue;
    const Software profile = find_software(row.software(), find_device(row.device()).compute_capability);
    INFO(row.software() << " on " << row.device());
    CHECK(std::abs(profile.slowness - slowness_without(rows, row, nullptr)) < 0.0001);
  }
}

TEST_CASE("published steps grow with the devices by at most 4% more than predicted, as studies say") {
  const Json file = parse_json_or_discard(text_of("/tests/unit/planner/published_steps.json"));
  const std::string page = text_of("/src/report/README.md");
  double most = 0;
  for (const Json& line : file["weak_scaling"]) {
    const auto seconds_on = [&](size_t i) {
      Json row = line;
      row["gpus"] = line["gpus"][i];
      row["batch"] = line["each"].get<int64_t>() * line["gpus"][i].get<int64_t>();
      row.update({{"tensor", 1}, {"pipeline", 1}, {"chunks", 1}, {"zero", 3}, {"recompute", "none"}});
      const RunConfig config = config_of(row, file["models"]);
      return predict_run(config, machine_of(row), row["gpus"].get<int64_t>()).forecast.step_seconds;
    };
    const double predicted = seconds_on(1) / seconds_on(0) - 1;
    const double published = line["published"][0].get<double>() / line["published"][1].get<double>() - 1;
    most = std::max(most, published - predicted);
    const std::string text =
        fmt::format("| {} | {} | {} to {} {} | {:+.1f}% | {:+.1f}% |\n", line["model"].get<std::string>(),
                    line["software"].get<std::string>(), line["gpus"][0].get<int>(), line["gpus"][1].get<int>(),
                    line["device"].get<std::string>(), 100 * published, 100 * predicted);
    INFO(text);
    CHECK(page.find(text) != std::string::npos);
  }
  CHECK(most < 0.04);
  CHECK(most > 0.03);
}

TEST_CASE("the error that is printed is that of published steps") {
  const Machine a100 = machine_named({"a100-80g", "", ""}, true), v100 = machine_named({"v100-32g", "", ""}, true);
  CHECK(expected_error(a100, 0).text() ==
        "a step's expected error is 26% (measured: the largest of 22 published steps on A100 without ZeRO 3, 7.1% on "
        "average)");
  CHECK(expected_error(a100, 3).share == 0.114);
  CHECK(expected_error(machine_named({"h100", "", ""}, true), 1).share == 0.068);
  CHECK(expected_error(v100, 0).share == 0.263);
  CHECK(expected_error(v100, 0).source.starts_with("assumed: "));
}

TEST_CASE("other software is chosen by name") {
  Machine machine = machine_named({"a100-80g", "", "megatron-lm"}, true);
  CHECK(step_origin(machine) == "Times are those of Megatron-LM of 2021 (megatron-lm), not of gptrain.");
  CHECK_FALSE(published_machine(machine, 0));
  CHECK_FALSE(machine.software.fused_attention);
  machine = machine_named({"a100-80g", "", ""}, true);
  CHECK(step_origin(machine) == "gptrain was never measured on a100-80g: its own model gives these times, not a run.");
  CHECK(published_machine(machine, 0)->software.name == "megatron-lm");
  CHECK(published_machine(machine, 3)->software.name == "torchtitan");
  CHECK(published_machine(machine_named({"h100", "", ""}, true), 1)->software.name == "nemo");
  CHECK_THROWS_AS(machine_named({"a100-80g", "", "jax"}, true), Error);
  for (const std::string& name : software_names()) CHECK(find_software(name, 8.0).name == name);
}

}  // namespace
}  // namespace gptrain::test_published
