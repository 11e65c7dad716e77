// Gathers of weights and sums of gradients around the actions that use them, by ZeRO stage (arXiv 1910.02054), for
// functions that make schedules.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/schedule.h"

namespace gptrain::inline schedule {

// At most two blocks have gathered weights at a time, one in use and one on its way, and at most
// ScheduleOptions::sums_under_way sums of blocks' whole or narrow gradients are under way. Embedding and head are not
// counted.
class ParameterTraffic {
 public:
  // Borrows `schedule`, to which all methods add actions and buffers.
  explicit ParameterTraffic(Schedule& schedule);

  // Makes the weights of `unit` ready for the next action. If weights are gathered, also begins to gather those that
  // are used after them, of unit `following` (-1: none). Returns the buffer of gathered weights; -1 if they are
  // resident.
  int32_t use(int32_t unit, int32_t following);

  // Returns the buffer into which the next action writes the gradients of `unit`, or -1 if it adds them to the rank's
  // own. A tied table may have several buffers at a time: the loss writes gradients of later micro-batches before the
  // embedding has finished earlier ones.
  int32_t claim_gradients(int32_t unit, int32_t micro_batch);

  // Begins to sum or keep the gradients of `unit`, if the options ask for either after this micro-batch. REQUIRES: the
  // last action that writes them for this micro-batch has been added.
  void gradients_done(int32_t unit, int32_t micro_batch);

  // Waits for all sums under way.
  void await_all_gradients();

 private:
  static constexpr int64_t most_gathered = 2;

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
  std::vector<bool> awaited_;       // by unit: its weights that return (ParameterFlow) were awaited
  std::vector<Gathered> gathered_;  // gathers that have begun, oldest first
  std::vector<Claim> claims_;       // whole gradients that are being written
  std::vector<Sum> sums_;           // sums under way, oldest first
};

}  // namespace gptrain::schedule
