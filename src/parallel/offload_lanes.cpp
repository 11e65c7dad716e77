#include "parallel/offload_lanes.h"

#include <algorithm>
#include <stdexcept>

#include "base/offload_choice.h"

namespace gptrain::inline parallel {

OffloadLanes::OffloadLanes(Backend& backend)
    : backend_(backend), to_host_{backend.make_side_queue()}, to_device_{backend.make_side_queue()} {}

void OffloadLanes::play(const Action& action, const std::vector<Program::RecordPart>& record) {
  switch (action.kind) {
    case ActionKind::offload:
      return begin(to_host_, action, [&] { copy_to_host(record); });
    case ActionKind::await_offloaded:
      return await(to_host_, action);
    case ActionKind::fetch:
      return begin(to_device_, action, [&] { copy_to_device(record); });
    default:
      return await(to_device_, action);
  }
}

void OffloadLanes::begin(Lane& lane, const Action& action, const std::function<void()>& copies) {
  if (lane.queue == nullptr) return copies();
  if (lane.pending.size() == static_cast<size_t>(SideQueue::num_marks))
    throw std::logic_error("more copies of records are under way than there are marks");
  // Marks are used in turn. Copies end in order, and few are under way, so a mark is free again before its turn comes.
  const int mark = lane.next_mark;
  lane.next_mark = (mark + 1) % SideQueue::num_marks;
  lane.queue->mark_ops(mark);
  lane.queue->follow_ops(mark);
  copies();
  lane.queue->mark_work(mark);
  lane.pending.push_back({action.unit, action.micro_batch, mark});
}

void OffloadLanes::await(Lane& lane, const Action& action) {
  if (lane.queue == nullptr) return;
  const auto found = std::find_if(lane.pending.begin(), lane.pending.end(), [&](const Pending& pending) {
    return pending.unit == action.unit && pending.micro_batch == action.micro_batch;
  });
  if (found == lane.pending.end()) throw std::logic_error("a copy of a record is awaited that has not begun");
  lane.queue->ops_follow(found->mark);
  lane.pending.erase(found);
}

void OffloadLanes::copy_to_host(const std::vector<Program::RecordPart>& record) {
  for (const Program::RecordPart& part : record) {
    if (to_host_.queue != nullptr) {
      to_host_.queue->queue_download(part.host, part.device, part.bytes);
    } else {
      backend_.download(part.host, part.device, part.bytes);
    }
  }
}

void OffloadLanes::copy_to_device(const std::vector<Program::RecordPart>& record) {
  for (const Program::RecordPart& part : record) {
    if (to_device_.queue != nullptr) {
      to_device_.queue->queue_upload(part.device, part.host, part.bytes);
    } else {
      backend_.upload(part.device, part.host, part.bytes);
    }
  }
}

std::unique_ptr<DeviceMemory> OffloadLanes::allocate(int64_t bytes) {
  return memory_for(offload_key, [&] {
    return to_host_.queue != nullptr ? to_host_.queue->allocate_for_copies(bytes) : backend_.allocate(bytes);
  });
}

}  // namespace gptrain::parallel
