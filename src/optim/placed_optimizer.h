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
  // REQUIRES: both are of one type that measures nothing; `with_ops` has the context UpdateSite::ops, `apart` has
  // UpdateSite::updates.
  PlacedOptimizer(std::unique_ptr<Optimizer> with_ops, std::unique_ptr<Optimizer> apart, UpdateSite site)
      : with_ops_(std::move(with_ops)), apart_(std::move(apart)), site_(site) {}

  void expect_sums(SumsOfStep sums, const GradientMessages& messages) override {
    with_ops_->expect_sums(sums, messages);
    apart_->expect_sums(sums, messages);
  }
  void update(int64_t unit) override { (site_.runs_with_ops(unit) ? with_ops_ : apart_)->update(unit); }

 private:
  const std::unique_ptr<Optimizer> with_ops_, apart_;
  const UpdateSite site_;
};

}  // namespace gptrain::optim
