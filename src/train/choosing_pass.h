// A pass in which a backend only chooses algorithms (Backend::set_choosing): whose ops, and of which micro-batches.
#pragma once

#include <cstddef>
#include <vector>

#include "model/micro_batch.h"
#include "model/model.h"
#include "parallel/executor.h"

namespace gptrain {

// Leaves out what is not a unit's own work: collectives between data ranks, the norm and the update.
class ComputeOnly final : public ActionObserver {
 public:
  bool before(const Action& action) override {
    switch (action.kind) {
      case ActionKind::load:
      case ActionKind::forward:
      case ActionKind::forward_again:
      case ActionKind::recompute:
      case ActionKind::loss:
      case ActionKind::evaluate:
      case ActionKind::backward_input:
      case ActionKind::backward_weight:
      case ActionKind::backward:
        return true;
      default:
        return false;
    }
  }
  void after(const Action&) override {}
};

// Micro-batches of token 0, for steps whose values nobody looks at.
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

}  // namespace gptrain
