// An optimizer of which some units' updates run where the ops do, the others on the host of their GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "optim/optimizer.h"
#include "optim/update_site.h"

namespace gptrain::inline optim {

class PlacedOptimizer final : public Optimizer {
 public:
  // REQUIRES: both are of one type that measures nothing; `on_ops` has the context UpdateSite::ops, `on_updates`
  // has UpdateSite::updates.
  PlacedOptimizer(std::unique_ptr<Optimizer> on_ops, std::unique_ptr<Optimizer> on_updates, UpdateSite site)
      : on_ops_(std::move(on_ops)), on_updates_(std::move(on_updates)), site_(site) {}

  void expect_sums(SumsOfStep sums, const GradientMessages& messages) override {
    on_ops_->expect_sums(sums, messages);
    on_updates_->expect_sums(sums, messages);
  }
  void update(int64_t unit) override { (site_.runs_with_ops(unit) ? on_ops_ : on_updates_)->update(unit); }

 private:
  const std::unique_ptr<Optimizer> on_ops_, on_updates_;
  const UpdateSite site_;
};

}  // namespace gptrain::optim
