#include "parallel/groups.h"

#include <algorithm>
#include <fmt/format.h>
#include <set>

#include "base/error.h"
#include "comm/device_groups.h"
#include "comm/exchange.h"
#include "comm/staged.h"
#include "config/faults.h"

namespace gptrain {
namespace {

constexpr std::initializer_list<MeshAxis> all_axes = {MeshAxis::tensor, MeshAxis::context, MeshAxis::expert,
                                                      MeshAxis::data, MeshAxis::pipeline};

// Those that the batch divides over, too.
std::string nearest_world_sizes(const BatchConfig& batch, int64_t model_ranks, int64_t world_size) {
  const int64_t micro_batches = batch.global / batch.micro;
  const int64_t most = micro_batches * model_ranks;
  return nearest_integers(std::min(world_size, most + 1), model_ranks, most, [&](int64_t ranks) {
    return ranks % model_ranks == 0 && micro_batches % (ranks / model_ranks) == 0;
  });
}

}  // namespace

Mesh make_mesh(const RunConfig& config, int64_t world_size, ExitCode fault) {
  const int64_t model_ranks = config.parallel.tensor * config.parallel.pipeline;
  if (world_size % model_ranks != 0) {
    throw Error(fault,
                "{} {} not divide into model replicas of parallel.tensor * parallel.pipeline = {} * {} ranks (try {})",
                world_size, world_size == 1 ? "rank does" : "ranks do", config.parallel.tensor,
                config.parallel.pipeline, nearest_world_sizes(config.batch, model_ranks, world_size));
  }
  MeshPoint sizes;
  sizes[MeshAxis::tensor] = config.parallel.tensor;
  sizes[MeshAxis::context] = 1;
  sizes[MeshAxis::expert] = 1;
  sizes[MeshAxis::data] = world_size / model_ranks;
  sizes[MeshAxis::pipeline] = config.parallel.pipeline;
  return {sizes, world_size};
}

std::vector<int64_t> group_ranks(const RunConfig& config, const Mesh& mesh, int64_t rank, GroupKind kind) {
  switch (kind) {
    case GroupKind::world:
      return mesh.group(rank, all_axes);
    case GroupKind::tensor:
      return mesh.group(rank, {MeshAxis::tensor});
    case GroupKind::data:
      return mesh.group(rank, {MeshAxis::data});
    case GroupKind::replicas: {
      const std::vector<int64_t> tensor = mesh.group(rank, {MeshAxis::tensor});
      const auto replicas = static_cast<size_t>(kv_replicas(config.model, static_cast<int64_t>(tensor.size())));
      const auto place = static_cast<size_t>(mesh.coordinates(rank)[MeshAxis::tensor]);
      const auto first = tensor.begin() + static_cast<std::ptrdiff_t>(place / replicas * replicas);
      return {first, first + static_cast<std::ptrdiff_t>(replicas)};
    }
    case GroupKind::count:
      break;
  }
  return {};
}

int64_t planned_exchange_bytes(const Target& target, const RankGroups& groups) {
  int64_t bytes = 0;
  for (size_t kind = 0; kind < num_group_kinds && target.of_processes; ++kind) {
    const Communicator* const group = groups.group(static_cast<GroupKind>(kind));
    if (group != nullptr) bytes += exchange_scratch_bytes(group->size());
  }
  if (target.kind == Target::Kind::cpu || groups.mesh().world_size() == 1) return bytes;
  return bytes + (target.device_links ? device_exchange_bytes : staging_bytes);
}

RankGroups::RankGroups(const RunConfig& config, World& world)
    : mesh_(make_mesh(config, world.size(), ExitCode::device)),
      rank_(world.rank()),
      at_(mesh_.coordinates(rank_)),
      stream_(std::make_unique<CollectiveStream>(world.size() > 1)) {
  for (size_t kind = 0; kind < num_group_kinds; ++kind) {
    std::set<std::vector<int64_t>> made;
    for (int64_t rank = 0; rank < mesh_.world_size(); ++rank) {
      const std::vector<int64_t> ranks = group_ranks(config, mesh_, rank, static_cast<GroupKind>(kind));
      if (ranks.size() == 1 || !made.insert(ranks).second) continue;
      auto group = world.make_group(std::vector<int>(ranks.begin(), ranks.end()));
      if (group) groups_[kind] = std::move(group);
    }
  }
}

RankGroups::RankGroups(const RunConfig& config, int64_t world_size, int64_t rank, GroupTraffic& traffic)
    : mesh_(make_mesh(config, world_size)),
      rank_(rank),
      at_(mesh_.coordinates(rank)),
      stream_(std::make_unique<CollectiveStream>(false)) {
  for (size_t kind = 0; kind < num_group_kinds; ++kind) {
    const std::vector<int64_t> ranks = group_ranks(config, mesh_, rank, static_cast<GroupKind>(kind));
    if (ranks.size() == 1) continue;
    const auto place = std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
    groups_[kind] = make_plan_communicator(static_cast<int>(place), static_cast<int>(ranks.size()), traffic[kind]);
  }
}

void RankGroups::use_memory_of(Backend& backend, bool own_devices, double timeout_seconds) {
  if (mesh_.world_size() == 1) return;
  queue_ = backend.make_side_queue();
  if (queue_ == nullptr) return;
  linked_ = own_devices && has_device_links();
  exchanged_ = linked_ ? backend.allocate(device_exchange_bytes) : queue_->allocate_host(staging_bytes);
  std::vector<Communicator*> hosts;
  for (const auto& group : groups_) {
    if (group) hosts.push_back(group.get());
  }
  std::vector<std::unique_ptr<Communicator>> on_devices;
  if (linked_) {
    on_devices = make_linked_communicators(hosts, *queue_, *exchanged_, timeout_seconds);
  } else {
    for (Communicator* const host : hosts) on_devices.push_back(make_staged_communicator(*host, *queue_, *exchanged_));
  }
  for (size_t kind = 0, next = 0; kind < num_group_kinds; ++kind) {
    if (groups_[kind]) device_groups_[kind] = std::move(on_devices[next++]);
  }
  stream_ = std::make_unique<CollectiveStream>(!linked_, queue_.get());
}

int64_t RankGroups::exchanged_bytes() const {
  int64_t bytes = exchanged_ ? exchanged_->bytes() : 0;
  for (const auto& group : groups_) bytes += group ? group->scratch_bytes() : 0;
  return bytes;
}

Communicator* RankGroups::device_group(GroupKind kind) const {
  return (queue_ ? device_groups_ : groups_)[static_cast<size_t>(kind)].get();
}

}  // namespace gptrain
