#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "catch.h"
#include "step/step_profile.h"

using namespace gptrain;

namespace {

// 10 ms: two products and a copy in one action; another waits 2 ms for a collective of 4 ms; 1 ms of waiting for data;
// the rest is outside actions.
StepProfile example_profile() {
  const auto product = [](const char* shape, double start, double end) {
    return Event{.name = "linear_forward",
                 .shape = shape,
                 .model_flops = 900'000'000,
                 .executed_flops = 1'000'000'000,
                 .bytes_moved = 1000,
                 .start_seconds = start,
                 .end_seconds = end};
  };
  StepProfile profile{.rank = 3,
                      .step = 7,
                      .compute = DType::bf16,
                      .matrix_flops = 1e12,
                      .bytes_per_second = 10e9,
                      .start_seconds = 100,
                      .end_seconds = 100.010,
                      .data_seconds = 0.001,
                      .log = {},
                      .action_times = {{100.001, 100.007}, {100.007, 100.009}}};
  profile.log.blocks = {
      {product("N=4 in=2 out=3 bf16", 100.001, 100.003),
       {.name = "cast", .shape = "f32", .bytes_moved = 5'000'000, .start_seconds = 100.003, .end_seconds = 100.004},
       product("N=8 in=2 out=3 bf16", 100.004, 100.007)},
      {{.kind = Event::Kind::collective,
        .channel = {static_cast<int8_t>(LaneKind::gradients), static_cast<int8_t>(GroupKind::data)},
        .ranks = 2,
        .name = "all_reduce",
        .shape = "1 MB f32 over 2 ranks",
        .bytes_moved = 1'000'000,
        .sent_bytes = 999'999,
        .start_seconds = 100.005,
        .end_seconds = 100.009},
       {.kind = Event::Kind::wait, .name = "waiting for ranks", .start_seconds = 100.007, .end_seconds = 100.009}}};
  profile.log.actions = {{.kind = ActionKind::forward, .micro_batch = 0, .unit = 1, .block = 0},
                         {.kind = ActionKind::reduce, .unit = 1, .block = 1}};
  return profile;
}

std::string line_of(const std::string& text, const std::string& start) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(start)) return line;
  return "";
}

// Returns the words of the line that starts with `start`.
std::vector<std::string> words_of(const std::string& text, const std::string& start) {
  std::istringstream line(line_of(text, start));
  std::vector<std::string> words;
  for (std::string word; line >> word;) words.push_back(word);
  return words;
}

}  // namespace

TEST_CASE("Rows are summed by op, with the waits, most time first") {
  const std::vector<ProfileRow> rows = rows_by_op(example_profile());
  REQUIRE(rows.size() == 3);
  CHECK(rows[0].label == "linear_forward");
  CHECK(rows[0].calls == 2);
  CHECK(rows[0].seconds == Approx(0.005));
  CHECK(static_cast<double>(rows[0].executed_flops) == 2e9);
  CHECK(rows[0].limit == 1e12);
  CHECK(rows[1].label == "waiting for ranks");
  CHECK(rows[1].limit == 0);
  CHECK(rows[2].label == "cast");
  CHECK(rows[2].limit == 10e9);
}

TEST_CASE("Shapes of one op are told apart") {
  const std::vector<ProfileRow> rows = rows_by_shape(example_profile());
  REQUIRE(rows.size() == 4);
  CHECK(rows[0].label == "linear_forward N=8 in=2 out=3 bf16");
  CHECK(rows[0].calls == 1);
}

TEST_CASE("The rows of a profile add up to the step") {
  const StepProfile profile = example_profile();
  CHECK(seconds_outside(profile) == Approx(0.001));
  double sum = profile.data_seconds + seconds_outside(profile);
  for (const ProfileRow& row : rows_by_op(profile)) sum += row.seconds;
  CHECK(sum == Approx(profile.seconds()));
}

