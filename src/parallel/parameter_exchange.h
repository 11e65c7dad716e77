// What data ranks, tensor ranks and stages exchange of parameters: weights gathered from pieces, and gradients summed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/backend.h"
#include "parallel/groups.h"
#include "parallel/kept_gradients.h"
#include "parallel/parameters.h"

namespace gptrain {

// Begins to gather a unit's weights from this rank's piece and the others' (ZeRO 1 to 3): those in the compute dtype,
// with ZeRO 3 into `gathered`, and where that dtype is not f32 the norms' masters. The ticket is of both.
Lane::Ticket begin_gather(const ParameterStore& parameters, int64_t unit, std::byte* gathered, RankGroups& groups,
                          Backend& backend);

// Tickets by unit. Those of gathers outlive a step: weights updated in one are awaited in the next, or in an evaluation.
using UnitTickets = std::vector<Lane::Ticket>;

class ParameterExchange {
 public:
  // Borrows everything. `kept` is null where gradients are kept as they are made.
  ParameterExchange(const ParameterStore& parameters, RankGroups& groups, Backend& backend, const KeptGradients* kept)
      : parameters_(parameters),
        groups_(groups),
        backend_(backend),
        kept_(kept),
        sums_(static_cast<size_t>(parameters.num_units()), Lane::done) {}

  // A unit's gradients, f32, and room for them in the dtype that they travel in, where that is narrower.
  struct Gradients {
    std::byte* whole;
    std::byte* narrow;
  };
  // Begins to sum the gradients over the groups that the layout names.
  void begin_sum(int64_t unit, const Gradients& of);
  // Waits for the sum. With ZeRO 2 and 3 adds this rank's piece to that of the micro-batches before, if there are some.
  void await_sum(int64_t unit, const Gradients& of, int64_t micro_batch);
  // Adds a micro-batch's gradients to what this rank keeps of those before.
  void keep(int64_t unit, const Gradients& of, int64_t micro_batch);
  // Sums the gradients of a table that the first and the last stage hold.
  void sum_tied();

 private:
  Lane::Ticket begin_narrow_sum(int64_t unit, const Gradients& of);
  void widen(int64_t unit, const Gradients& of);

  const ParameterStore& parameters_;
  RankGroups& groups_;
  Backend& backend_;
  const KeptGradients* kept_;
  UnitTickets sums_;
};

}  // namespace gptrain
