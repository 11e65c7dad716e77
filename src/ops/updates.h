// The updates of all optimizers. Each is an ElementUpdate with a formula (ops/element_update.h), and a second one with
// an average of the weights (ops/averaged.h). Some need the sums of a first pass (ops/tensor_norms.h), some store their
// state in 8-bit blocks (ops/adamw_8bit.h), some in rows and columns (ops/factored.h). The lists at the end are parts
// of the list of all ops (ops/ops.h).
#pragma once

#include "ops/adafactor.h"
#include "ops/adamw.h"
#include "ops/adamw_8bit.h"
#include "ops/averaged.h"
#include "ops/factored.h"
#include "ops/frozen_adam.h"
#include "ops/lamb.h"
#include "ops/lars.h"
#include "ops/lion.h"
#include "ops/muon.h"
#include "ops/sgd.h"
#include "ops/zero_one_adam.h"

namespace gptrain::inline ops {

using AdafactorEma = Averaged<Adafactor>;
using AdamWEma = Averaged<AdamW>;
using LambEma = Averaged<Lamb>;
using LarsEma = Averaged<Lars>;
using LionEma = Averaged<Lion>;
using MuonEma = Averaged<Muon>;
using SgdEma = Averaged<Sgd>;

using AdafactorNorms = TensorNorms<Adafactor>;
using LambNorms = TensorNorms<Lamb>;
using LarsNorms = TensorNorms<Lars>;

}  // namespace gptrain::ops

// clang-format off
#define GPTRAIN_FOR_EACH_UPDATE(X) \
  X(Adafactor) X(AdafactorEma) X(AdafactorVectors) X(AdamW) X(AdamWEma) X(FrozenAdam) X(Lamb) X(LambEma) X(Lars) \
  X(LarsEma) X(Lion) X(LionEma) X(Muon) X(MuonEma) X(MuonMomentum) X(Sgd) X(SgdEma) \
  X(ZeroOneAdam)
// clang-format on
#define GPTRAIN_FOR_EACH_NORMS(X) X(AdafactorNorms) X(LambNorms) X(LarsNorms)
