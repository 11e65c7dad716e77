// Pages of plans: the timeline of a pipeline, maps of a sweep, plots of scaling.
#include <algorithm>
#include <string>
#include <vector>

#include "catch.h"
#include "planner/study.h"
#include "report/plan_page.h"
#include "report/timeline_page.h"

namespace gptrain::test_pages {
namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Returns a pipeline of two stages with `chunks` chunks each, in a step of `seconds`.
PlannedPipeline pipeline_of(int32_t chunks, double seconds) {
  PlannedPipeline pipeline{.stages = {}, .seconds = seconds};
  for (int32_t stage = 0; stage < 2; ++stage) {
    PlannedStage& planned = pipeline.stages.emplace_back();
    for (int32_t chunk = 0; chunk < chunks; ++chunk)
      planned.bars.push_back({.chunk = 2 * chunk + stage,
                              .micro_batch = 0,
                              .time = {seconds * chunk / chunks, seconds * (chunk + 1) / chunks}});
  }
  return pipeline;
}

TEST_CASE("a timeline has lighter colors for every other chunk of a stage") {
  const std::string one = timeline_page(pipeline_of(1, 5), "one", true);
  CHECK(has(one, "class=\"f0\""));
  CHECK_FALSE(has(one, "class=\"f1\""));
  const std::string two = timeline_page(pipeline_of(2, 5), "two", true);
  for (const char* stage : {"0", "1"}) {
    const std::string row = two.substr(two.find(std::string(">stage ") + stage));
    const size_t first = row.find("class=\"f0\""), second = row.find("class=\"f1\"");
    CHECK(first < second);
    CHECK(second != std::string::npos);
  }
}

TEST_CASE("a timeline's axis has the unit of its length") {
  CHECK(has(timeline_page(pipeline_of(1, 5), "", true), ">2 s</text>"));
  CHECK(has(timeline_page(pipeline_of(1, 0.05), "", true), ">20 ms</text>"));
  CHECK_FALSE(has(timeline_page(pipeline_of(1, 5), "", true), "k ms"));
}

StudyPoint point(std::vector<std::string> values, double step, int64_t gib, double flops = 0) {
  LayoutResult result{};
  result.step_seconds = step;
  result.tokens_per_second = 1000 / step;
  result.peak_bytes = gib << 30;
  result.model_flops = flops;
  return {.values = std::move(values), .parameters = 1, .gpus = 1, .result = result};
}

TEST_CASE("a sweep of two keys has maps of speed and of memory, with the device's limit drawn in") {
  Study study{
      .kind = Study::Kind::sweep, .axes = {"batch.micro", "memory.recompute"}, .device_bytes = int64_t{20} << 30};
  study.points = {point({"1", "none"}, 4, 10), point({"1", "block"}, 5, 5), point({"2", "none"}, 3, 30),
                  point({"2", "block"}, 4, 15)};
  const std::string page = study_page("sweep", study);
  const size_t memory = page.find("<table class=\"heat memory\">");
  REQUIRE(memory != std::string::npos);
  CHECK(page.find("<table class=\"heat speed\">") < memory);
  const std::string map = page.substr(memory, page.find("</table>", memory) - memory);
  for (const char* part : {"<span>10.0 GiB</span>", "<td class=\"large above\"", "<td class=\" left\""})
    CHECK(has(map, part));
}

TEST_CASE("scaling has names that read, ideal lines and labelled points") {
  Study study{.kind = Study::Kind::scale, .axes = {"scaling", "devices"}};
  study.points = {point({"strong", "8"}, 8, 1, 1e15), point({"strong", "16"}, 5, 1, 1.7e15),
                  point({"weak", "8"}, 8, 1, 1e15), point({"weak", "16"}, 8.5, 1, 1.9e15)};
  const std::string page = study_page("scaling", study);
  for (const char* name : {"</i>strong scaling</span>", "</i>weak scaling</span>", "</i>ideal strong scaling</span>"})
    CHECK(has(page, name));
  CHECK(has(page, "<text class=\"point-label\""));
  CHECK(has(page, ">1.7</text>"));
}

}  // namespace
}  // namespace gptrain::test_pages
