// A rank's coordinates in the mesh, and the groups and lanes in which it communicates.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/enum_array.h"
#include "comm/exchange.h"
#include "comm/lane.h"
#include "comm/plan.h"
#include "comm/world.h"
#include "config/run_config.h"
#include "mesh/mesh.h"
#include "model/spec/layout.h"
#include "model/tensor_parallel.h"
#include "ops/backend.h"
#include "ops/side_queue.h"
#include "parallel/memory.h"

namespace gptrain::inline parallel {

// Kinds of groups, by the property that their ranks share.
enum class GroupKind : uint8_t {
  world,     // all ranks: for the gradient norm and for agreements
  tensor,    // share each layer
  context,   // share sequences: each has some of their tokens, the queries of which need the others' keys
  kv_heads,  // hold the same key/value heads, inside a tensor group; reports name them "replicas"
  data,      // hold the same parameters and see different samples or tokens: gradients and losses are summed over them
  expert,    // hold different experts of the same layers: tokens go to the rank of their expert, and back
  expert_data,  // hold the same experts' parameters
  stage,        // hold parts of the same layers: matrices are gathered from them (optim/muon.cpp)
  loss,         // have the same rank on the tensor axis, on all stages: losses are summed over them
  tied,         // the first and the last stage of one pipeline, where both hold the table of a tied head
  next,         // a stage and the one after it in the ring: for the lanes send_next and receive_next
  previous,     // a stage and the one before it in the ring: for the lanes send_previous and receive_previous
  // Hold the same parameters on different islands: with parallel.local_steps, or on different nodes that each have a
  // copy of all state (parallel.zero_node_copy). `data` is then of one island.
  islands,
  // Parts of `data` and `expert_data` if these communicate by node: the ranks of one node, and those with the same
  // index on all nodes.
  node,
  nodes,
  expert_node,
  expert_nodes,
  count
};
constexpr size_t num_group_kinds = static_cast<size_t>(GroupKind::count);
// Names in reports.
constexpr EnumArray<GroupKind, std::string_view, num_group_kinds> group_names = {
    "world", "tensor", "context",  "replicas", "data", "expert", "expert_data", "stage",       "loss",
    "tied",  "next",   "previous", "islands",  "node", "nodes",  "expert_node", "expert_nodes"};

// Kinds of communication in a step. Each has a lane of its own (comm/lane.h).
enum class LaneKind : uint8_t {
  tensor,     // collectives inside layers
  gradients,  // sums of gradients, and for the update the gradient norm, losses and Muon's matrices
  weights,    // gathers of whole weights from pieces
  context,    // exchanges of keys, values and their gradients between ranks that share sequences
  expert,     // exchanges of tokens between ranks that hold different experts
  // Transfers between stages. Each direction has its own send lane and receive lane, so that opposing transfers never
  // wait for each other.
  send_next,
  receive_previous,
  send_previous,
  receive_next,
  count
};
constexpr size_t num_lanes = static_cast<size_t>(LaneKind::count);
constexpr EnumArray<LaneKind, std::string_view, num_lanes> lane_names = {
    "tensor",    "gradients",        "weights",       "context",     "expert",
    "send_next", "receive_previous", "send_previous", "receive_next"};
// Numbers of the things that ops may wait for: the lanes as in LaneKind, then the copies of offloaded records, then
// updates whose state is away.
constexpr size_t copy_lane = num_lanes;
constexpr size_t update_lane = num_lanes + 1;
constexpr size_t num_waited_lanes = num_lanes + 2;
constexpr std::string_view waited_lane_name(size_t lane) {
  return lane == copy_lane ? "copies" : lane == update_lane ? "updates" : lane_names[lane];
}

// Whether it is a lane of transfers between stages.
constexpr bool is_between_stages(LaneKind lane) { return lane >= LaneKind::send_next; }

// A group that works on a lane.
struct LaneGroup {
  LaneKind lane{};
  GroupKind group{};
  bool reduces = false;        // its collectives sum or reduce; false: they only move data
  bool in_pairs = false;       // ranks send to each other: in sums of much data and in all-to-all
  bool has_few_bytes = false;  // a few numbers in a step: losses, norms, statistics
};

// Traffic of a rank in a step by group, and by lane and group.
using GroupTraffic = EnumArray<GroupKind, TrafficTable, num_group_kinds>;
using LaneTraffic = EnumArray<LaneKind, GroupTraffic, num_lanes>;

// Returns the mesh of a config for `world_size` ranks. THROWS Error(fault) with the nearest possible sizes if the model
// parallel ranks do not divide world_size. `fault` is usage if the command line asks for the size, else device.
Mesh make_mesh(const StepConfig& config, int64_t world_size, ExitCode fault = ExitCode::usage);

// Returns the ranks of `rank`'s group of a kind, rising; for next and previous in the order of the ring, and for data
// and expert_data in the order of their pieces (piece_of_replica). Returns only `rank` if it has no such group.
std::vector<int64_t> group_ranks(const StepConfig& config, const Mesh& mesh, int64_t rank, GroupKind kind);
// Whether all ranks of `rank`'s group of a kind are on one node, if nodes have `ranks_per_node` neighbouring ranks
// each. ranks_per_node 0: all ranks are on one node.
bool lies_within_a_node(const StepConfig& config, const Mesh& mesh, int64_t rank, GroupKind kind,
                        int64_t ranks_per_node);
// Returns the number of the piece of state of rank `index` among `replicas` ranks in rising order. `of_node`: number of
// these ranks on each node if they communicate by node (NodeReplicas), else 0. The pieces of ranks with the same index
// on their nodes are then neighbours, so that a sum within the node leaves a rank one run of pieces, which it sums
// between nodes.
int64_t piece_of_replica(int64_t index, int64_t replicas, int64_t of_node);
// Returns the groups of the config's lanes, in the order in which all ranks make them. Groups between stages come after
// them (neighbour_groups). A group of one rank is never made.
std::vector<LaneGroup> lane_groups(const StepConfig& config);

// A group of two neighbouring stages' ranks, for transfers from ranks[0] to ranks[1].
struct NeighbourGroup {
  std::array<int64_t, 2> ranks;
  LaneKind send, receive;  // lane of the group on ranks[0] and on ranks[1]
};
// Returns the neighbour groups of all ranks, in an order in which their ranks can make them one by one without
// deadlock.
std::vector<NeighbourGroup> neighbour_groups(const StepConfig& config, const Mesh& mesh);
// Returns the group of a lane between stages.
GroupKind neighbours_of(LaneKind lane);

using ExchangeBytes = EnumArray<MemoryPlace, int64_t, num_memory_places>;

// A rank's groups and lanes. Must not be copied, as items issued on the lanes refer to the groups.
class RankGroups {
 public:
  // Makes all groups: of the lanes, and those that group(GroupKind) returns. Collective over the world.
  RankGroups(const StepConfig& config, World& world);
  // Makes the groups of `rank` for the `plan` backend, which communicates with nobody.
  RankGroups(const StepConfig& config, int64_t world_size, int64_t rank);

