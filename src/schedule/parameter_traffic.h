// What has to happen to parameters around the actions that use them, by ZeRO stage (arXiv 1910.02054): for generators.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/schedule.h"

namespace gptrain {

// Of the blocks, two have their whole weights (ZeRO 3) at a time, and two sums of whole or narrow gradients are under
// way: one is in use while the other is on its way. The embedding and the head keep theirs beside them.
class ParameterTraffic {
 public:
  // Adds actions and buffers to `schedule`, which outlives this.
  explicit ParameterTraffic(Schedule& schedule);

  // The weights of `unit` are used next, those of `following` (-1: none) after them. Returns the buffer of whole
  // weights; -1 where the rank holds them all.
  int32_t use(int32_t unit, int32_t following);

  // The gradients of `unit` are written next, in the buffer that is returned; -1 where the rank holds them whole. The
  // loss of a tied head may begin those of later micro-batches before the embedding has ended these.
  int32_t claim_gradients(int32_t unit, int32_t micro_batch);

  // All gradients that this micro-batch has for `unit` are written.
  void gradients_done(int32_t unit, int32_t micro_batch);

  void await_all_gradients();

 private:
  static constexpr size_t most_blocks = 2;

  struct Sum {
    int32_t unit;
    int32_t micro_batch;
    int32_t whole, narrow;  // buffers
  };
  struct Claim {
    int32_t unit;
    int32_t micro_batch;
    int32_t buffer;
  };
  struct Gathered {
    int32_t unit;
    int32_t buffer;
    bool arrived;
  };

  bool is_block(int32_t unit) const { return schedule_.traits(unit).kind == UnitKind::block; }
  Gathered* find_gathered(int32_t unit);
  std::vector<Claim>::iterator find_claim(int32_t unit, int32_t micro_batch);
  void begin_gather(int32_t unit, int32_t in_use);
  void make_room_for_sum_of(int32_t unit);
  void await(size_t sum);

  Schedule& schedule_;
  std::vector<bool> awaited_;       // by unit: weights updated in the step before are known to be there (ZeRO 1 and 2)
  std::vector<Gathered> gathered_;  // in the order in which they began
  std::vector<Claim> claims_;       // whole gradients that are being written
  std::vector<Sum> sums_;           // under way, in the order in which they began
};

}  // namespace gptrain
