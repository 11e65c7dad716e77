#include "parallel/groups.h"

#include <algorithm>
#include <exception>
#include <fmt/format.h>
#include <set>

#include "base/error.h"
#include "comm/device_groups.h"
#include "comm/exchange.h"
#include "comm/staged.h"
#include "config/axis_sizes.h"
#include "config/faults.h"

namespace gptrain::inline parallel {
namespace {

constexpr std::initializer_list<MeshAxis> all_axes = {MeshAxis::tensor, MeshAxis::context, MeshAxis::data,
                                                      MeshAxis::pipeline};

// Axes along which ranks hold the same layers.
constexpr std::initializer_list<MeshAxis> stage_axes = {MeshAxis::tensor, MeshAxis::context, MeshAxis::data};

// Axes along which ranks hold the same parameters, except for experts.
constexpr std::initializer_list<MeshAxis> copy_axes = {MeshAxis::context, MeshAxis::data};

// Returns a text with the nearest world sizes that the model parallel ranks and the batch both allow.
std::string nearest_world_sizes(const BatchConfig& batch, int64_t model_ranks, int64_t world_size) {
  const int64_t micro_batches = batch.global / batch.micro;
  const int64_t most = micro_batches * model_ranks;
  return nearest_integers(std::min(world_size, most + 1), model_ranks, most, [&](int64_t ranks) {
    return ranks % model_ranks == 0 && micro_batches % (ranks / model_ranks) == 0;
  });
}

}  // namespace

namespace {

// Returns the rank with the same other coordinates on the next stage (step 1) or the stage before (-1). Returns the
// rank itself at an end of the pipeline, unless stages have several chunks: they form a ring.
int64_t neighbour(const StepConfig& config, const Mesh& mesh, int64_t rank, int64_t step) {
  MeshPoint point = mesh.coordinates(rank);
  const int64_t stages = mesh.size(MeshAxis::pipeline);
  const int64_t stage = point[MeshAxis::pipeline] + step;
  if (config.parallel.virtual_stages == 1 && (stage < 0 || stage == stages)) return rank;
  point[MeshAxis::pipeline] = (stage + stages) % stages;
  return mesh.rank_of(point);
}

}  // namespace

namespace {

int64_t num_islands_of(const ParallelConfig& parallel, const Mesh& mesh) {
  if (!parallel.zero_node_copy || parallel.node_replicas.dense == 0) return parallel.local_steps.islands;
  return mesh.size(MeshAxis::context) * mesh.size(MeshAxis::data) / parallel.node_replicas.dense;
}

// Cuts `all` into runs of `of_run` ranks. Returns the run that `rank` is in, or the ranks with its index in all runs.
std::vector<int64_t> ranks_of_runs(const std::vector<int64_t>& all, int64_t rank, int64_t of_run, bool of_all_runs) {
  const int64_t index = std::find(all.begin(), all.end(), rank) - all.begin();
  std::vector<int64_t> ranks;
  for (int64_t i = 0; i < std::ssize(all); ++i)
    if (of_all_runs ? i % of_run == index % of_run : i / of_run == index / of_run)
      ranks.push_back(all[static_cast<size_t>(i)]);
  return ranks;
}

// Returns the data ranks of `rank`'s island, or those with its index in all islands.
std::vector<int64_t> data_ranks(const StepConfig& config, const Mesh& mesh, int64_t rank, bool of_all_islands) {
  const std::vector<int64_t> all = mesh.group(rank, copy_axes);
  return ranks_of_runs(all, rank, std::ssize(all) / num_islands_of(config.parallel, mesh), of_all_islands);
}

// Returns `ranks` in the order of their pieces.
std::vector<int64_t> in_order_of_pieces(const std::vector<int64_t>& ranks, int64_t of_node) {
  std::vector<int64_t> ordered(ranks.size());
  for (int64_t index = 0; index < std::ssize(ranks); ++index)
    ordered[static_cast<size_t>(piece_of_replica(index, std::ssize(ranks), of_node))] =
        ranks[static_cast<size_t>(index)];
  return ordered;
}

// Returns how many replicas of a dense unit, and of experts, are on a node if ranks communicate by node, else zeros.
NodeReplicas summed_by_node(const ParallelConfig& parallel) {
  return parallel.sums_by_node() ? parallel.node_replicas : NodeReplicas{};
}

// Returns the ranks of one of the kinds of groups by node, or only `rank` if there is none.
std::vector<int64_t> node_ranks(const StepConfig& config, const Mesh& mesh, int64_t rank, GroupKind kind) {
  const NodeReplicas by_node = summed_by_node(config.parallel);
  const bool of_experts = kind == GroupKind::expert_node || kind == GroupKind::expert_nodes;
  const int64_t of_node = of_experts ? by_node.experts : by_node.dense;
  if (of_node == 0) return {rank};
  return ranks_of_runs(of_experts ? mesh.group(rank, ExpertAxis::expert_data) : mesh.group(rank, copy_axes), rank,
                       of_node, kind == GroupKind::nodes || kind == GroupKind::expert_nodes);
}

}  // namespace

Mesh make_mesh(const StepConfig& config, int64_t world_size, ExitCode fault) {
  const ParallelConfig& parallel = config.parallel;
  const int64_t model_ranks = ranks_of_model(parallel);
  if (world_size % model_ranks != 0) {
    const bool shares_sequences = parallel.context > 1;
    throw Error(fault,
                "{} {} not divide into model replicas of parallel.tensor *{} parallel.pipeline = {} *{} {} ranks "
                "(start {} ranks)",
                world_size, world_size == 1 ? "rank does" : "ranks do", shares_sequences ? " parallel.context *" : "",
                parallel.tensor, shares_sequences ? fmt::format(" {} *", parallel.context) : "", parallel.pipeline,
                nearest_world_sizes(config.batch, model_ranks, world_size));
  }
  MeshPoint sizes;
  sizes[MeshAxis::tensor] = config.parallel.tensor;
  sizes[MeshAxis::context] = config.parallel.context;
  sizes[MeshAxis::data] = world_size / model_ranks;
  sizes[MeshAxis::pipeline] = config.parallel.pipeline;
  return {sizes, world_size, config.parallel.rank_order, {.tensor = parallel.expert_tensor, .expert = parallel.expert}};
}

std::vector<int64_t> group_ranks(const StepConfig& config, const Mesh& mesh, int64_t rank, GroupKind kind) {
  switch (kind) {
    case GroupKind::world:
      return mesh.group(rank, all_axes);
    case GroupKind::tensor:
      return mesh.group(rank, {MeshAxis::tensor});
    case GroupKind::context:
      return mesh.group(rank, {MeshAxis::context});
    case GroupKind::data:
      return in_order_of_pieces(data_ranks(config, mesh, rank, false), summed_by_node(config.parallel).dense);
    case GroupKind::islands:
      return data_ranks(config, mesh, rank, true);
    case GroupKind::node:
    case GroupKind::nodes:
    case GroupKind::expert_node:
    case GroupKind::expert_nodes:
      return node_ranks(config, mesh, rank, kind);
    case GroupKind::expert:
      return mesh.group(rank, ExpertAxis::expert);
    case GroupKind::expert_data:
      return in_order_of_pieces(mesh.group(rank, ExpertAxis::expert_data), summed_by_node(config.parallel).experts);
    case GroupKind::stage:
      return mesh.group(rank, stage_axes);
    case GroupKind::loss:
      return mesh.group(rank, {MeshAxis::context, MeshAxis::data, MeshAxis::pipeline});
    case GroupKind::next:
    case GroupKind::previous: {
      const int64_t other = neighbour(config, mesh, rank, kind == GroupKind::next ? 1 : -1);
      if (other == rank) return {rank};
      return kind == GroupKind::next ? std::vector{rank, other} : std::vector{other, rank};
    }
    case GroupKind::tied: {
      const std::vector<int64_t> stages = mesh.group(rank, {MeshAxis::pipeline});
      if (stages.size() == 1 || (rank != stages.front() && rank != stages.back())) return {rank};
      return {stages.front(), stages.back()};
    }
    case GroupKind::kv_heads: {
      const std::vector<int64_t> tensor = mesh.group(rank, {MeshAxis::tensor});
      const auto num_ranks = static_cast<size_t>(ranks_of_kv_head(config.model, static_cast<int64_t>(tensor.size())));
      const auto tensor_rank = static_cast<size_t>(mesh.coordinates(rank)[MeshAxis::tensor]);
      const auto first = tensor.begin() + static_cast<std::ptrdiff_t>(tensor_rank / num_ranks * num_ranks);
      return {first, first + static_cast<std::ptrdiff_t>(num_ranks)};
    }
    case GroupKind::count:
      break;
  }
  return {};
}

bool lies_within_a_node(const StepConfig& config, const Mesh& mesh, int64_t rank, GroupKind kind,
                        int64_t ranks_per_node) {
  if (ranks_per_node == 0) return true;
  const std::vector<int64_t> ranks = group_ranks(config, mesh, rank, kind);
  return std::all_of(ranks.begin(), ranks.end(),
                     [&](int64_t other) { return other / ranks_per_node == rank / ranks_per_node; });
}

int64_t piece_of_replica(int64_t index, int64_t replicas, int64_t of_node) {
  return of_node == 0 ? index : index % of_node * (replicas / of_node) + index / of_node;
}

std::vector<LaneGroup> lane_groups(const StepConfig& config) {
  // Uses of groups: sums of much data, of little, exchanges, and gathers alone.
  constexpr LaneGroup sums{.reduces = true, .in_pairs = true}, small_sums{.reduces = true},
      few_sums{.reduces = true, .has_few_bytes = true}, exchanges{.in_pairs = true}, gathers{};
  const bool has_experts = config.parallel.expert > 1;
  std::vector<LaneGroup> groups;
  const auto add = [&](LaneKind lane, GroupKind kind, LaneGroup use) {
    use.lane = lane;
    use.group = kind;
    groups.push_back(use);
  };
  add(LaneKind::tensor, GroupKind::tensor, sums);
  if (config.parallel.context > 1) add(LaneKind::context, GroupKind::context, exchanges);
  if (has_experts) add(LaneKind::expert, GroupKind::expert, exchanges);
  // Gradients of norms and routers, to which each rank adds its part of the tokens or heads.
  const bool in_parts = config.model.qk_norm || config.parallel.sequence || config.model.moe.is_on();
  if (in_parts) add(LaneKind::gradients, GroupKind::tensor, few_sums);
  add(LaneKind::gradients, GroupKind::kv_heads, sums);
  add(LaneKind::gradients, GroupKind::data, sums);
  if (has_experts) add(LaneKind::gradients, GroupKind::expert_data, sums);
  const NodeReplicas by_node = summed_by_node(config.parallel);
  const auto add_node_groups = [&](LaneKind lane, const LaneGroup& use) {
    if (by_node.dense > 0)
      for (const GroupKind kind : {GroupKind::node, GroupKind::nodes}) add(lane, kind, use);
    if (by_node.experts > 0)
      for (const GroupKind kind : {GroupKind::expert_node, GroupKind::expert_nodes}) add(lane, kind, use);
  };
  add_node_groups(LaneKind::gradients, sums);
  const bool has_islands = config.parallel.local_steps.is_on() || config.parallel.zero_node_copy;
  if (has_islands) add(LaneKind::gradients, GroupKind::islands, sums);
  const bool is_stage = config.parallel.pipeline == 1;  // the world is RankGroups::stage_group
  const bool has_muon = config.optimizer.type == OptimizerKind::muon;
  if (!is_stage || has_islands) add(LaneKind::gradients, GroupKind::loss, few_sums);
  if (!is_stage && has_muon) add(LaneKind::gradients, GroupKind::stage, exchanges);
  if (config.model.tied_head) add(LaneKind::gradients, GroupKind::tied, sums);
  add(LaneKind::gradients, GroupKind::world, is_stage && has_muon ? sums : few_sums);
  if (config.parallel.zero > 0) {
    // With 16-bit weights begin_gather also sums the norms' f32 masters over ranks, all but one zero.
    const LaneGroup use = config.precision.compute != DType::f32 ? small_sums : gathers;
    add(LaneKind::weights, GroupKind::data, use);
    if (has_experts) add(LaneKind::weights, GroupKind::expert_data, use);
    add_node_groups(LaneKind::weights, gathers);
  }
  return groups;
}

std::vector<NeighbourGroup> neighbour_groups(const StepConfig& config, const Mesh& mesh) {
  std::vector<NeighbourGroup> groups;
  if (mesh.size(MeshAxis::pipeline) == 1) return groups;
  for (const bool to_next : {true, false}) {
    // Stages rise with ranks, so each rank makes its groups in the order of their stages.
    for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
      const int64_t next = neighbour(config, mesh, rank, 1);
      if (next == rank) continue;
      groups.push_back(to_next ? NeighbourGroup{{rank, next}, LaneKind::send_next, LaneKind::receive_previous}
                               : NeighbourGroup{{next, rank}, LaneKind::send_previous, LaneKind::receive_next});
    }
  }
  return groups;
}

