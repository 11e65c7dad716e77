// Profiles of four stages that ran at once: an order that the schedule allows, with transfers beside ops.
#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "catch.h"
#include "events.h"
#include "layouts.h"
#include "model_fixture.h"

namespace test_stage_profiles {

using namespace gptrain;
using namespace gptrain::testing;

namespace {

constexpr int64_t num_stages = 4;
constexpr int32_t micro_batches = 8;

// Times of the ops of each pass of each unit, on any stage.
using PassName = std::tuple<ActionKind, int32_t, int32_t>;  // action, unit, micro-batch
using PassTimes = std::map<PassName, TimeSpan>;

RunConfig config_of(const std::string& schedule, int64_t chunks) {
  std::vector<std::string> overrides = {"model.num_layers=8",
                                        "model.num_heads=4",
                                        "model.hidden_size=64",
                                        "model.sequence_length=64",
                                        "batch.micro=2",
                                        fmt::format("batch.global={}", 2 * micro_batches),
                                        fmt::format("parallel.pipeline={}", num_stages),
                                        "parallel.pipeline_schedule=" + schedule};
  if (chunks > 1) overrides.push_back(fmt::format("parallel.virtual_stages={}", chunks));
  return small_config(Family::gpt2, overrides, num_stages);
}

std::vector<TimeSpan> ops_of(const StepProfile& profile) {
  std::vector<TimeSpan> ops;
  for_each_part(profile, [&](const StepPart& part) {
    for (size_t i = 0; i < part.events.size(); ++i) {
      if (part.events[i].kind == Event::Kind::op) ops.push_back(part.times[i]);
    }
  });
  return ops;
}

void note_passes(const StepProfile& profile, PassTimes& passes) {
  for_each_part(profile, [&](const StepPart& part) {
    if (part.action == nullptr || part.action->unit < 0 || part.action->micro_batch < 0) return;
    for (size_t i = 0; i < part.events.size(); ++i) {
      if (part.events[i].kind != Event::Kind::op) continue;
      const PassName name{part.action->kind, part.action->unit, part.action->micro_batch};
      TimeSpan& span = passes.try_emplace(name, part.times[i]).first->second;
      span.end_seconds = part.times[i].end_seconds;
    }
  });
}

// Number of one rank's sends, and of those that ran beside one of its ops.
struct Sends {
  int64_t all = 0, beside_ops = 0;
};
Sends sends_of(const StepProfile& profile) {
  const std::vector<TimeSpan> ops = ops_of(profile);
  Sends sends;
  for_each_part(profile, [&](const StepPart& part) {
    for (size_t i = 0; i < part.events.size(); ++i) {
      const Event& event = part.events[i];
      if (event.kind != Event::Kind::collective) continue;
      const auto lane = static_cast<LaneKind>(event.channel.lane);
      if (lane != LaneKind::send_next && lane != LaneKind::send_previous) continue;
      const TimeSpan& time = part.times[i];
      ++sends.all;
      sends.beside_ops += std::any_of(ops.begin(), ops.end(), [&](const TimeSpan& op) {
        return op.start_seconds < time.end_seconds && op.end_seconds > time.start_seconds;
      });
    }
  });
  return sends;
}

// Returns whether an op of one rank overlapped an op of another in time.
bool stages_ran_at_once(const std::vector<RankEvents>& ranks) {
  std::vector<std::pair<TimeSpan, size_t>> ops;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const TimeSpan& op : ops_of(ranks[rank].profile)) ops.emplace_back(op, rank);
  }
  const auto starts_earlier = [](const auto& a, const auto& b) {
    return a.first.start_seconds < b.first.start_seconds;
  };
  std::sort(ops.begin(), ops.end(), starts_earlier);
  // Ops of one rank never overlap, so an op that starts before its predecessor has ended is another rank's.
  return std::adjacent_find(ops.begin(), ops.end(), [](const auto& earlier, const auto& later) {
           return earlier.second != later.second && later.first.start_seconds < earlier.first.end_seconds;
         }) != ops.end();
}

}  // namespace

TEST_CASE("four stages that ran show their schedule, with sends beside ops") {
  const std::vector<std::pair<std::string, int64_t>> schedules = {
      {"gpipe", 1}, {"1f1b", 1}, {"interleaved", 2}, {"varuna", 1}, {"zero-bubble", 1}, {"zero-bubble-v", 2}};
  for (const auto& [schedule, chunks] : schedules) {
    INFO(schedule);
    const RunConfig config = config_of(schedule, chunks);
    const std::vector<RankEvents> ranks = events_on_ranks(config, num_stages, [] { return make_cpu_backend(1); });
    PassTimes passes;
    Sends sends;
    for (const RankEvents& rank : ranks) {
      REQUIRE(!rank.profile.log.actions.empty());
      // A stage does one thing at a time, in list order.
      const std::vector<TimeSpan> ops = ops_of(rank.profile);
      for (size_t i = 1; i < ops.size(); ++i) REQUIRE(ops[i].start_seconds >= ops[i - 1].end_seconds);
      note_passes(rank.profile, passes);
      const Sends of_rank = sends_of(rank.profile);
      CHECK(of_rank.all >= micro_batches);
      sends.all += of_rank.all;
      sends.beside_ops += of_rank.beside_ops;
    }
    // A third or more on an idle machine, fewer where other processes take its cores.
    INFO(sends.beside_ops << " of " << sends.all << " sends beside ops");
    CHECK(sends.beside_ops > 0);
    // A stage starts with the previous stage's output.
    using enum ActionKind;
    const auto head = static_cast<int32_t>(config.model.num_layers) + 1;
    const auto follows = [&](PassName later, PassName earlier) {
      INFO(action_name(std::get<0>(later))
           << " of unit " << std::get<1>(later) << ", micro-batch " << std::get<2>(later));
      CHECK(passes.at(later).start_seconds >= passes.at(earlier).end_seconds);
    };
    for (int32_t m = 0; m < micro_batches; ++m) {
      for (int32_t unit = 1; unit <= head; ++unit) follows({forward, unit, m}, {forward, unit - 1, m});
      follows({loss, head, m}, {forward, head, m});
      for (int32_t unit = 1; unit < head; ++unit) {
        follows({backward_input, unit, m}, {backward_input, unit + 1, m});
        follows({backward_weight, unit, m}, {backward_input, unit, m});
      }
    }
    // The first stage goes on to micro-batch 1 without waiting for the gradient of micro-batch 0.
    CHECK(passes.at({forward, 1, 1}).start_seconds < passes.at({backward_input, 1, 0}).start_seconds);
    CHECK(stages_ran_at_once(ranks));
  }
}

}  // namespace test_stage_profiles
