// A rank's place in the mesh and the groups it works in.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "comm/exchange.h"
#include "comm/lane.h"
#include "comm/plan.h"
#include "comm/world.h"
#include "config/run_config.h"
#include "mesh/mesh.h"
#include "model/tensor_parallel.h"
#include "ops/backend.h"
#include "ops/side_queue.h"
#include "parallel/memory.h"

namespace gptrain {

// Kinds of groups, by what their ranks have in common.
enum class GroupKind : uint8_t {
  world,     // every rank: the norm, and what all agree on
  tensor,    // share each layer
  replicas,  // hold the same key/value heads, inside a tensor group
  copies,    // hold the same parameters, and see other samples or tokens: gradients and losses are summed over them
  stage,     // hold the same layers, each a part: matrices are gathered from them (optim/muon.cpp)
  loss,      // have the same slice of each layer they hold, on whatever stage: losses are summed over them
  tied,      // the first and the last stage of one pipeline, where both hold the table of a tied head
  next,      // a stage and the one after it in the ring: the first of the two sends on to_next lanes
  previous,  // a stage and the one before it: the second of the two sends
  count
};
constexpr size_t num_group_kinds = static_cast<size_t>(GroupKind::count);
// In reports.
constexpr std::array<std::string_view, num_group_kinds> group_names = {"world", "tensor", "replicas",
                                                                       "data",  "stage",  "loss",
                                                                       "tied",  "next",   "previous"};

// What a rank's communication in a step is for; each kind has a lane (comm/lane.h).
enum class LaneKind : uint8_t {
  tensor,             // inside layers
  gradients,          // sums of gradients, and what the update needs: the norm, losses
  weights,            // whole weights from pieces
  // Between the stages of a pipeline, each way by itself, so that what comes never waits for what goes, nor what goes one
  // way for what goes the other.
  send_next,
  receive_previous,
  send_previous,
  receive_next,
  count
};
constexpr size_t num_lanes = static_cast<size_t>(LaneKind::count);
constexpr std::array<std::string_view, num_lanes> lane_names = {
    "tensor", "gradients", "weights", "send_next", "receive_previous", "send_previous", "receive_next"};
// What ops may wait for: the lanes, and the copies of what is offloaded.
constexpr size_t copy_lane = num_lanes;
constexpr size_t num_waited_lanes = num_lanes + 1;
constexpr std::string_view waited_lane_name(size_t lane) { return lane == copy_lane ? "copies" : lane_names[lane]; }

// A group that works on a lane.
struct LaneGroup {
  LaneKind lane;
  GroupKind group;
  bool reduces;  // besides moving
};

// What each group of a rank sends in a step, and each lane.
using GroupTraffic = std::array<TrafficTable, num_group_kinds>;
using LaneTraffic = std::array<GroupTraffic, num_lanes>;

// The mesh of a config that has been checked, for `world_size` ranks. Where the size does not divide: Error(fault) with
// the nearest ones that do. It is a fault of the command line that asks for so many, or of what has started them.
Mesh make_mesh(const RunConfig& config, int64_t world_size, ExitCode fault = ExitCode::usage);

// The ranks of `rank`'s group of a kind, in rising order, but of neighbours: those in the order of the ring. A rank
// without one is alone.
std::vector<int64_t> group_ranks(const RunConfig& config, const Mesh& mesh, int64_t rank, GroupKind kind);
// Whether all ranks of `rank`'s group of a kind lie on one node, where a node holds that many neighbouring ranks (0: all).
bool lies_within_a_node(const RunConfig& config, const Mesh& mesh, int64_t rank, GroupKind kind, int64_t ranks_per_node);
// The groups that the config's lanes work in, in the order in which all ranks make them, but for those between stages,
// which come last: neighbour_groups. Those of one rank are never made.
std::vector<LaneGroup> lane_groups(const RunConfig& config);

// A group of two neighbours and the lane that it works on at each: the sender, rank 0 of the group, and the receiver.
struct NeighbourGroup {
  std::array<int64_t, 2> ranks;
  LaneKind send, receive;
};
// All of the world, in an order in which each could be made by its two ranks where it stands.
std::vector<NeighbourGroup> neighbour_groups(const RunConfig& config, const Mesh& mesh);
// The group of a lane between stages.
GroupKind neighbours_of(LaneKind lane);

using ExchangeBytes = std::array<int64_t, num_memory_places>;

// Not copied: what is issued on the lanes refers to the groups.
class RankGroups {
 public:
  // Makes all groups, collectively with the other ranks of the world: those of lane_groups, and then those that agree.
  RankGroups(const RunConfig& config, World& world);
  // The groups of `rank` on the `plan` backend.
  RankGroups(const RunConfig& config, int64_t world_size, int64_t rank);

  const Mesh& mesh() const { return mesh_; }
  int64_t rank() const { return rank_; }
  int64_t num_stages() const { return mesh_.size(MeshAxis::pipeline); }
  int64_t stage() const { return at_[MeshAxis::pipeline]; }
  TensorPlace tensor_place() const { return {mesh_.size(MeshAxis::tensor), at_[MeshAxis::tensor]}; }
  // Among the ranks that see other samples: whose share of a batch is this rank's.
  int64_t num_sample_ranks() const { return mesh_.size(MeshAxis::data) * mesh_.size(MeshAxis::expert); }
  int64_t sample_rank() const { return sample_rank_at(at_); }
  // Among the ranks that hold the same parameters: whose piece of them is this rank's.
  int64_t num_copies() const { return num_sample_ranks() * mesh_.size(MeshAxis::context); }
  int64_t copy_rank() const { return stage_place().copy; }

