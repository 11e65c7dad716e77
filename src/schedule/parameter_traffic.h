// Gathers of weights and sums of gradients around the actions that use them, by ZeRO stage (arXiv 1910.02054), for
// functions that make schedules.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "schedule/schedule.h"

namespace gptrain::inline schedule {

// At most 1 + ScheduleOptions::gathers_ahead blocks have gathered weights at a time, one in use and the others on their
// way, and at most ScheduleOptions::sums_under_way sums of blocks' whole or narrow gradients are under way. Embedding
// and head are not counted.
class ParameterTraffic {
 public:
  // Borrows `schedule`, to which all methods add actions and buffers.
  explicit ParameterTraffic(Schedule& schedule);

  // Makes the weights of `unit` ready for the next action. If weights are gathered, also begins to gather those that
  // are used after them, of the units `following` in their order, as many as there is room for. Returns the buffer of
  // gathered weights; -1 if they are resident.
  int32_t use(int32_t unit, std::span<const int32_t> following);

  // Returns the buffer into which the next action writes the gradients of `unit`, or -1 if it adds them to the rank's
  // own. A tied table may have several buffers at a time: the loss writes gradients of later micro-batches before the
  // embedding has finished earlier ones.
  int32_t claim_gradients(int32_t unit, int32_t micro_batch);

  // Begins to sum or keep the gradients of `unit`, if the options ask for either after this micro-batch. REQUIRES: the
  // last action that writes them for this micro-batch has been added.
  void gradients_done(int32_t unit, int32_t micro_batch);

  // Adds the phases that are left of the sums under way, and the actions that await them.
  void await_all_gradients();

 private:
  struct Sum {
    int32_t unit;
    int32_t micro_batch;
    int32_t whole, narrow;  // buffers
    int8_t phase;           // number of the phase that began last
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
  // Begins to gather unless no other block's weights can make room.
  void begin_gather(int32_t unit, int32_t in_use, std::span<const int32_t> wanted);
  void make_room_for_sum_of(int32_t unit);
  // Begins the next phase of each of the first `count` sums under way that has one. Returns false if none has.
  bool go_on_with_sums(size_t count);
  void await(size_t sum);
  void add(ActionKind kind, const Sum& sum);

  Schedule& schedule_;
  std::vector<bool> awaited_;       // by unit: its weights that return (ParameterFlow) were awaited
  std::vector<Gathered> gathered_;  // gathers that have begun, oldest first
  std::vector<Claim> claims_;       // whole gradients that are being written
  std::vector<Sum> sums_;           // sums under way, oldest first
};

}  // namespace gptrain::schedule
