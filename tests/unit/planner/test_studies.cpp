// Predictions side by side, and sizes of models that gptrain does not train.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "catch.h"
#include "config/load.h"
#include "planner/layouts.h"
#include "planner/link_methods.h"
#include "planner/published_steps.h"
#include "planner/search.h"
#include "planner/studies.h"
#include "report/encoder_estimate.h"
#include "report/published_report.h"
#include "report/study_svg.h"

namespace gptrain::test_studies {
namespace {

const std::filesystem::path configs = std::filesystem::path(GPTRAIN_SOURCE_ROOT) / "configs";

Machine a100() { return {find_device("a100-80g"), find_cluster("dgx-a100")}; }

TEST_CASE("each point of a sweep is the dry run of the config with those values") {
  const std::vector<std::string> overrides{"batch.global=64"};
  const std::vector<SweepAxis> axes{{"batch.micro", {"1", "2", "3"}}, {"parallel.zero", {"0", "2"}}};
  const Study study = sweep_keys(configs / "gpt2-124m.json", overrides, axes, a100(), 8, 1.5);
  REQUIRE(study.points.size() == 6);
  const std::vector<std::string> all{"batch.global=64", "batch.micro=2", "parallel.zero=2"};
  const RunConfig config = load_config(configs / "gpt2-124m.json", all, 8);
  const LayoutResult expected = predict_layout(config, a100(), layout_of(config, 8), 1.5);
  const StudyPoint& point = study.points[3];
  CHECK(point.values == std::vector<std::string>{"2", "2"});
  REQUIRE(point.result);
  CHECK(point.result->step_seconds == expected.step_seconds);
  CHECK(point.result->peak_bytes == expected.peak_bytes);
  CHECK(point.result->cost == expected.cost);
  CHECK(study.fits(point));
  // Three sequences do not divide a rank's eight.
  CHECK(!study.points[4].result);
  CHECK(study.points[4].refused.find("batch.micro") != std::string::npos);
}

TEST_CASE("a sweep over optimizers says of every key that one has not how it is taken out") {
  const std::vector<std::string> overrides{"optimizer.betas=[0.9,0.95]", "optimizer.eps=1e-6"};
  const Study study =
      sweep_keys(configs / "gpt2-124m.json", overrides, {{"optimizer.type", {"adamw", "sgd"}}}, a100(), 1, 0);
  REQUIRE(study.points.size() == 2);
  CHECK(study.points[0].result);
  CHECK(study.points[1].refused ==
        "optimizer.betas = [0.9,0.95]: has no effect unless optimizer.type is adamw, adamw-8bit, lion, lamb, muon, "
        "onebit-adam or zero-one-adam (try --set optimizer.betas=null or leaving it out); "
        "optimizer.eps = 1e-06: has no effect unless optimizer.type is adamw, adamw-8bit, lamb, muon, adafactor, "
        "onebit-adam or zero-one-adam (try --set optimizer.eps=null or leaving it out)");
}

TEST_CASE("points that a node's host has no memory for do not fit") {
  Machine machine = a100();
  machine.cluster.host_memory_bytes = 8e9;
  const std::vector<SweepAxis> axes{{"memory.offload_activations", {"none", "all"}}, {"parallel.zero", {"1"}}};
  const std::vector<std::string> overrides{"batch.micro=1", "checkpoint.asynchronous=false"};
  const Study study = sweep_keys(configs / "gpt2-1.5b.json", overrides, axes, machine, 16, 0);
  REQUIRE(study.points.size() == 2);
  CHECK(study.fits(study.points[0]));
  CHECK(missing_text(study, study.points[0]).empty());
  CHECK(study.points[1].result->peak_bytes < study.device_bytes);
  CHECK_FALSE(study.fits(study.points[1]));
  CHECK(missing_text(study, study.points[1]) ==
        format_bytes(static_cast<double>(study.points[1].result->host_bytes - study.host_bytes)) +
            " of a node's host missing");
  CHECK(study_svg(study).find("of a device, or than its host has") != std::string::npos);
}

TEST_CASE("strong scaling keeps the batch, weak scaling the work of a device") {
  RunConfig config =
      load_config(configs / "gpt2-124m.json", std::vector<std::string>{"batch.global=64", "batch.micro=8"});
  const Study study = scale_devices(config, a100(), 4, 32, 0);
  REQUIRE(study.points.size() == 8);
  const auto step = [&](size_t i) { return study.points[i].result->step_seconds; };
  for (size_t i = 1; i < 4; ++i) {
    CHECK(step(i) < step(i - 1));
    CHECK(step(i) > 0.5 * step(i - 1));
    CHECK(study.points[4 + i].result->model_flops > 1.5 * study.points[4 + i - 1].result->model_flops);
  }
  CHECK(step(4) == step(0));
  CHECK(study.points[3].result->layout.micro == 2);
  CHECK(study.points[7].result->layout.micro == 8);
  config.parallel.tensor = 4;
  const Study few = scale_devices(config, a100(), 2, 4, 0);
  CHECK(few.points[0].refused.find("2") != std::string::npos);
  CHECK(few.points[1].result);
}

TEST_CASE("more and faster NICs make no step longer, and one of the points is the dry run") {
  const std::vector<std::string> layout{"parallel.tensor=2", "parallel.sequence=true", "parallel.zero=1"};
  const RunConfig config = load_config(configs / "gpt3-13b.json", layout, 64);
  const Machine machine = a100();
  const Study study = vary_links(config, machine, 64, {1, machine.cluster.nics_per_node}, 0);
  REQUIRE(study.points.size() == 6);
  for (size_t i = 2; i < 6; ++i)
    CHECK(study.points[i].result->step_seconds <= study.points[i - 2].result->step_seconds);
  for (size_t i = 0; i < 6; i += 2)
    CHECK(study.points[i + 1].result->step_seconds < study.points[i].result->step_seconds);
  const LayoutResult expected = predict_layout(config, machine, layout_of(config, 64), 0);
  CHECK(study.points[3].result->step_seconds == expected.step_seconds);
}

TEST_CASE("methods that send less pay on slow networks, and the note names the fastest on each") {
  const std::vector<std::string> overrides{"batch.global=64", "batch.micro=4", "run.steps=1000"};
  const Machine machine = a100();
  const Study study = compare_link_methods(configs / "gpt2-124m.json", overrides, machine, 16, {1, 8});
  REQUIRE(study.points.size() == 10 * 4);
  const auto point = [&](std::string_view method, size_t network) -> const StudyPoint& {
    for (size_t i = 0; i < study.points.size(); i += 4)
      if (study.points[i].values.front() == method) return study.points[i + network];
    FAIL("no method " << method);
    return study.points.front();
  };
  const auto seconds = [&](std::string_view method, size_t network) {
    const StudyPoint& of = point(method, network);
    INFO(method << ": " << of.refused);
    REQUIRE(of.result);
    return of.result->step_seconds;
  };
  const RunConfig config = load_config(configs / "gpt2-124m.json", overrides, 16);
  CHECK(seconds("as given", 1) == predict_layout(config, machine, layout_of(config, 16), 0).step_seconds);
  for (const std::string_view method : {"as given", "powersgd, rank 2", "powersgd, alternating", "DiLoCo, 30 steps"}) {
    CHECK(seconds(method, 0) >= seconds(method, 1));
    CHECK(seconds(method, 3) > seconds(method, 2));
  }
  CHECK(seconds("int8 between nodes", 3) < 0.6 * seconds("sums by node", 3));
  CHECK(seconds("powersgd, rank 2", 3) < 0.05 * seconds("as given", 3));
  CHECK(seconds("DiLoCo, 30 steps", 3) < 0.5 * seconds("as given", 3));
  CHECK(seconds("powersgd, alternating", 3) < seconds("powersgd, rank 2", 3));
  CHECK(point("int8 weights", 0).refused.find("needs parallel.zero = 3") != std::string::npos);
  CHECK(study.note.find("1 x 1 Gbit/s: ") != std::string::npos);
  CHECK(study.note.find(" times as fast as given") != std::string::npos);
}

TEST_CASE("the largest models that fit fill the device, and less precision or more recomputation makes none smaller") {
  const Machine machine = a100();
  const Study study = fit_models(machine, {.family = "gpt", .optimizers = {"adamw"}, .overrides = {}});
  REQUIRE(study.points.size() == 13);
  std::vector<int64_t> sizes;
  for (const StudyPoint& point : study.points) {
    if (!point.result) continue;
    CHECK(point.result->peak_bytes <= study.device_bytes);
    CHECK(static_cast<double>(point.result->peak_bytes) > 0.8 * static_cast<double>(study.device_bytes));
    sizes.push_back(point.parameters);
  }
  // fp32, bf16, bf16-pure, and bf16-pure with bf16 gradients, each without, with selective, and with full
  // recomputation; an A100 has no FP8.
  REQUIRE(sizes.size() == 12);
  for (const size_t i : {0, 3, 6, 9}) CHECK((sizes[i] <= sizes[i + 1] && sizes[i + 1] <= sizes[i + 2]));
  CHECK((sizes[2] > sizes[0] && sizes[8] > sizes[5] && sizes[11] > sizes[8]));
  CHECK(study.points[12].refused.find("FP8") != std::string::npos);
}

TEST_CASE("FFNs run again in the largest models that fit only of long sequences") {
  const Study study = fit_models(a100(), {.family = "gpt",
                                          .optimizers = {"lion"},
                                          .overrides = {"model.sequence_length=65536", "precision.gradients=bf16"}});
  std::map<std::string, int64_t> layers;  // layers with bf16-pure, by recomputation
  for (const StudyPoint& point : study.points)
    if (point.values[1] == "bf16-pure" && point.result) layers[point.values[2]] = std::stoll(point.values[3]);
  REQUIRE(layers.size() == 4);
  CHECK((layers["selective"] <= layers["ffn"] && layers["ffn"] <= layers["block"]));
}

TEST_CASE("models that fit on several devices are sharded over them with ZeRO 3") {
  const Machine machine = a100();
  const Study alone = fit_models(machine, {.family = "llama", .optimizers = {"adamw"}, .overrides = {}}),
              many = fit_models(machine, {.family = "llama", .optimizers = {"adamw"}, .overrides = {}, .gpus = 8});
  REQUIRE(many.points.size() == alone.points.size());
  for (size_t i = 0; i < many.points.size(); ++i) {
    if (!many.points[i].result) continue;
    CHECK(many.points[i].result->layout.zero == 3);
    CHECK(2 * many.points[i].parameters > 3 * alone.points[i].parameters);
  }
}

TEST_CASE("with one moment instead of two larger models fit") {
  const Machine machine = a100();
  const Study study = fit_models(machine, {.family = "gpt", .optimizers = {"adamw", "lion"}, .overrides = {}});
  REQUIRE(study.points.size() == 26);
  for (size_t i = 0; i < 12; ++i) {
    CHECK(study.points[i].values.front() == "adamw");
    CHECK(study.points[13 + i].values.front() == "lion");
    CHECK(study.points[13 + i].parameters > study.points[i].parameters);
  }
}

TEST_CASE("encoders have the parameters that are published") {
  const std::vector<EncoderShape>& shapes = encoder_shapes();
  REQUIRE(shapes.size() == 7);
  CHECK(estimate_encoder(shapes[0]).parameters() == 335'141'888);
  CHECK(static_cast<double>(estimate_encoder(shapes[1]).parameters()) == Approx(3.9e9).epsilon(0.02));
  CHECK(estimate_encoder(shapes[2]).parameters() == 11'307'321'344);
  // Switch Transformers: published as 7, 26, 395 and 1571 billion.
  CHECK(estimate_encoder(shapes[3]).parameters() == 7'415'217'408);
  CHECK(estimate_encoder(shapes[4]).parameters() == 26'309'291'008);
  CHECK(static_cast<double>(estimate_encoder(shapes[5]).parameters()) == Approx(395e9).epsilon(0.002));
  CHECK(static_cast<double>(estimate_encoder(shapes[6]).parameters()) == Approx(1571e9).epsilon(0.001));
  // A token's products are those of the dense model of the same widths, but for the routers.
  EncoderShape dense = shapes[4];
  dense.num_experts = 1;
  const auto flops = [](const EncoderShape& shape) {
    return static_cast<double>(estimate_encoder(shape).sequence_flops);
  };
  CHECK(flops(shapes[4]) > flops(dense));
  CHECK(flops(shapes[4]) == Approx(flops(dense)).epsilon(0.01));
  // 6 FLOPs per parameter and token, not counting embedding, pooler and attention.
  const double per_token = static_cast<double>(estimate_encoder(shapes[0]).sequence_flops) / 512;
  CHECK(per_token > 6 * 302e6);
  CHECK(per_token < 1.15 * 6 * 302e6);
}

TEST_CASE("pictures of studies name their lines, and a map its points that do not fit") {
  const RunConfig config = load_config(configs / "gpt2-124m.json", std::vector<std::string>{"batch.global=64"});
  const std::string scaling = study_svg(scale_devices(config, a100(), 8, 16, 0));
  for (const char* part :
       {"<svg xmlns=", "prefers-color-scheme: dark", ">weak scaling<", ">strong scaling<", ">in proportion<"})
    CHECK(scaling.find(part) != std::string::npos);
  const std::vector<SweepAxis> axes{{"batch.micro", {"1", "64"}}, {"model.sequence_length", {"512", "1024"}}};
  const std::string map = study_svg(sweep_keys(configs / "gpt2-1.5b.json", {}, axes, a100(), 16, 0));
  CHECK(map.find("class=\"fits\"") != std::string::npos);
  CHECK(map.find("class=\"large\"") != std::string::npos);
  const Study words =
      sweep_keys(configs / "gpt2-124m.json", {}, {{"memory.recompute", {"none", "block"}}}, a100(), 1, 0);
  CHECK_THROWS_AS(study_svg(words), Error);
}

std::string refusal_of_published(const std::string& text) {
  const std::string path = "./published-of-a-test.json";
  std::ofstream(path) << text;
  try {
    read_published(path);
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::usage);
    return error.what();
  }
  return "";
}

TEST_CASE("published points are predicted as their config's dry run, and faults of their file named") {
  PublishedSteps steps = read_published(configs / "published" / "megatron-2021.json");
  REQUIRE(steps.points.size() == 10);
  std::swap(steps.points[1], steps.points.back());
  steps.points.resize(2);
  steps.points[1].gpus = 1;  // less than one model
  predict_published(steps);
  CHECK(!steps.points[1].result);
  CHECK(steps.points[1].refused.find("1 rank does not divide into model replicas") != std::string::npos);
  const PublishedPoint& point = steps.points.front();
  REQUIRE(point.result);
  CHECK(point.gpus == 32);
  CHECK(point.published == 137);
  CHECK(predicted_figure(steps, point) == Approx(137).epsilon(0.05));
  CHECK(published_text(steps).find("\n  1.7B        32     137 TFLOP/s") != std::string::npos);
  CHECK(published_svg(steps).find(">published<") != std::string::npos);

  const std::string head =
      R"({"title": "t", "source": "s", "figure": "seconds", "target": "h100", "software": "gptrain",)";
  CHECK(refusal_of_published("[1]").find("must be an object") != std::string::npos);
  CHECK(refusal_of_published(head + "}").find("1:") != std::string::npos);
  CHECK(refusal_of_published(head + R"("points": []})").find("points: must be an array") != std::string::npos);
  CHECK(refusal_of_published(head + R"("points": [{"name": "a", "gpu": 1}]})").find("points[0]: gpu: unknown key") !=
        std::string::npos);
  CHECK(refusal_of_published(head + R"("points": [{"name": "a", "gpus": 0, "published": 1, "config": "x"}]})")
            .find("points[0]: gpus: must be a whole number from 1") != std::string::npos);
  std::filesystem::remove("./published-of-a-test.json");
}

}  // namespace
}  // namespace gptrain::test_studies
