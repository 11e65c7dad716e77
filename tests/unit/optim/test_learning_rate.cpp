// Learning rates over the steps.
#include "catch.h"
#include "model_fixture.h"
#include "optim/learning_rate.h"

using namespace gptrain;

TEST_CASE("learning rates at the corners of each curve") {
  RunConfig config;
  config.optimizer.lr = 1.0;
  config.run.steps = 110;
  config.lr_curve = {.type = LrCurve::cosine, .warmup_steps = 10, .decay_steps = 0, .min_lr = 0.1};
  CHECK(learning_rate(config.lr_course(), 0) == Approx(0.1));
  CHECK(learning_rate(config.lr_course(), 9) == Approx(1.0));
  CHECK(learning_rate(config.lr_course(), 10) == Approx(1.0));
  CHECK(learning_rate(config.lr_course(), 109) == Approx(0.1));
  CHECK(learning_rate(config.lr_course(), 59) + learning_rate(config.lr_course(), 60) ==
        Approx(1.1));  // symmetric about its middle

  config.lr_curve.type = LrCurve::linear;
  CHECK(learning_rate(config.lr_course(), 10) == Approx(1.0));
  CHECK(learning_rate(config.lr_course(), 43) == Approx(0.7));
  CHECK(learning_rate(config.lr_course(), 109) == Approx(0.1));

  config.lr_curve = {.type = LrCurve::wsd, .warmup_steps = 10, .decay_steps = 20, .min_lr = 0.0};
  CHECK(learning_rate(config.lr_course(), 89) == Approx(1.0));
  CHECK(learning_rate(config.lr_course(), 90) == Approx(0.95));
  CHECK(learning_rate(config.lr_course(), 109) == Approx(0.0).margin(1e-12));

  config.lr_curve = {.type = LrCurve::constant, .warmup_steps = 0, .decay_steps = 0, .min_lr = 0};
  CHECK(learning_rate(config.lr_course(), 0) == 1.0);
  CHECK(learning_rate(config.lr_course(), 109) == 1.0);
}

TEST_CASE("a larger batch scales the course of the learning rate and stretches its warm-up") {
  RunConfig config;
  config.optimizer.lr = 0.1;
  config.optimizer.base_batch = 16;
  config.batch.global = 64;
  config.run.steps = 30;
  config.lr_curve = {.type = LrCurve::linear, .warmup_steps = 4, .decay_steps = 0, .min_lr = 0.01};
  CHECK(learning_rate(config.lr_course(), 3) == Approx(0.1));  // without scaling
  config.optimizer.lr_scaling = LrScaling::sqrt;
  CHECK(learning_rate(config.lr_course(), 3) == Approx(0.1));
  CHECK(learning_rate(config.lr_course(), 7) == Approx(0.2));
  CHECK(learning_rate(config.lr_course(), 29) == Approx(0.02));
  config.optimizer.lr_scaling = LrScaling::linear;
  CHECK(learning_rate(config.lr_course(), 15) == Approx(0.4));
  CHECK(learning_rate(config.lr_course(), 29) == Approx(0.04));
  config.batch.global = 8;  // also with a smaller batch
  CHECK(learning_rate(config.lr_course(), 1) == Approx(0.05));
}

TEST_CASE("learning rates have what the page of optimizers says of their first and last steps") {
  const auto rates = [](LrCurve type, int64_t steps, int64_t warmup, int64_t decay) {
    RunConfig config;
    config.optimizer.lr = 1;
    config.run.steps = steps;
    config.lr_curve = {.type = type, .warmup_steps = warmup, .decay_steps = decay, .min_lr = 0.1};
    std::vector<double> result;
    for (int64_t s = 0; s < steps; ++s) result.push_back(std::round(1e9 * learning_rate(config.lr_course(), s)) / 1e9);
    return result;
  };
  using Rates = std::vector<double>;
  CHECK(rates(LrCurve::linear, 10, 3, 0) == Rates{0.333333333, 0.666666667, 1, 1, 0.85, 0.7, 0.55, 0.4, 0.25, 0.1});
  CHECK(rates(LrCurve::linear, 4, 0, 0) == Rates{1, 0.7, 0.4, 0.1});
  for (const LrCurve curve : {LrCurve::linear, LrCurve::cosine}) {
    CHECK(rates(curve, 3, 2, 0) == Rates{0.5, 1, 0.1});  // one step is left
    CHECK(rates(curve, 4, 2, 0) == Rates{0.5, 1, 1, 0.1});
  }
  CHECK(rates(LrCurve::cosine, 3, 0, 0) == Rates{1, 0.55, 0.1});
  CHECK(rates(LrCurve::wsd, 6, 2, 3) == Rates{0.5, 1, 1, 0.7, 0.4, 0.1});
  CHECK(rates(LrCurve::wsd, 5, 2, 3) == Rates{0.5, 1, 0.7, 0.4, 0.1});  // no step at the peak after the warm-up
  CHECK(rates(LrCurve::constant, 3, 1, 0) == Rates{1, 1, 1});
  for (const LrCurve curve : {LrCurve::constant, LrCurve::linear, LrCurve::cosine})
    CHECK(rates(curve, 4, 4, 0) == Rates{0.25, 0.5, 0.75, 1});  // warm-up only
}