TEST_CASE("The table gives time, rate and share of the limit") {
  const std::string text = step_profile_table(example_profile());
  using Words = std::vector<std::string>;
  CHECK(line_of(text, "profile of") == "profile of step 7: 10.0 ms, 180.0 model GFLOP/s, mfu 18.0%");
  CHECK(line_of(text, "limits of") ==
        "limits of this machine when the run began: 1000.0 GFLOP/s in bf16 matrix products, 10.0 GB/s for other ops");
  CHECK(words_of(text, "linear_forward ") == Words{"linear_forward", "2", "5.000", "50.0%", "400.0", "GFLOP/s", "40%"});
  CHECK(words_of(text, "cast ") == Words{"cast", "1", "1.000", "10.0%", "5.0", "GB/s", "50%"});
  CHECK(words_of(text, "waiting for ranks") == Words{"waiting", "for", "ranks", "1", "2.000", "20.0%"});
  CHECK(words_of(text, "all_reduce ") ==
        Words{"all_reduce", "1", "MB", "f32", "over", "2", "ranks", "1", "4.000", "40.0%"});
  CHECK(words_of(text, "waiting for data") == Words{"waiting", "for", "data", "1.000", "10.0%"});
  CHECK(words_of(text, "everything else") == Words{"everything", "else", "1.000", "10.0%"});
  CHECK(words_of(text, "total") == Words{"total", "4", "10.000", "100.0%", "200.0", "GFLOP/s", "20%"});
  CHECK(words_of(text, "linear_forward N=8") ==
        Words{"linear_forward", "N=8", "in=2", "out=3", "bf16", "1", "3.000", "30.0%", "333.3", "GFLOP/s", "33%"});
}

TEST_CASE("Shares above 100% are explained") {
  StepProfile profile = example_profile();
  const char* const why = "\nA rate above 100% of its limit means";
  CHECK(step_profile_table(profile).find(why) == std::string::npos);
  profile.matrix_flops = 100e9;  // linear_forward had 400e9
  CHECK(step_profile_table(profile).find(why) != std::string::npos);
}

TEST_CASE("The trace holds every action and event once, in a row for each kind of work and lane") {
  std::string text(trace_head);
  const TextSink sink = [&](std::string_view part) { text += part; };
  StepProfile profile = example_profile();
  write_trace_events(profile, sink);
  text += trace_between;
  profile.rank = 4;
  write_trace_events(profile, sink);
  text += trace_tail;
  const auto trace = nlohmann::json::parse(text);
  for (const int rank : {3, 4}) {
    std::map<int, std::string> names;
    std::map<int, std::vector<nlohmann::json>> rows;
    for (const auto& event : trace.at("traceEvents")) {
      if (event.at("pid") != rank) continue;
      if (event.at("ph") == "M") {
        if (event.at("name") == "thread_name") names[event.at("tid")] = event.at("args").at("name");
        if (event.at("name") == "process_name")
          CHECK(event.at("args").at("name") == "rank " + std::to_string(rank) + ", step 7");
        continue;
      }
      CHECK(event.at("ph") == "X");
      rows[event.at("tid")].push_back(event);
    }
    CHECK(names == std::map<int, std::string>{{0, "actions"}, {1, "ops"}, {3, "waits"}, {5, "lane gradients"}});
    REQUIRE(rows.size() == 4);
    CHECK(rows[0].size() == 2);
    CHECK(rows[1].size() == 3);
    CHECK(rows[3].size() == 1);
    CHECK(rows[5].size() == 1);
    const auto& action = rows[0][0];
    CHECK(action.at("name") == "forward");
    CHECK(action.at("args") == nlohmann::json{{"unit", 1}, {"micro_batch", 0}});
    CHECK(action.at("ts") == Approx(1000.0));
    CHECK(action.at("dur") == Approx(6000.0));
    const auto& op = rows[1][0];
    CHECK(op.at("name") == "linear_forward");
    CHECK(op.at("args") == nlohmann::json{{"shape", "N=4 in=2 out=3 bf16"},
                                          {"model_flops", 900'000'000},
                                          {"executed_flops", 1'000'000'000},
                                          {"bytes_moved", 1000}});
    CHECK(rows[5][0].at("args").at("sent_bytes") == 999'999);
    CHECK(rows[5][0].at("args").at("group") == "data");
  }
}
