// Loss scales over the steps.
#include "base/loss_scale.h"
#include "catch.h"

using namespace gptrain;

TEST_CASE("the loss scale is halved by overflows and doubled by a window of good steps") {
  LossScale scale{4, 0};
  scale = next_loss_scale(scale, false, 2);
  CHECK((scale.value == 4 && scale.good_steps == 1));
  scale = next_loss_scale(scale, true, 2);
  CHECK((scale.value == 2 && scale.good_steps == 0));
  for (int i = 0; i < 2; ++i) scale = next_loss_scale(scale, false, 2);
  CHECK((scale.value == 4 && scale.good_steps == 0));
  for (int i = 0; i < 10; ++i) scale = next_loss_scale(scale, true, 2);
  CHECK(scale.value == least_loss_scale);
  for (int i = 0; i < 100; ++i) scale = next_loss_scale(scale, false, 1);
  CHECK(scale.value == most_loss_scale);
}
