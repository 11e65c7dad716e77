#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "catch.h"
#include "count_allocations.h"
#include "train/metrics.h"
#include "unit/not_a_number.h"
#include "unit/temporary_folder.h"

using namespace gptrain;
using nlohmann::json;

namespace {

constexpr double positive_infinity = std::numeric_limits<double>::infinity();
constexpr int64_t gibibyte = int64_t{1} << 30;

StepMetrics example_metrics() {
  StepMetrics metrics;
  metrics.step = 120;
  metrics.loss = 3.21449;
  metrics.grad_norm = 0.8366;
  metrics.lr = 3e-4;
  metrics.tokens = 2822400;
  metrics.samples = 22050;
  metrics.step_seconds = 0.4119;
  metrics.data_seconds = 0.0052;
  metrics.tokens_per_second = 57101.2;
  metrics.mfu = 0.4618;
  metrics.peak_bytes = gibibyte * 19 / 10;
  return metrics;
}

StepMetrics at_step(int64_t step) {
  StepMetrics metrics = example_metrics();
  metrics.step = step;
  return metrics;
}

std::vector<json> parse_lines(const std::filesystem::path& path) {
  std::istringstream in(read_file(path));
  std::vector<json> records;
  for (std::string line; std::getline(in, line);) records.push_back(json::parse(line));
  return records;
}

std::vector<int64_t> steps_of(const std::filesystem::path& path) {
  std::vector<int64_t> steps;
  for (const json& record : parse_lines(path)) steps.push_back(record.at("step").get<int64_t>());
  return steps;
}

}  // namespace

TEST_CASE("The step line is the one the issue shows") {
  CHECK(format_step_line(example_metrics(), 5000, 24 * gibibyte, 1985) ==
        "step 120/5000 2.4% | loss 3.2145 | gnorm 0.84 | lr 3.0e-4 | 412 ms (data 1%) | 57.1k tok/s | mfu 46.2% | "
        "mem 1.9/24 GiB | eta 33m");
}

TEST_CASE("A loss scale is shown where there is one") {
  StepMetrics metrics = example_metrics();
  metrics.loss_scale = 65536;
  CHECK(format_step_line(metrics, 5000, 24 * gibibyte, 1985) ==
        "step 120/5000 2.4% | loss 3.2145 | gnorm 0.84 | lr 3.0e-4 | scale 65536 | 412 ms (data 1%) | 57.1k tok/s | "
        "mfu 46.2% | mem 1.9/24 GiB | eta 33m");
  const TemporaryFolder out;
  {
    MetricsWriter writer(out.path(), -1);
    writer.write_step(metrics);
    writer.write_step(at_step(121));
  }
  const std::vector<json> records = parse_lines(out.path() / "metrics.jsonl");
  CHECK(records.at(0).at("loss_scale") == 65536);
  CHECK_FALSE(records.at(1).contains("loss_scale"));
}

TEST_CASE("Attention scores and clipped heads are recorded where QK-clip is on") {
  StepMetrics metrics = example_metrics();
  metrics.largest_score = 123.5;
  metrics.clipped_heads = 0;
  const TemporaryFolder out;
  {
    MetricsWriter writer(out.path(), -1);
    writer.write_step(metrics);
    writer.write_step(at_step(121));
  }
  const std::vector<json> records = parse_lines(out.path() / "metrics.jsonl");
  CHECK(records.at(0).at("largest_score") == 123.5);
  CHECK(records.at(0).at("clipped_heads") == 0);
  CHECK_FALSE(records.at(1).contains("largest_score"));
  CHECK_FALSE(records.at(1).contains("clipped_heads"));
}

TEST_CASE("The step line of other magnitudes") {
  StepMetrics metrics = at_step(5000);
  metrics.loss = 10.98765;
  metrics.grad_norm = 0.00123;
  metrics.lr = 0;
  metrics.step_seconds = 61.04;
  metrics.data_seconds = 30.52;
  metrics.tokens_per_second = 812;
  metrics.mfu = 1.0 / 3;
  metrics.peak_bytes = 300 << 20;
  CHECK(format_step_line(metrics, 5000, gibibyte * 31 / 2, 0.0) ==
        "step 5000/5000 100.0% | loss 10.9877 | gnorm 1.2e-3 | lr 0 | 61.04 s (data 50%) | 812 tok/s | mfu 33.3% | "
        "mem 300 MiB/15.5 GiB | eta 0 ms");

  metrics.grad_norm = 123456;
  metrics.lr = 1.25e-12;
  metrics.step_seconds = 3605.4;
  metrics.data_seconds = 1802.7;
  metrics.tokens_per_second = 12.3e6;
  CHECK(
      format_step_line(metrics, 10000, 0, 100000) ==
      "step 5000/10000 50.0% | loss 10.9877 | gnorm 1.2e5 | lr 1.2e-12 | 3605 s (data 50%) | 12.3M tok/s | mfu 33.3% | "
      "mem 300 MiB | eta 1d 3h");
}

