// The learning rate's curve: the rate of a step is a function of its number only.
#pragma once

#include <cstdint>

#include "config/run_config.h"

namespace gptrain::inline optim {

// RETURNS the rate of step `step`, counted from 0, of course.steps. Warm-up is linear: step s of w warm-up steps runs
// at lr (s + 1) / w. Then, with p the share of the remaining steps that is done, and 1 in the last step:
//   constant  lr
//   linear    lr + (min - lr) p
//   cosine    min + (lr - min) (1 + cos(pi p)) / 2
//   wsd       lr, then a linear fall to min over the last decay_steps (arXiv 2404.06395)
// lr, min and w are members of `course`; optimizer.lr_scaling has multiplied lr and min already.
double learning_rate(const LrCourse& course, int64_t step);

}  // namespace gptrain::optim
