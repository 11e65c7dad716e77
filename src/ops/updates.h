// The updates of all optimizers: each is an ElementUpdate with a formula (ops/element_update.h), alone and with an
// average of the weights (ops/averaged.h).
#pragma once

#include "ops/adamw.h"
#include "ops/averaged.h"
#include "ops/lion.h"
#include "ops/sgd.h"

namespace gptrain {

using AdamWEma = Averaged<AdamW>;
using LionEma = Averaged<Lion>;
using SgdEma = Averaged<Sgd>;

}  // namespace gptrain

#define GPTRAIN_FOR_EACH_UPDATE(X) X(AdamW) X(AdamWEma) X(Lion) X(LionEma) X(Sgd) X(SgdEma)
