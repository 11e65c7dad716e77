// Detection of loss spikes.
#include <limits>
#include <vector>

#include "catch.h"
#include "train/loss_spikes.h"

using namespace gptrain;

namespace {

// 1 and 3 in turn: a mean of 2 and a deviation of 1.
LossHistory full_window() { return {{1, 3, 1, 3}, {}}; }

RollbackConfig rollback_config() { return {.spike = 2, .window = 4, .skip_samples = 8, .steps = 2, .limit = 1}; }

LossHistory history_after(LossHistory losses, const std::vector<double>& more) {
  for (const double loss : more) add_loss(rollback_config(), loss, losses);
  return losses;
}

}  // namespace

TEST_CASE("no loss is above while the window is not full") {
  const LossHistory losses = history_after({}, {1, 50, 2, 100});
  CHECK(losses.above.empty());
  CHECK(losses.window == std::vector<double>{1, 50, 2, 100});
}

TEST_CASE("a loss is above beyond so many deviations, and does not come into the window") {
  CHECK(spread_of(full_window()).mean == 2);
  CHECK(spread_of(full_window()).deviation == 1);
  const LossHistory at = history_after(full_window(), {4});
  CHECK(at.above.empty());
  CHECK(at.window == std::vector<double>{3, 1, 3, 4});
  const LossHistory beyond = history_after(full_window(), {4.001});
  CHECK(beyond.above == std::vector<double>{4.001});
  CHECK(beyond.window == full_window().window);
}

TEST_CASE("so many losses in a row are a spike, and fewer are forgotten") {
  CHECK_FALSE(is_spike(rollback_config(), history_after(full_window(), {9})));
  CHECK(is_spike(rollback_config(), history_after(full_window(), {9, 8})));
  const LossHistory twice = history_after(full_window(), {9, 2, 9});
  CHECK_FALSE(is_spike(rollback_config(), twice));
  CHECK(twice.above == std::vector<double>{9});
  CHECK(twice.window == std::vector<double>{3, 1, 3, 2});
  RollbackConfig off = rollback_config();
  off.skip_samples = 0;
  CHECK_FALSE(is_spike(off, history_after(full_window(), {9, 8})));
}

TEST_CASE("a loss that is not finite is above where there is a window, and never in it") {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  CHECK(is_spike(rollback_config(), history_after(full_window(), {nan, infinity})));
  const LossHistory early = history_after({}, {1, nan, 3});
  CHECK(early.above.empty());
  CHECK(early.window == std::vector<double>{1, 3});
}

TEST_CASE("a spike that is accepted is in the window, of which the newest stay") {
  LossHistory losses = history_after(full_window(), {9, 8});
  accept_spike(losses);
  CHECK(losses.above.empty());
  losses = history_after(losses, {5});
  CHECK(losses.window == std::vector<double>{3, 9, 8, 5});
}

TEST_CASE("of a longer window than is asked for the newest losses count") {
  LossHistory losses{{100, 100, 1, 3, 1, 3}, {}};
  add_loss(rollback_config(), 4.001, losses);
  CHECK(losses.above == std::vector<double>{4.001});
}