TEST_CASE("A skipped step says so, and an unknown ETA is a dash") {
  StepMetrics metrics = at_step(1);
  metrics.loss = not_a_number;
  metrics.grad_norm = positive_infinity;
  metrics.skipped = true;
  CHECK(format_step_line(metrics, 1000, 24 * gibibyte, -1) ==
        "step 1/1000 0.1% | loss nan | gnorm inf | lr 3.0e-4 | 412 ms (data 1%) | 57.1k tok/s | mfu 46.2% | "
        "mem 1.9/24 GiB | eta - | SKIPPED (not finite)");
}

TEST_CASE("metrics.jsonl reads back with every bit of every value") {
  const TemporaryFolder out;
  StepMetrics metrics = example_metrics();
  metrics.loss = std::nextafter(3.2145, 4);
  metrics.lr = 0.1 + 0.2;
  metrics.grad_norm = 1e300;
  metrics.peak_bytes = (int64_t{1} << 53) + 1;
  {
    MetricsWriter writer(out / "deep/run", -1);
    writer.write_step(metrics);
    writer.write_validation(120, {1.0 / 3});
  }
  const std::vector<json> records = parse_lines(out / "deep/run/metrics.jsonl");
  REQUIRE(records.size() == 2);
  CHECK(records[0] == json{{"step", 120},
                           {"loss", metrics.loss},
                           {"grad_norm", 1e300},
                           {"lr", 0.1 + 0.2},
                           {"tokens", 2822400},
                           {"samples", 22050},
                           {"step_seconds", 0.4119},
                           {"data_seconds", 0.0052},
                           {"tokens_per_second", 57101.2},
                           {"mfu", 0.4618},
                           {"peak_bytes", (int64_t{1} << 53) + 1},
                           {"skipped", false}});
  CHECK(records[1] == json{{"step", 120}, {"validation_loss", 1.0 / 3}});
}

TEST_CASE("What is not finite is null") {
  const TemporaryFolder out;
  MetricsWriter writer(out.path(), -1);
  StepMetrics metrics = example_metrics();
  metrics.loss = not_a_number;
  metrics.grad_norm = -positive_infinity;
  metrics.skipped = true;
  writer.write_step(metrics);
  writer.write_validation(3, {positive_infinity});
  const std::vector<json> records = parse_lines(out / "metrics.jsonl");
  REQUIRE(records.size() == 2);
  CHECK(records[0].at("loss").is_null());
  CHECK(records[0].at("grad_norm").is_null());
  CHECK(records[0].at("skipped") == true);
  CHECK(records[1].at("validation_loss").is_null());
}

TEST_CASE("A record is in the file before the writer is closed") {
  const TemporaryFolder out;
  MetricsWriter writer(out.path(), -1);
  writer.write_step(at_step(1));
  const std::string content = read_file(out / "metrics.jsonl");
  CHECK(content.back() == '\n');
  CHECK(steps_of(out / "metrics.jsonl") == std::vector<int64_t>{1});
}

TEST_CASE("A step's record allocates nothing") {
  const TemporaryFolder out;
  MetricsWriter writer(out.path(), -1);
  for (int64_t step = 1; step <= 2; ++step) writer.write_step(at_step(step));
  const int64_t before = num_allocations();
  for (int64_t step = 3; step <= 50; ++step) writer.write_step(at_step(step));
  CHECK(num_allocations() == before);
}

