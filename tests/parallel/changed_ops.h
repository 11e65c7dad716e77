// Faults planted in ops.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "ranks.h"
#include "wrappers.h"

namespace gptrain::testing {

// A backend that changes ops of one kind before they run.
template <typename Op>
class ChangedOps final : public ForwardingBackend {
 public:
  ChangedOps(Backend& inner, std::function<void(Op&)> change) : ForwardingBackend(inner), change_(std::move(change)) {}

  using ForwardingBackend::run;
  void run(const Op& op) override {
    Op wrong = op;
    change_(wrong);
    inner_.run(wrong);
  }

 private:
  std::function<void(Op&)> change_;
};

// Returns hooks that change ops of one kind. `change` gets the op and the rank.
template <typename Op>
Wrapping changing(const std::function<void(Op&, int64_t)>& change) {
  Wrapping wrapping;
  wrapping.backend = [=](int64_t rank, Backend& backend) {
    return std::make_unique<ChangedOps<Op>>(backend, [=](Op& op) { change(op, rank); });
  };
  return wrapping;
}

}  // namespace gptrain::testing
