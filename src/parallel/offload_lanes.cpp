#include "parallel/offload_lanes.h"

#include <algorithm>
#include <stdexcept>

namespace gptrain {

OffloadLanes::OffloadLanes(Backend& backend)
    : backend_(backend), to_host_{backend.make_side_queue()}, to_device_{backend.make_side_queue()} {}

template <typename Copy>
void OffloadLanes::begin(Lane& lane, int32_t unit, int32_t micro_batch, const Copy& copy) {
  if (lane.queue == nullptr) return copy();
  if (lane.pending.size() == static_cast<size_t>(SideQueue::num_marks))
    throw std::logic_error("more copies of records are under way than there are marks");
  // Copies end in their order, and few are under way: a mark is free again long before its turn comes.
  const int mark = lane.next_mark;
  lane.next_mark = (mark + 1) % SideQueue::num_marks;
  lane.queue->mark_ops(mark);
  lane.queue->follow_ops(mark);
  copy();
  lane.queue->mark_work(mark);
  lane.pending.push_back({unit, micro_batch, mark});
}

void OffloadLanes::await(Lane& lane, int32_t unit, int32_t micro_batch) {
  if (lane.queue == nullptr) return;
  const auto found = std::find_if(lane.pending.begin(), lane.pending.end(), [&](const Pending& pending) {
    return pending.unit == unit && pending.micro_batch == micro_batch;
  });
  if (found == lane.pending.end()) throw std::logic_error("a copy of a record is awaited that has not begun");
  lane.queue->ops_follow(found->mark);
  lane.pending.erase(found);
}

void OffloadLanes::offload(int32_t unit, int32_t micro_batch, const std::vector<Program::RecordPart>& record) {
  begin(to_host_, unit, micro_batch, [&] {
    for (const Program::RecordPart& part : record) {
      if (to_host_.queue != nullptr) {
        to_host_.queue->queue_download(part.host, part.device, part.bytes);
      } else {
        backend_.download(part.host, part.device, part.bytes);
      }
    }
  });
}

void OffloadLanes::fetch(int32_t unit, int32_t micro_batch, const std::vector<Program::RecordPart>& record) {
  begin(to_device_, unit, micro_batch, [&] {
    for (const Program::RecordPart& part : record) {
      if (to_device_.queue != nullptr) {
        to_device_.queue->queue_upload(part.device, part.host, part.bytes);
      } else {
        backend_.upload(part.device, part.host, part.bytes);
      }
    }
  });
}

std::unique_ptr<DeviceMemory> OffloadLanes::allocate(int64_t bytes) {
  return to_host_.queue != nullptr ? to_host_.queue->allocate_for_copies(bytes) : backend_.allocate(bytes);
}

}  // namespace gptrain
