// An observer of the actions of a schedule.
#pragma once

#include "schedule/schedule.h"

namespace gptrain::inline parallel {

// Sees every action before and after it runs. A plan uses it to count ops, a profile to time them.
class ActionObserver {
 public:
  virtual ~ActionObserver() = default;
  // Returns false to skip the action, which has no after() then. A plan skips actions equal to one it has counted.
  virtual bool before(const Action& action) = 0;
  virtual void after(const Action& action) = 0;
};

}  // namespace gptrain::parallel
