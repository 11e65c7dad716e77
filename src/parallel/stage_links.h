// Transfers between the stages of a pipeline, on their lanes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "comm/lane.h"
#include "parallel/groups.h"
#include "schedule/schedule.h"

namespace gptrain::inline parallel {

class StageLinks {
 public:
  // Borrows both arguments.
  StageLinks(const Stages& stages, RankGroups& groups) : stages_(stages), groups_(groups) {}

  // Content of a message, in the backend's memory.
  struct Payload {
    std::byte* data;
    int64_t count;  // elements
    DType dtype;
    // The ranks of a tensor group have equal elements. Each then sends its share only, and the receivers gather the
    // shares (scatter-gather of arXiv 2104.04473): every element is sent between the stages once.
    bool alike;
  };
  // Begins the message's transfer, or waits for its end if !transfer.begins. Every begun transfer is awaited by a later
  // call; Lane says which errors that wait throws.
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

}  // namespace gptrain::parallel