GroupKind neighbours_of(LaneKind lane) {
  return lane == LaneKind::send_next || lane == LaneKind::receive_next ? GroupKind::next : GroupKind::previous;
}

namespace {

// Returns one lane's share of a buffer for all lanes, a multiple of 256 bytes. The first lane also gets the remainder.
int64_t share_of_lane(int64_t bytes, int64_t lanes, bool first) {
  const int64_t share = bytes / lanes / 256 * 256;
  return first ? bytes - (lanes - 1) * share : share;
}

}  // namespace

ExchangeBytes planned_exchange_bytes(const Target& target, const RankGroups& groups) {
  ExchangeBytes bytes{};
  const bool is_gpu = target.kind == Target::Kind::gpu;
  int64_t& on_host = bytes[is_gpu ? MemoryPlace::pinned_host : MemoryPlace::device];
  bool any = false;
  for (size_t kind = 0; kind < num_lanes; ++kind) {
    const auto lane = static_cast<LaneKind>(kind);
    any = any || groups.works(lane);
    if (target.of_processes) on_host += exchange_scratch_bytes(static_cast<int>(groups.ranks_that_reduce(lane)));
  }
  if (!is_gpu || !any) return bytes;
  if (target.device_links) {
    bytes[MemoryPlace::device] += device_exchange_bytes;
  } else {
    on_host += staging_bytes;
  }
  return bytes;
}