  const Mesh& mesh() const { return mesh_; }
  int64_t rank() const { return rank_; }
  int64_t num_stages() const { return mesh_.size(MeshAxis::pipeline); }
  int64_t stage() const { return at_[MeshAxis::pipeline]; }
  TensorRank on_tensor_axis() const { return {mesh_.size(MeshAxis::tensor), at_[MeshAxis::tensor]}; }
  ContextRank on_context_axis() const {
    return {mesh_.size(MeshAxis::context), at_[MeshAxis::context], context_ranks_have_pairs_};
  }
  ExpertRank on_expert_axis() const {
    const auto of = [&](ExpertAxis axis) { return mesh_.coordinate(rank_, axis); };
    return {.size = mesh_.size(ExpertAxis::expert),
            .rank = of(ExpertAxis::expert),
            .tensor = {mesh_.size(ExpertAxis::expert_tensor), of(ExpertAxis::expert_tensor)}};
  }
  // Number of ranks that a batch is divided over, and this rank's number among them: ranks with different samples.
  int64_t num_sample_ranks() const { return mesh_.size(MeshAxis::data); }
  int64_t sample_rank() const { return at_[MeshAxis::data]; }
  // Number of ranks that hold the same parameters, and this rank's number among them.
  int64_t num_data_ranks() const { return num_sample_ranks() * mesh_.size(MeshAxis::context); }
  int64_t data_rank() const { return stage_rank().data; }
  // Number of islands, and that of this rank's island. An island is a run of data ranks that sum gradients among
  // themselves (parallel.local_steps), or that are on one node and together hold one copy of the state
  // (parallel.zero_node_copy). All ranks are one island without these keys.
  int64_t num_islands() const { return islands_; }
  int64_t island() const { return data_rank() / (num_data_ranks() / islands_); }
  // Returns the number of ranks of a group that hold replicas of parameters, and the number of this rank's piece.
  ReplicaRank replica_rank(ReplicaGroup group) const;
  // Returns the number of the piece of rank `index` among all ranks that hold the same parameters.
  int64_t piece_of(ReplicaGroup group, int64_t index) const;
  // Returns the number of the group's ranks on each node if they communicate by node, else 0.
  int64_t ranks_of_node(ReplicaGroup group) const {
    return group == ReplicaGroup::data ? node_replicas_.dense : node_replicas_.experts;
  }

  // Makes the lanes communicate memory of this backend; without this call they communicate host memory.
  // REQUIRES: called at most once, by the thread that calls the backend, before a lane is used or a lane's group is
  // taken. Collective over the world. `own_devices`: no two ranks share a device, so devices may exchange directly
  // (NCCL); otherwise, and in a build without NCCL, data goes through the host.
  // THROWS Error(machine) if memory is short, Error(device) if the devices' groups are not made within
  // `timeout_seconds`.
  void use_memory_of(Backend& backend, bool own_devices, double timeout_seconds);

