#include "parallel/stage_links.h"

#include <algorithm>

namespace gptrain::inline parallel {
namespace {

LaneKind lane_of(bool sends, Way way) {
  if (way == Way::to_next) return sends ? LaneKind::send_next : LaneKind::receive_previous;
  return sends ? LaneKind::send_previous : LaneKind::receive_next;
}

}  // namespace

void StageLinks::play(const Transfer& transfer, const StageMessage& message, const Payload& payload) {
  const LaneKind kind = lane_of(transfer.sends, route_of(stages_, message).way);
  Lane& lane = groups_.lane(kind);
  const TensorRank axis = groups_.on_tensor_axis();
  const bool shared = payload.alike && axis.size > 1 && payload.count % axis.size == 0;
  const int64_t count = shared ? payload.count / axis.size : payload.count;
  std::byte* const data = payload.data + (shared ? axis.rank * count * dtype_bytes(payload.dtype) : 0);
  if (transfer.begins) {
    Communicator* const group = groups_.group(kind, neighbours_of(kind));
    const int peer = RankGroups::peer_on(kind);
    const Lane::Ticket ticket = transfer.sends ? lane.send(group, data, count, payload.dtype, peer)
                                               : lane.receive(group, data, count, payload.dtype, peer);
    under_way_.push_back({message, transfer.sends, ticket});
    return;
  }
  const auto found = std::find_if(under_way_.begin(), under_way_.end(), [&](const UnderWay& other) {
    return other.message == message && other.sends == transfer.sends;
  });
  if (found == under_way_.end()) return;  // a plan skips equal actions, among them this one's begin
  lane.wait(found->ticket);
  under_way_.erase(found);
  if (transfer.sends || !shared) return;
  Lane& tensor = groups_.lane(LaneKind::tensor);
  tensor.wait(
      tensor.all_gather(groups_.group(LaneKind::tensor, GroupKind::tensor), data, payload.data, count, payload.dtype));
}

}  // namespace gptrain::parallel