RankGroups::StageRank RankGroups::stage_rank_at(const MeshPoint& at) const {
  return {at[MeshAxis::tensor], at[MeshAxis::context] + mesh_.size(MeshAxis::context) * at[MeshAxis::data]};
}

ReplicaRank RankGroups::replica_rank(ReplicaGroup group) const {
  if (group == ReplicaGroup::data) return {num_data_ranks() / islands_, piece_of(group, data_rank())};
  return {mesh_.size(ExpertAxis::expert_data), piece_of(group, mesh_.coordinate(rank_, ExpertAxis::expert_data))};
}

int64_t RankGroups::piece_of(ReplicaGroup group, int64_t index) const {
  if (group == ReplicaGroup::expert_data)
    return piece_of_replica(index, mesh_.size(ExpertAxis::expert_data), node_replicas_.experts);
  const int64_t of_island = num_data_ranks() / islands_;
  return piece_of_replica(index % of_island, of_island, node_replicas_.dense);
}

std::vector<RankGroups::StageRank> RankGroups::stage_ranks() const {
  std::vector<StageRank> stage_ranks;
  for (const int64_t rank : mesh_.group(rank_, stage_axes))
    stage_ranks.push_back(stage_rank_at(mesh_.coordinates(rank)));
  return stage_ranks;
}

