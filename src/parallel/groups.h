// A rank's place in the mesh and the groups it works in.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "comm/collective_stream.h"
#include "comm/plan.h"
#include "comm/world.h"
#include "config/run_config.h"
#include "mesh/mesh.h"
#include "model/tensor_parallel.h"
#include "ops/backend.h"
#include "ops/side_queue.h"

namespace gptrain {

enum class GroupKind : uint8_t {
  world,     // every rank: the norm, and what all agree on
  tensor,    // shares each layer
  replicas,  // holds the same key/value heads, inside a tensor group
  data,      // sees other samples, holds the same weights
  count
};
constexpr size_t num_group_kinds = static_cast<size_t>(GroupKind::count);
constexpr std::array<std::string_view, num_group_kinds> group_names = {"world", "tensor", "replicas", "data"};

// What each group of a rank sends in a step.
using GroupTraffic = std::array<TrafficTable, num_group_kinds>;

// The mesh of a config that has been checked, for `world_size` ranks. Where the size does not divide: Error(fault) with
// the nearest ones that do. It is a fault of the command line that asks for so many, or of what has started them.
Mesh make_mesh(const RunConfig& config, int64_t world_size, ExitCode fault = ExitCode::usage);

// Not copied: what is issued on the stream refers to the groups.
class RankGroups {
 public:
  // Makes all groups, collectively with the other ranks of the world, in one fixed order.
  RankGroups(const RunConfig& config, World& world);
  // The groups of `rank` on the `plan` backend; what they would send is written to `traffic`, of the caller.
  RankGroups(const RunConfig& config, int64_t world_size, int64_t rank, GroupTraffic& traffic);

  const Mesh& mesh() const { return mesh_; }
  int64_t rank() const { return rank_; }
  TensorPlace tensor_place() const { return {mesh_.size(MeshAxis::tensor), at_[MeshAxis::tensor]}; }
  int64_t data_size() const { return mesh_.size(MeshAxis::data); }
  int64_t data_rank() const { return at_[MeshAxis::data]; }

  // Makes the collectives of the stream work on the memory of this backend; without it, on the host's. To be called
  // once, by the thread that calls the backend, before the stream is used and anybody holds one of its groups.
  // Collective over the world. `own_devices`: no two ranks share a device, so these may exchange by themselves (NCCL);
  // otherwise, and in a build without NCCL, what they exchange is carried through the host. Error(device): no memory
  // for that, or no groups of devices within `timeout_seconds`.
  void use_memory_of(Backend& backend, bool own_devices, double timeout_seconds);

  // Null where the group has one rank. What ranks agree on lies in the host's memory, and what the stream moves in that
  // of the backend.
  Communicator* group(GroupKind kind) const { return groups_[static_cast<size_t>(kind)].get(); }
  Communicator* device_group(GroupKind kind) const;
  // Whether ranks exchange amid a unit's ops, which are then not recorded (Backend::run_recorded): what goes through
  // the host cannot be, and NCCL neither lets a communicator end before the graphs that hold its work, nor promises
  // that such graphs and other communicators' work on one device run in one order on all ranks.
  bool exchange_amid_ops() const { return group(GroupKind::tensor) != nullptr; }
  CollectiveStream& stream() { return *stream_; }
  // Whether collectives on devices go from device to device, and the memory that they pass through.
  bool has_links() const { return linked_; }
  int64_t exchanged_bytes() const;

 private:
  Mesh mesh_;
  int64_t rank_;
  MeshPoint at_;
  bool linked_ = false;
  std::array<std::unique_ptr<Communicator>, num_group_kinds> groups_;
  std::unique_ptr<SideQueue> queue_;         // null: the backend's memory is the host's
  std::unique_ptr<DeviceMemory> exchanged_;  // what collectives on devices pass through: the host's or the device's
  std::array<std::unique_ptr<Communicator>, num_group_kinds> device_groups_;  // empty without a queue
  std::unique_ptr<CollectiveStream> stream_;  // after the groups: its thread ends before they do
};

// What exchanged_bytes of a rank with such groups will be on that target.
int64_t planned_exchange_bytes(const Target& target, const RankGroups& groups);

// The ranks of `rank`'s group of a kind.
std::vector<int64_t> group_ranks(const RunConfig& config, const Mesh& mesh, int64_t rank, GroupKind kind);

}  // namespace gptrain
