// Agreement of all ranks at the end of a step on the loss, the norm of the gradients and their clipping, whether the
// step is skipped, and whether the run stops. The same for every optimizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "model/statistics.h"
#include "ops/side_queue.h"
#include "optim/amax_history.h"
#include "optim/optimizer.h"
#include "optim/qk_clip.h"
#include "optim/router_balance.h"
#include "optim/update_site.h"
#include "parallel/groups.h"
#include "parallel/update_rule.h"

namespace gptrain::inline optim {

// Rules of the agreement, and numbers that it carries beside loss, norm and skip.
struct AgreementRules {
  double clip_norm = 0;           // 0: no clipping
  int64_t loss_scale_window = 0;  // 0: no loss scaling
  std::vector<StatisticsLayout::Reduction> statistics = {};
  const QkClip* qk_clip = nullptr;            // null: none; its scores are among the statistics
  const AmaxHistory* amax_history = nullptr;  // null: none; its amaxes are among the statistics
  bool whole = false;                         // measures_whole
};

// RETURNS whether every data rank measures whole gradients, since some steps do not sum them. The squared norm is then
// the sum over data ranks.
inline bool measures_whole(const OptimizerConfig& config) { return config.type == OptimizerKind::zero_one_adam; }

class StepAgreement {
 public:
  // Uploads its tables to `tables`, which is device memory of table_bytes. `copy_queue` is null on a CPU. All
  // references and pointers are borrowed.
  StepAgreement(const UpdateContext& context, AgreementRules rules, std::byte* tables, RankGroups& groups,
                SideQueue* copy_queue);

  // RETURNS the bytes for the partial sums of the norm, the number of ranks that want to stop, and the segments.
  static int64_t table_bytes(const ParameterStore& parameters, bool whole);

  // Writes the loss, the norm, the clipping factor and the decision to skip into the step's state. Exactly one rank
  // adds the square of each element: the rank that holds the element's piece, or the first of several ranks that hold
  // the same shard. So ZeRO 0 and 1 give the same bits of the norm, and so do ZeRO 2 and 3. With several islands the
  // squared norm is the sum of theirs, and the limit of clipping is that of its mean. Collective over the world.
  // REQUIRES: all gradients are summed.
  void agree();
  // Adds up the squares of a unit's gradients, which are in ParameterStore::gradients_piece. Call for all units before
  // `agree` if sums of gradients are away (Sharding::gradients_away); otherwise never.
  void measure(int64_t unit);

  // Sets the function that tells whether this rank wants to stop. Each step calls it as late as the ranks can still
  // agree. If the host runs ahead of a device, every wait for the device calls it, and the device reads the answer when
  // it reaches the norm. Once true, the rank's wish to stop is permanent. Empty function: never stop.
  void ask_for_stop(const std::function<bool()>& stop_wanted) { stop_wanted_ = stop_wanted; }
  // Sets the function that tells whether this rank has computed the step with data that do not count. It is called once
  // a step, after the rank's last micro-batch; once true, it stays true. All ranks then skip the step, as one that is
  // not finite, and the rank counts void_count times among those that want to stop.
  void ask_for_void(const std::function<bool()>& is_void) { is_void_ = is_void; }
  static constexpr double void_count = 4294967296.0;  // more than there are ranks
  // RETURNS the number of ranks that wanted to stop at the last call of `agree`, in device memory.
  const double* stops() const { return tables_.partials + num_tensors_; }
  // RETURNS whether any rank wants to stop. Call between steps. Collective over the world.
  bool agree_to_stop(bool wanted);

 private:
  struct Tables {
    double* partials;  // partial norm of each tensor, then the number of ranks that ask to stop
    SquaredNorm::Segment* segments;
    int64_t bytes;
  };
  static Tables tables_at(std::byte* memory, int64_t num_tensors, size_t num_segments);
  void put_stop(double count);
  void look_for_stop();

  UpdateContext context_;
  AgreementRules rules_;
  int64_t num_tensors_;
  int64_t num_segments_ = 0;
  std::vector<int64_t> first_segments_;  // by unit, then their number
  Tables tables_;
  RankGroups& groups_;
  std::function<bool()> stop_wanted_;
  std::function<bool()> is_void_;
  SideQueue* const copy_queue_;                  // null also with one rank
  std::unique_ptr<DeviceMemory> wants_to_stop_;  // a double that the device reads: 1 once this rank wants to
};

// The end of a step as the executor plays it: norm() once, then update() of each unit that the rank updates.
class StepUpdate final : public UpdateRule {
 public:
  // Changes of weights after the optimizer's; null: none.
  struct After {
    const QkClip* qk_clip = nullptr;
    const RouterBalance* router_balance = nullptr;
  };
  // Borrows all.
  StepUpdate(StepAgreement& agreement, Optimizer& optimizer, const UpdateSite& site, const After& after)
      : agreement_(agreement), optimizer_(optimizer), site_(site), after_(after) {}
  void norm() override {
    agreement_.agree();
    site_.pass_state();
    if (const Matrix sums = optimizer_.measure(); sums.given()) site_.sum(sums);
    site_.end_measuring();
  }
  void update(int64_t unit) override {
    site_.pass_gradients(unit);
    site_.begin(unit);
    optimizer_.update(unit);
    if (after_.qk_clip != nullptr) after_.qk_clip->clip(unit);
    if (after_.router_balance != nullptr) after_.router_balance->update(unit);
    site_.end(unit);
  }
  void measure(int64_t unit) override { agreement_.measure(unit); }
  void await_update(int64_t unit) override {
    if (site_.lane != nullptr) site_.lane->await(unit);
  }

 private:
  StepAgreement& agreement_;
  Optimizer& optimizer_;
  const UpdateSite site_;
  const After after_;
};

}  // namespace gptrain::optim