void RankGroups::note_sizes(const StepConfig& config, const std::vector<LaneGroup>& groups) {
  for (size_t kind = 0; kind < num_group_kinds; ++kind)
    sizes_[kind] = std::ssize(group_ranks(config, mesh_, rank_, static_cast<GroupKind>(kind)));
  for (const LaneGroup& group : groups) {
    RankLane& lane = on(group.lane);
    const int64_t ranks = num_ranks(group.group);
    if (ranks > 1) lane.groups.push_back(group);
    lane.ranks = std::max(lane.ranks, ranks);
    if (group.reduces) lane.ranks_that_reduce = std::max(lane.ranks_that_reduce, ranks);
  }
  for (const NeighbourGroup& group : neighbour_groups(config, mesh_)) {
    for (const bool sends : {true, false}) {
      if (group.ranks[sends ? 0 : 1] != rank_) continue;
      const LaneKind kind = sends ? group.send : group.receive;
      on(kind).ranks = 2;
      on(kind).groups.push_back({.lane = kind, .group = neighbours_of(kind)});
      neighbour_lanes_.push_back(kind);
    }
  }
}

void RankGroups::start_lanes(bool threaded) {
  failure_ = std::make_shared<LaneFailure>();
  for (size_t kind = 0; kind < num_lanes; ++kind) {
    RankLane& lane = lanes_[kind];
    lane.lane.reset();
    std::vector<const Communicator*> groups;
    for (const auto& group : lane.queue ? lane.device : lane.host) groups.push_back(group.get());
    lane.lane =
        std::make_unique<Lane>(std::string(lane_names[kind]), Lane::Options{.threaded = threaded && lane.ranks > 1,
                                                                            .queue = lane.queue.get(),
                                                                            .failure = failure_,
                                                                            .number = static_cast<int8_t>(kind),
                                                                            .groups = std::move(groups)});
  }
}

