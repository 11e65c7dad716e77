// Parts of a pass in which a backend only chooses algorithms (Backend::set_choosing): the actions to run, and
// micro-batches without data.
#pragma once

#include <cstddef>
#include <vector>

#include "model/micro_batch.h"
#include "model/model.h"
#include "parallel/executor.h"
#include "schedule/offload.h"

namespace gptrain::inline step {

// Runs the passes of units only: no collectives between data ranks, no gradient norm, no update.
class ComputeOnly final : public ActionObserver {
 public:
  bool before(const Action& action) override {
    return action.kind == ActionKind::load || action.kind == ActionKind::evaluate || is_unit_pass(action.kind);
  }
  void after(const Action&) override {}
};

// Returns micro-batches of token 0, for passes whose results are not used.
class NoTokens final : public MicroBatchSource {
 public:
  explicit NoTokens(const StepShape& shape)
      : memory_(static_cast<size_t>(shape.micro_batch().bytes())),
        view_(MicroBatch::at(memory_.data(), shape.micro_batch())) {}
  const MicroBatch& next() override { return view_; }

 private:
  std::vector<std::byte> memory_;
  MicroBatch view_;
};

}  // namespace gptrain::step
