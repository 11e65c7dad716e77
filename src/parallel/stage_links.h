// The transfers between the stages of a pipeline, on their lanes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "comm/lane.h"
#include "parallel/groups.h"
#include "schedule/schedule.h"

namespace gptrain {

class StageLinks {
 public:
  // Borrows both.
  StageLinks(const Stages& stages, RankGroups& groups) : stages_(stages), groups_(groups) {}

  // What a message consists of, in memory of the backend.
  struct Payload {
    std::byte* data;
    int64_t count;  // elements
    DType dtype;
    // The ranks of a tensor group have the same elements. Then each sends its share, and the receivers gather what they
    // have got (the scatter-gather of arXiv 2104.04473), so that it travels between stages once.
    bool alike;
  };
  // Begins the message's transfer, or waits until it is over.
  void play(const Transfer& transfer, const StageMessage& message, const Payload& payload);

 private:
  struct UnderWay {
    StageMessage message;
    bool sends;
    Lane::Ticket ticket;
  };

  const Stages& stages_;
  RankGroups& groups_;
  std::vector<UnderWay> under_way_;
};

}  // namespace gptrain
