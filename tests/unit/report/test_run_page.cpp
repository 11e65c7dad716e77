#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "catch.h"
#include "report/run_page.h"
#include "unit/not_a_number.h"
#include "unit/temporary_folder.h"

using namespace gptrain;

namespace {

size_t count(const std::string& text, const std::string& part) {
  size_t number = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++number;
  return number;
}

// Checks that every opened element is closed in order (meta has no end), and that no attribute is a malformed number.
void check_elements(const std::string& html) {
  std::vector<std::string> open;
  for (size_t at = html.find('<', 1); at != std::string::npos; at = html.find('<', at)) {
    size_t end = at;
    for (bool quoted = false; end < html.size() && (quoted || html[end] != '>'); ++end) quoted ^= html[end] == '"';
    REQUIRE(end < html.size());
    const std::string tag = html.substr(at + 1, end - at - 1);
    const std::string name = tag.substr(0, tag.find(' '));
    CAPTURE(tag);
    REQUIRE(tag.find("\"nan") == std::string::npos);
    REQUIRE(tag.find("\"inf") == std::string::npos);
    REQUIRE(tag.find("\"-") == std::string::npos);  // everything is drawn within the frame
    if (name[0] == '/') {
      REQUIRE_FALSE(open.empty());
      REQUIRE(open.back() == name.substr(1));
      open.pop_back();
    } else if (tag.back() != '/' && name != "meta") {
      open.push_back(name);
    }
    at = end;
  }
  CHECK(open.empty());
}

void check_page(const std::string& html) {
  CHECK(html.find("<!DOCTYPE html>") == 0);
  CHECK(html.find("http:") == std::string::npos);
  CHECK(html.find("https:") == std::string::npos);
  CHECK(html.find("<script") == std::string::npos);
  CHECK(count(html, "<svg") == 6);  // five plots, the loss in two sizes
  CHECK(count(html, "<title id=") == 6);
  CHECK(count(html, "<desc id=") == 6);
  for (const std::string word : {"nan", "inf"}) {
    CHECK(html.find(">" + word) == std::string::npos);
    CHECK(html.find(word + " ") == std::string::npos);  // within a path
    CHECK(html.find(word + "h0") == std::string::npos);
  }
  check_elements(html);
}

RunHistory::Step step_at(int64_t step, double loss) {
  return {.step = step,
          .tokens = step * 1000,
          .loss = loss,
          .grad_norm = 1.5,
          .lr = 3e-4,
          .step_seconds = 0.25,
          .tokens_per_second = 50000 + static_cast<double>(step),
          .mfu = 0.4,
          .peak_bytes = 3.0 * (1 << 30),
          .skipped = std::isnan(loss)};
}

}  // namespace

TEST_CASE("The page sums up the run and draws its plots") {
  RunHistory history;
  for (int64_t step = 1; step <= 100; ++step) history.steps.push_back(step_at(step, 10.0 / static_cast<double>(step)));
  history.steps[49].loss = 0.0625;  // best, and not the last
  history.steps[70] = step_at(71, not_a_number);
  history.validations = {{50, 0.75}, {100, 0.875}};
  const std::string html = render_run_page("demo", "{\"a\": 1}", history);
  check_page(html);
  CHECK(html.find("<dt>Steps</dt><dd>100</dd>") != std::string::npos);
  CHECK(html.find("<dt>Tokens</dt><dd>100k</dd>") != std::string::npos);
  CHECK(html.find("<dt>First loss</dt><dd>10.0000 <small>at step 1</small>") != std::string::npos);
  CHECK(html.find("<dt>Last loss</dt><dd>0.1000 <small>at step 100</small>") != std::string::npos);
  CHECK(html.find("<dt>Best loss</dt><dd>0.0625 <small>at step 50</small>") != std::string::npos);
  CHECK(html.find("<dt>Validation loss</dt><dd>0.8750 <small>at step 100</small>") != std::string::npos);
  CHECK(html.find("<dt>Best validation loss</dt><dd>0.7500 <small>at step 50</small>") != std::string::npos);
  CHECK(html.find("<dt>Median throughput</dt><dd>50.1k tok/s</dd>") != std::string::npos);
  CHECK(html.find("<dt>Median step time</dt><dd>0.25 s</dd>") != std::string::npos);
  CHECK(html.find("<dt>Median MFU</dt><dd>40.0%</dd>") != std::string::npos);
  CHECK(html.find("<dt>Peak memory</dt><dd>3.0 GiB</dd>") != std::string::npos);
  CHECK(html.find("<dt>Skipped steps</dt><dd>1</dd>") != std::string::npos);
  CHECK(html.find("Peak memory (GiB)") != std::string::npos);
  CHECK(html.find("<title>validation 50: 0.75</title>") != std::string::npos);
  CHECK(html.find("<details>") != std::string::npos);
  CHECK(html.find("<pre>{&quot;a&quot;: 1}</pre>") != std::string::npos);
}

TEST_CASE("Title and config cannot break out of their place") {
  const std::string html = render_run_page("a<b>&\"</title><script>x", "</pre></script><script src='x'>", RunHistory{});
  check_page(html);
  CHECK(html.find("a&lt;b&gt;&amp;&quot;&lt;/title&gt;&lt;script&gt;x") != std::string::npos);
  CHECK(html.find("&lt;/pre&gt;&lt;/script&gt;&lt;script src=&#39;x&#39;&gt;") != std::string::npos);
  CHECK(html.find("</script>") == std::string::npos);
}