RankGroups::RankGroups(const StepConfig& config, World& world)
    : mesh_(make_mesh(config, world.size(), ExitCode::device)),
      rank_(world.rank()),
      at_(mesh_.coordinates(rank_)),
      context_ranks_have_pairs_(context_rank_at(config.parallel, 0).has_pair),
      node_replicas_(summed_by_node(config.parallel)),
      islands_(num_islands_of(config.parallel, mesh_)) {
  activity_ = &world.activity();
  if (num_stages() > 1) activity_->set_stage(stage());
  const std::vector<LaneGroup> of_lanes = lane_groups(config);
  note_sizes(config, of_lanes);
  const auto make = [&](GroupKind kind, const GroupUse& use, std::unique_ptr<Communicator>& own) {
    std::set<std::vector<int64_t>> made;
    for (int64_t rank = 0; rank < mesh_.world_size(); ++rank) {
      const std::vector<int64_t> ranks = group_ranks(config, mesh_, rank, kind);
      if (ranks.size() == 1 || !made.insert(ranks).second) continue;
      auto group = world.make_group(std::vector<int>(ranks.begin(), ranks.end()), use);
      if (group) own = std::move(group);
    }
  };
  for (const LaneGroup& group : of_lanes) {
    RankLane& lane = on(group.lane);
    if (world.of_processes() && lane.scratch == nullptr && lane.ranks_that_reduce > 1)
      lane.scratch = std::make_shared<ExchangeScratch>(static_cast<int>(lane.ranks_that_reduce));
    make(group.group, {std::string(lane_names[group.lane]), lane.scratch, group.reduces},
         lane.host[index(group.group)]);
  }
  for (const NeighbourGroup& group : neighbour_groups(config, mesh_)) {
    const LaneKind kind = group.ranks[0] == rank_ ? group.send : group.receive;
    auto made = world.make_group({static_cast<int>(group.ranks[0]), static_cast<int>(group.ranks[1])},
                                 {.lane = std::string(lane_names[group.send]), .reduces = false});
    if (made) on(kind).host[index(neighbours_of(kind))] = std::move(made);
  }
  std::vector<GroupKind> kinds = {GroupKind::world, GroupKind::tensor, GroupKind::data};
  if (config.parallel.expert > 1) kinds.push_back(GroupKind::expert_data);
  if (islands_ > 1) kinds.push_back(GroupKind::islands);
  for (const GroupKind kind : kinds) make(kind, {.reduces = false}, groups_[index(kind)]);
  start_lanes(true);
}