TEST_CASE("Resuming drops what came after the checkpoint, and what is no record") {
  const TemporaryFolder out;
  {
    MetricsWriter writer(out.path(), -1);
    for (int64_t step = 1; step <= 6; ++step) writer.write_step(at_step(step));
    writer.write_validation(4, {2.5});
    writer.write_validation(6, {2.25});
  }
  const std::string whole = read_file(out / "metrics.jsonl");
  write_file(out / "metrics.jsonl",
             "garbage\n[1]\n{\"loss\":1}\n{\"step\":\"2\"}\n\n" + whole + "{\"step\":4,\"loss\":3.2");
  {
    MetricsWriter writer(out.path(), 4);
    writer.write_step(at_step(5));
  }
  CHECK(steps_of(out / "metrics.jsonl") == std::vector<int64_t>{1, 2, 3, 4, 4, 5});
  CHECK(parse_lines(out / "metrics.jsonl")[4] == json{{"step", 4}, {"validation_loss", 2.5}});
  // Kept records are kept to the byte.
  CHECK(read_file(out / "metrics.jsonl").substr(0, 200) == whole.substr(0, 200));
  CHECK(read_file(out / "metrics.jsonl.unreadable") == "garbage\n[1]\n{\"loss\":1}\n{\"step\":\"2\"}\n\n");
  CHECK(file_names(out.path()) == std::vector<std::string>{"metrics.jsonl", "metrics.jsonl.unreadable", "tb"});
}

TEST_CASE("Samples that vanish, and records that are cut off, are missed") {
  const TemporaryFolder out;
  MetricsWriter writer(out.path(), -1);
  writer.write_step(at_step(1));
  writer.write_sample(1, "a", "b");
  CHECK_FALSE(writer.is_gone());
  std::filesystem::remove(out / "samples.jsonl");
  CHECK(writer.is_gone());
  CHECK(writer.restore_files() == std::vector{out / "samples.jsonl"});
  writer.write_sample(2, "a", "b");
  CHECK(steps_of(out / "samples.jsonl") == std::vector<int64_t>{2});
  std::filesystem::resize_file(out / "metrics.jsonl", 0);
  CHECK(writer.restore_files() == std::vector{out / "metrics.jsonl"});
  CHECK_FALSE(writer.is_gone());
  writer.write_step(at_step(2));
  CHECK(steps_of(out / "metrics.jsonl") == std::vector<int64_t>{2});
}

TEST_CASE("Resuming from step 0 starts over, resuming without a file starts one") {
  const TemporaryFolder out;
  MetricsWriter(out.path(), -1).write_step(at_step(1));
  MetricsWriter(out.path(), 0).write_step(at_step(7));
  CHECK(steps_of(out / "metrics.jsonl") == std::vector<int64_t>{7});
  std::filesystem::remove(out / "metrics.jsonl");
  MetricsWriter(out.path(), 7).write_step(at_step(8));
  CHECK(steps_of(out / "metrics.jsonl") == std::vector<int64_t>{8});
}

TEST_CASE("A whole last record is kept though its newline is missing") {
  const TemporaryFolder out;
  write_file(out / "metrics.jsonl", "{\"step\":1}\n{\"step\":2}");
  MetricsWriter(out.path(), 2).write_validation(3, {1});
  CHECK(steps_of(out / "metrics.jsonl") == std::vector<int64_t>{1, 2, 3});
}

TEST_CASE("A fresh start moves an earlier run's files aside, each run under its own number") {
  const TemporaryFolder out;
  MetricsWriter(out.path(), -1).write_step(at_step(1));
  write_file(out / "report.html", "first");
  MetricsWriter(out.path(), -1).write_step(at_step(2));
  MetricsWriter(out.path(), -1).write_step(at_step(3));
  CHECK(file_names(out.path()) == std::vector<std::string>{"metrics.jsonl", "metrics.jsonl.old-1",
                                                           "metrics.jsonl.old-2", "report.html.old-1", "tb", "tb.old-1",
                                                           "tb.old-2"});
  CHECK(steps_of(out / "metrics.jsonl.old-1") == std::vector<int64_t>{1});
  CHECK(steps_of(out / "metrics.jsonl.old-2") == std::vector<int64_t>{2});
  CHECK(steps_of(out / "metrics.jsonl") == std::vector<int64_t>{3});
  CHECK(read_file(out / "report.html.old-1") == "first");
}

TEST_CASE("A run's folder that cannot be made is a usage error that names it") {
  const TemporaryFolder out;
  write_file(out / "file", "in the way");
  try {
    MetricsWriter(out / "file", -1);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::usage);
    CHECK(std::string(error.what()).find((out / "file").string()) != std::string::npos);
    CHECK(std::string(error.what()).find("run.out") != std::string::npos);
  }
  CHECK(read_file(out / "file") == "in the way");
}