  // Makes the lanes work on the memory of this backend; without it, on the host's. To be called once, by the thread
  // that calls the backend, before a lane is used and anybody holds one of its groups. Collective over the world.
  // `own_devices`: no two ranks share a device, so these may exchange by themselves (NCCL); otherwise, and in a build
  // without NCCL, what they exchange is carried through the host. Error(device): no memory for that, or no groups of
  // devices within `timeout_seconds`.
  void use_memory_of(Backend& backend, bool own_devices, double timeout_seconds);

  // Of this rank's group of a kind.
  int64_t num_ranks(GroupKind kind) const { return sizes_[index(kind)]; }
  // For what ranks agree on, by the rank's thread and in the host's memory, beside all lanes: world, tensor or copies.
  // It moves and does not reduce. Null where the group has one rank.
  Communicator* group(GroupKind kind) const { return groups_[static_cast<size_t>(kind)].get(); }
  // The group of a lane, which works on the memory of the backend. Null where it has one rank.
  Communicator* group(LaneKind lane, GroupKind kind) const;
  // The same ranks on the host's memory, while the lane has nothing to do.
  Communicator* host_group(LaneKind lane, GroupKind kind) const { return on(lane).host[index(kind)].get(); }
  Lane& lane(LaneKind kind) { return *on(kind).lane; }
  // Over which losses are summed, as ranks of a tensor group have the same.
  Communicator* loss_group() const {
    return group(LaneKind::gradients, num_stages() > 1 ? GroupKind::loss : GroupKind::copies);
  }
  // The group of a stage's ranks on the lane of gradients, null where it has one, and their places, in its order.
  Communicator* stage_group() const {
    return group(LaneKind::gradients, num_stages() > 1 ? GroupKind::stage : GroupKind::world);
  }
  struct StagePlace {
    int64_t tensor, copy;  // ranks of the tensor axis, and among those that hold the same parameters (copy_rank)
    bool operator==(const StagePlace&) const = default;
  };
  std::vector<StagePlace> stage_places() const;
  StagePlace stage_place() const { return stage_place_at(at_); }
  // The peer on a lane between stages, in the lane's group.
  static int peer_on(LaneKind lane) { return lane == LaneKind::send_next || lane == LaneKind::send_previous ? 1 : 0; }
  // What the rank is doing, for those that watch it; null on the `plan` backend. The world's, which outlives this.
  Activity* activity() const { return activity_; }
  // Ends what any lane waits for: this rank cannot go on. To be called before what is under way is waited for.
  void give_up(std::exception_ptr failure);
  // What all lanes write to from now on (Lane::set_log); null: nothing. Events have numbers of LaneKind and GroupKind.
  void set_log(EventLog* log);
  // Waits for everything on all lanes, also where one of them has failed; throws what it has failed with.
  void wait_all();

  // Whether ranks exchange amid a unit's ops, which are then not recorded (Backend::run_recorded): what goes through
  // the host cannot be, and NCCL neither lets a communicator end before the graphs that hold its work, nor promises
  // that such graphs and other communicators' work on one device run in one order on all ranks.
  bool exchange_amid_ops() const { return on(LaneKind::tensor).ranks > 1; }
  // Whether groups on devices exchange from device to device.
  bool has_links() const { return linked_; }
  // The memory that exchanges pass through, and receive in, by place.
  ExchangeBytes exchanged_bytes() const;
  // Ranks of the largest group of a lane that reduces; 1: none does.
  int64_t ranks_that_reduce(LaneKind kind) const { return on(kind).ranks_that_reduce; }
  // Whether the lane has any group.
  bool works(LaneKind kind) const { return on(kind).ranks > 1; }

 private:
  // Null where the group has one rank.
  using GroupHandles = std::array<std::unique_ptr<Communicator>, num_group_kinds>;

  struct RankLane {
    int64_t ranks = 1;  // of its largest group
    int64_t ranks_that_reduce = 1;
    std::shared_ptr<ExchangeScratch> scratch;  // of groups of processes
    GroupHandles host;
    std::unique_ptr<SideQueue> queue;         // null: the backend's memory is the host's
    std::unique_ptr<DeviceMemory> exchanged;  // what its groups on devices pass through: the host's or the device's
    GroupHandles device;                      // with a queue
    std::unique_ptr<Lane> lane;               // after the groups: its thread ends before they do
  };

  int64_t sample_rank_at(const MeshPoint& at) const;
  StagePlace stage_place_at(const MeshPoint& at) const;
  static size_t index(GroupKind kind) { return static_cast<size_t>(kind); }
  RankLane& on(LaneKind kind) { return lanes_[static_cast<size_t>(kind)]; }
  const RankLane& on(LaneKind kind) const { return lanes_[static_cast<size_t>(kind)]; }
  void note_sizes(const RunConfig& config);
  void start_lanes(bool threaded);

  Mesh mesh_;
  int64_t rank_;
  MeshPoint at_;
  bool linked_ = false;
  Activity* activity_ = nullptr;
  GroupHandles groups_;
  std::array<int64_t, num_group_kinds> sizes_{};
  std::array<RankLane, num_lanes> lanes_;
  std::vector<LaneKind> neighbour_lanes_;  // of this rank, in the order in which their groups are made
  std::shared_ptr<LaneFailure> failure_;
};

// What exchanged_bytes of a rank with such groups will be on that target.
ExchangeBytes planned_exchange_bytes(const Target& target, const RankGroups& groups);

}  // namespace gptrain
