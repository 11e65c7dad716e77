// How long each event of a rank's step takes by itself.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "base/event.h"
#include "config/run_config.h"
#include "mesh/mesh.h"
#include "machine/collective_times.h"
#include "machine/profiles.h"
#include "machine/software.h"

namespace gptrain {

// A device, the cluster that it stands in, and what runs on them.
struct Machine {
  DeviceProfile device;
  ClusterProfile cluster;
  Software software = {};
  LinkWay way = LinkWay::threads;  // of the ranks of a machine that was measured
};
// A device by name or file, in what cluster_of says that it stands in. Ranks are processes, or threads of one.
Machine machine_named(std::string_view device, std::string_view cluster, bool of_processes);
// TCP, where only MPI was measured MPI.
LinkWay way_of_processes(const ClusterProfile& cluster);
// Error(usage): the ranks exchange in a way that was not measured on the cluster, a machine that was.
void require_links(const Machine& machine, int64_t world_size);

// What the time of a step is spent on: ops by what limits them, and communication by lane.
enum class Spending : uint8_t { products, attention, memory, copies, first_lane };
constexpr size_t num_spendings = static_cast<size_t>(Spending::first_lane) + num_lanes;
std::string_view spending_name(size_t spending);
constexpr size_t lane_spending(size_t lane) { return static_cast<size_t>(Spending::first_lane) + lane; }

class EventTimes {
 public:
  // Of a machine of which nothing is known: each event takes a microsecond, which shows their order.
  EventTimes() = default;
  // Of `rank`, whose groups stand where the mesh puts them. `sharing`: ranks that share the machine, where the mesh is a
  // part of them.
  EventTimes(const Machine& machine, const RunConfig& config, const Mesh& mesh, int64_t rank, int64_t sharing = 1);

  bool are_known() const { return machine_.has_value(); }
  // Without what it waits for; of a wait 0.
  double seconds_of(const Event& event) const;
  // Of a collective.
  CollectiveTime collective(const Event& event) const;

  Software software() const { return machine_ ? machine_->software : Software{}; }
  // A machine of which no more than one lane of a rank has a core beside the rank's threads: what several lanes carry is
  // then done one after another, on the cores that the ops have, too.
  bool lanes_take_turns() const;
  double slow_down() const { return machine_ ? machine_->device.slow_down_beside_traffic : 0; }

 private:
  double op_seconds(const Event& op) const;

  std::optional<Machine> machine_;
  std::array<GroupPlace, num_group_kinds> places_{};
  int64_t tensor_ranks_ = 1;
  int64_t rows_ = 0;  // of a micro-batch
  int64_t world_size_ = 1;
  RankShare share_ = {};  // of a machine that was measured
  int64_t threads_ = 1;   // likewise
  DType compute_ = DType::f32;
  OpKinds kinds_ = {};
};

size_t spending_of(const Event& event);

}  // namespace gptrain