RankGroups::RankGroups(const StepConfig& config, int64_t world_size, int64_t rank)
    : mesh_(make_mesh(config, world_size)),
      rank_(rank),
      at_(mesh_.coordinates(rank_)),
      context_ranks_have_pairs_(context_rank_at(config.parallel, 0).has_pair),
      node_replicas_(summed_by_node(config.parallel)),
      islands_(num_islands_of(config.parallel, mesh_)) {
  const std::vector<LaneGroup> of_lanes = lane_groups(config);
  note_sizes(config, of_lanes);
  for (const LaneGroup& group : of_lanes) {
    const std::vector<int64_t> ranks = group_ranks(config, mesh_, rank, group.group);
    if (ranks.size() == 1) continue;
    const auto rank_in_group = std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
    on(group.lane).host[index(group.group)] =
        make_plan_communicator(static_cast<int>(rank_in_group), static_cast<int>(ranks.size()));
  }
  for (const LaneKind lane : neighbour_lanes_) {
    on(lane).host[index(neighbours_of(lane))] = make_plan_communicator(1 - peer_on(lane), 2);
  }
  start_lanes(false);
}

void RankGroups::use_memory_of(Backend& backend, bool own_devices, double timeout_seconds) {
  const auto working = std::count_if(lanes_.begin(), lanes_.end(), [](const RankLane& lane) { return lane.ranks > 1; });
  linked_ = own_devices && has_device_links();
  std::vector<LinkedGroup> groups;
  std::vector<std::unique_ptr<Communicator>*> made;
  const auto use = [&](RankLane& lane) {
    lane.queue = backend.make_side_queue();
    if (lane.queue == nullptr) return;
    const int64_t share = share_of_lane(linked_ ? device_exchange_bytes : staging_bytes, working, groups.empty());
    lane.exchanged = linked_ ? backend.allocate(share) : lane.queue->allocate_host(share);
    for (const LaneGroup& group : lane.groups) {
      const size_t kind = index(group.group);
      groups.push_back({.host = lane.host[kind].get(),
                        .queue = lane.queue.get(),
                        .scratch = lane.exchanged.get(),
                        .one_way = is_between_stages(group.lane),
                        .in_pairs = group.in_pairs,
                        .has_few_bytes = group.has_few_bytes});
      made.push_back(&lane.device[kind]);
    }
  };
  for (size_t kind = 0; kind < num_lanes; ++kind) {
    const auto lane = static_cast<LaneKind>(kind);
    if (!is_between_stages(lane) && works(lane)) use(on(lane));
  }
  for (const LaneKind kind : neighbour_lanes_) use(on(kind));
  if (groups.empty()) {
    linked_ = false;
    return;
  }
  if (linked_) {
    auto communicators = make_linked_communicators(groups, timeout_seconds);
    for (size_t i = 0; i < made.size(); ++i) *made[i] = std::move(communicators[i]);
  } else {
    for (size_t i = 0; i < made.size(); ++i)
      *made[i] = make_staged_communicator(*groups[i].host, *groups[i].queue, *groups[i].scratch);
  }
  start_lanes(!linked_);
}

ExchangeBytes RankGroups::exchanged_bytes() const {
  ExchangeBytes bytes{};
  for (const RankLane& lane : lanes_) {
    const bool has_device = lane.queue != nullptr;
    int64_t& on_device = bytes[MemoryPlace::device];
    int64_t& on_host = has_device ? bytes[MemoryPlace::pinned_host] : on_device;
    if (lane.exchanged) (linked_ ? on_device : on_host) += lane.exchanged->bytes();
    if (lane.scratch) on_host += lane.scratch->bytes();
  }
  return bytes;
}

Communicator* RankGroups::group(LaneKind lane, GroupKind kind) const {
  const RankLane& of = on(lane);
  Communicator* const group = (of.queue ? of.device : of.host)[index(kind)].get();
  if (group == nullptr && num_ranks(kind) > 1) {
    throw Error(ExitCode::device, "the lane {} has no group {}", lane_names[lane], group_names[index(kind)]);
  }
  return group;
}

void RankGroups::set_log(EventLog* log) {
  log_ = log;
  for (const RankLane& lane : lanes_) lane.lane->set_log(log);
}

void RankGroups::give_up(std::exception_ptr failure) { failure_->set(std::move(failure)); }

void RankGroups::wait_all() {
  std::exception_ptr failure;
  for (const RankLane& lane : lanes_) {
    try {
      lane.lane->wait_all();
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace gptrain::parallel
