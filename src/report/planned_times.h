// When the events of a planned step would run. The rule is simple and has this one place: an op takes as long as its
// matrix products at the full rate of their dtype, or its bytes at the memory's, whichever is longer.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "config/run_config.h"
#include "ops/target.h"
#include "parallel/groups.h"
#include "report/step_log.h"

namespace gptrain {

// What the target's data sheet says; 0: it does not. A target of which either of the first two is not known has no
// times: its events take a microsecond each, which shows their order.
struct StepRates {
  double matrix_flops = 0;  // FLOP/s of the step's matrix products
  double bytes_per_second = 0;
  double fp8_flops = 0;
  // That a rank sends, by kind of group. Collectives take no time where it is 0, as it is between nodes.
  std::array<double, num_group_kinds> link_bytes_per_second{};

  bool are_known() const { return matrix_flops > 0 && bytes_per_second > 0; }
};

StepRates step_rates(const RunConfig& config, const Target& target, const Mesh& mesh, int64_t rank);

// Whether all ranks of the group lie on one node, where nodes hold neighbouring ranks.
bool lies_within_a_node(const RunConfig& config, const Target& target, const Mesh& mesh, int64_t rank, GroupKind kind);

struct TimeSpan {
  double start_seconds = 0;
  double end_seconds = 0;

  double seconds() const { return end_seconds - start_seconds; }
};

// Goes through a step action by action. Ops run one after another. A collective begins when it is called and the one
// before on its lane is over; what waits for it waits until then. A copy beside the ops begins when the one before is
// over, and is awaited by the next copy among the ops. Peers are ready at once, but as `not_before` says.
class PlannedClock {
 public:
  explicit PlannedClock(const StepRates& rates) : rates_(rates) {}

  // The next block; `action` is null before the first and after the last one. Fills one span for each event, and
  // returns that of the block's ops and waits. A wait for what was over has the length 0. not_before: of an action that
  // waits for another stage (see planned_pipeline.h), when that is there.
  TimeSpan next(const Action* action, std::span<const Event> events, std::vector<TimeSpan>& times,
                double not_before = 0);

  double end() const;  // of everything so far
  double now() const { return ops_; }
  // That the event takes by itself.
  double seconds_of(const Event& event) const;

 private:
  StepRates rates_;
  double ops_ = 0;
  double copies_ = 0;
  std::array<double, num_lanes> lanes_{};
  // What an action begins and another one awaits: kind of work, unit, micro-batch.
  using Work = std::array<int32_t, 3>;
  static std::pair<std::optional<Work>, bool> work_of(const Action& action);  // and whether the action begins it
  std::map<Work, double> ends_;
};

}  // namespace gptrain