  // Returns the size of this rank's group of a kind.
  int64_t num_ranks(GroupKind kind) const { return sizes_[index(kind)]; }
  // Returns the group for agreements, which the rank's thread uses directly, not on a lane, with host memory. `kind` is
  // world, tensor, data or expert_data. The group moves data and does not reduce. Null if it has one rank.
  Communicator* group(GroupKind kind) const { return groups_[kind].get(); }
  // Returns the group of a lane, which communicates the backend's memory. Null if it has one rank. THROWS Error(device)
  // if the lane has no such group.
  Communicator* group(LaneKind lane, GroupKind kind) const;
  // Returns the group of the same ranks for host memory. REQUIRES: it is used only while the lane is idle.
  Communicator* host_group(LaneKind lane, GroupKind kind) const { return on(lane).host[index(kind)].get(); }
  Lane& lane(LaneKind kind) { return *on(kind).lane; }
  // Returns the group over which losses are summed. It has one rank of each tensor group, whose ranks have equal
  // losses.
  Communicator* loss_group() const {
    return group(LaneKind::gradients, num_stages() > 1 || islands_ > 1 ? GroupKind::loss : GroupKind::data);
  }
  // Returns the group of a stage's ranks on the lane of gradients; null if there is one rank. stage_ranks() returns
  // the coordinates of its ranks, in the group's order.
  Communicator* stage_group() const {
    return group(LaneKind::gradients, num_stages() > 1 ? GroupKind::stage : GroupKind::world);
  }
  struct StageRank {
    int64_t tensor, data;  // rank on the tensor axis, and data_rank()
    bool operator==(const StageRank&) const = default;
  };
  std::vector<StageRank> stage_ranks() const;
  StageRank stage_rank() const { return stage_rank_at(at_); }
  // Returns the peer's number in the group of a lane between stages.
  static int peer_on(LaneKind lane) { return lane == LaneKind::send_next || lane == LaneKind::send_previous ? 1 : 0; }
  // Returns the record of the rank's current activity, for its watchers. Owned by the world. Null on the `plan`
  // backend.
  Activity* activity() const { return activity_; }
  // Aborts all lanes, as this rank cannot go on: later waits throw `failure`. REQUIRES: called before waiting for items
  // under way, which may wait for ever.
  void give_up(std::exception_ptr failure);
  // Sets the log of all lanes (Lane::set_log), borrowed; null: none. Events have numbers of LaneKind and GroupKind.
  void set_log(EventLog* log);
  EventLog* log() const { return log_; }
  // Waits for all items on all lanes, even if a lane has failed; then THROWS the lane's failure.
  void wait_all();

  // Whether devices exchange directly, not through the host.
  bool has_links() const { return linked_; }
  // Returns the bytes of all communication buffers, by MemoryPlace.
  ExchangeBytes exchanged_bytes() const;
  // Returns the size of the lane's largest group that reduces; 1 if there is none.
  int64_t ranks_that_reduce(LaneKind kind) const { return on(kind).ranks_that_reduce; }
  // Whether the lane has a group of several ranks.
  bool works(LaneKind kind) const { return on(kind).ranks > 1; }

 private:
  // Communicators by GroupKind; null if the group has one rank.
  using GroupHandles = EnumArray<GroupKind, std::unique_ptr<Communicator>, num_group_kinds>;

  struct RankLane {
    std::vector<LaneGroup> groups;             // groups of several ranks
    int64_t ranks = 1;                         // size of its largest group
    int64_t ranks_that_reduce = 1;             // size of its largest group that reduces
    std::shared_ptr<ExchangeScratch> scratch;  // shared by its groups; null if ranks are threads or none reduces
    GroupHandles host;
    std::unique_ptr<SideQueue> queue;         // null: the backend's memory is host memory
    std::unique_ptr<DeviceMemory> exchanged;  // communication buffer of its device groups, on the host or the device
    GroupHandles device;                      // groups for device memory; empty without a queue
    std::unique_ptr<Lane> lane;               // declared after the groups: its thread must end first
  };

  StageRank stage_rank_at(const MeshPoint& at) const;
  static size_t index(GroupKind kind) { return static_cast<size_t>(kind); }
  RankLane& on(LaneKind kind) { return lanes_[kind]; }
  const RankLane& on(LaneKind kind) const { return lanes_[kind]; }
  void note_sizes(const StepConfig& config, const std::vector<LaneGroup>& groups);
  void start_lanes(bool threaded);

  Mesh mesh_;
  int64_t rank_;
  MeshPoint at_;
  bool context_ranks_have_pairs_;
  NodeReplicas node_replicas_;  // zeros unless ParallelConfig::sums_by_node
  int64_t islands_;
  bool linked_ = false;
  EventLog* log_ = nullptr;
  Activity* activity_ = nullptr;
  GroupHandles groups_;
  EnumArray<GroupKind, int64_t, num_group_kinds> sizes_{};
  EnumArray<LaneKind, RankLane, num_lanes> lanes_;
  std::vector<LaneKind> neighbour_lanes_;  // this rank's lanes between stages, in the order of making their groups
  std::shared_ptr<LaneFailure> failure_;
};

// Returns RankGroups::exchanged_bytes as it will be on the target for a rank with these planned groups.
ExchangeBytes planned_exchange_bytes(const Target& target, const RankGroups& groups);

}  // namespace gptrain::parallel