TEST_CASE("Pages of no step, of one, and of none that is finite") {
  const std::string empty = render_run_page("empty", "", RunHistory{});
  check_page(empty);
  CHECK(count(empty, "no data yet</text>") == 6);

  RunHistory history;
  history.steps = {step_at(1, 3.5)};
  const std::string one = render_run_page("one", "", history);
  check_page(one);
  CHECK(count(one, "no data yet</text>") == 0);
  CHECK(count(one, "<circle class=\"marker") >= 6);  // a single point is a dot in every drawing

  history.steps = {step_at(1, not_a_number), step_at(2, std::numeric_limits<double>::infinity())};
  const std::string broken = render_run_page("broken", "", history);
  check_page(broken);
  CHECK(count(broken, "no data yet</text>") == 2);
  CHECK(broken.find("<dt>Last loss</dt><dd>-</dd>") != std::string::npos);
}

TEST_CASE("A long run's page stays small and keeps its spike") {
  RunHistory history;
  for (int64_t step = 1; step <= 100000; ++step) history.steps.push_back(step_at(step, step == 54321 ? 9 : 3));
  const std::string html = render_run_page("long", "", history);
  check_page(html);
  CHECK(html.size() < 200000);
  CHECK(html.find("highest 9.") != std::string::npos);
}

TEST_CASE("Loads of experts are drawn as one bitmap for each block") {
  const TemporaryFolder out;
  write_file(out / "metrics.jsonl",
             R"({"step":10,"loss":2,"moe":{"layer":[1,3],"loads":[[1,1,1],[0,1,8]]}}
{"step":11,"loss":2,"moe":{"layer":[1,3]}}
{"step":20,"loss":2,"moe":{"layer":[1,3],"loads":[[1,0.5,2],[1,null]]}}
)");
  const RunHistory history = read_run_history(out / "metrics.jsonl");
  REQUIRE(history.loads.size() == 2);
  CHECK(history.loads[0].steps.size() == 2);
  REQUIRE(history.loads[1].steps.size() == 1);  // the second has another number of experts
  const std::string html = render_run_page("experts", "", history);
  check_page(html);
  CHECK(count(html, "src=\"data:image/bmp;base64,Qk") == 3);
  CHECK(
      html.find("title=\"block 1, steps 10 to 20; at the last one expert 2 has 2.00 times the mean, expert 1 0.50\"") !=
      std::string::npos);

  const std::string bitmap = heat_map_bitmap(history.loads[0].steps);
  const auto number = [&](size_t at) {
    uint32_t value = 0;
    std::memcpy(&value, bitmap.data() + at, sizeof value);
    return value;
  };
  REQUIRE(number(2) == bitmap.size());
  CHECK((number(18) == 2 && number(22) == 3));  // a column for each step, a row for each expert
  // The last expert is first, rows have 4 bytes. Color 16 is the mean's, twice and half the mean are half-way.
  CHECK(bitmap.substr(number(10)) == std::string("\x10\x18\0\0\x10\x08\0\0\x10\x10\0\0", 12));
  const std::string ends = heat_map_bitmap(history.loads[1].steps);
  CHECK(ends.substr(ends.size() - 12) == std::string("\x20\0\0\0\x10\0\0\0\0\0\0\0", 12));

  LayerLoads longer{.layer = 0, .steps = std::vector<ExpertLoads>(1000, {1, {1, 1}})};
  CHECK(render_heat_maps({longer}).size() < 2000 + 4 * 2 * 128 / 3);
}

TEST_CASE("The history is read from metrics.jsonl as it was left by a kill") {
  const TemporaryFolder out;
  write_file(out / "metrics.jsonl",
             "{\"step\":1,\"loss\":2.5,\"grad_norm\":null,\"lr\":0.001,\"tokens\":64,\"samples\":1,\"step_seconds\":1,"
             "\"data_seconds\":0,\"tokens_per_second\":64,\"mfu\":0.5,\"peak_bytes\":1024,\"skipped\":true}\n"
             "{\"step\":1,\"validation_loss\":2.25}\n"
             "{\"step\":2,\"loss\":2.");
  const RunHistory history = read_run_history(out / "metrics.jsonl");
  REQUIRE(history.steps.size() == 1);
  CHECK(history.steps[0].loss == 2.5);
  CHECK(std::isnan(history.steps[0].grad_norm));
  CHECK(history.steps[0].tokens == 64);
  CHECK(history.steps[0].peak_bytes == 1024);
  CHECK(history.steps[0].skipped);
  REQUIRE(history.validations.size() == 1);
  CHECK(history.validations[0].loss == 2.25);
  CHECK(read_run_history(out / "missing").steps.empty());
}

TEST_CASE("The page replaces the one before and leaves nothing else") {
  const TemporaryFolder out;
  write_file(out / "report.html", "old");
  write_run_page(out.path(), "my run", "config");
  CHECK(read_file(out / "report.html") == render_run_page("my run", "config", RunHistory{}));
  CHECK(file_names(out.path()) == std::vector<std::string>{"report.html"});
}

TEST_CASE("A page that cannot be written is a usage error that names the file") {
  const TemporaryFolder out;
  try {
    write_run_page(out / "missing", "run", "");
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::usage);
    CHECK(std::string(error.what()).find((out / "missing/report.html").string()) != std::string::npos);
  }
}
