// Predicted duration of each event of a rank's step, waiting left out.
#pragma once

#include <cstdint>
#include <optional>

#include "base/enum_array.h"
#include "base/event.h"
#include "config/run_config.h"
#include "machine/collective_times.h"
#include "machine/profiles.h"
#include "machine/software.h"
#include "mesh/mesh.h"

namespace gptrain::inline machine {

// A device, its cluster, and the trainer that runs on them.
struct Machine {
  DeviceProfile device;
  ClusterProfile cluster;
  Software software = {};
  LinkWay way = LinkWay::threads;  // how ranks communicate; used for measured machines only
};
// Names or files of profiles; empty: the device's cluster, gptrain.
struct MachineNames {
  std::string device, cluster, software;
};
// Returns the device in the cluster that cluster_of chooses. `of_processes`: ranks are processes, otherwise threads of
// one process. THROWS Error(usage) as find_device, cluster_of and find_software do, and if software is named
// for a measured machine.
Machine machine_named(const MachineNames& names, bool of_processes);
// Returns the machine as that software runs it. THROWS Error(usage) as find_software does.
Machine run_by(Machine machine, std::string_view software);
// Returns true if the device is a machine on which gptrain was measured (gptrain bench device). Otherwise predicted
// times follow from the data sheet and the model of costs alone.
bool is_measured(const Machine& machine);
// Returns the expected error of a step with that parallel.zero.
ExpectedError expected_error(const Machine& machine, int64_t zero);
// Returns LinkWay::mpi if the cluster has measured links of MPI and none of TCP, otherwise LinkWay::tcp.
LinkWay way_of_processes(const ClusterProfile& cluster);
// THROWS Error(usage) if the machine was measured, but not the links that its ranks use.
void require_links(const Machine& machine, int64_t world_size);

// Shares of their speed that reads and writes of drives have while both go on.
struct DriveShares {
  double read = 0.5, write = 0.5;
};

// Bytes per second that a rank moves while all ranks of its node do.
struct PlaceRates {
  double host_link = 0;                  // between a GPU and its host, one way
  double host_memory = 0;                // used by updates that run on the host
  double disk_read = 0, disk_write = 0;  // each alone
  double disk_both = 0;                  // read plus written while as much is read as written; 0: they take turns

  DriveShares drive_shares() const;
  // Returns the seconds that it takes to read and to write so many bytes at the same time.
  double disk_seconds(double read, double written) const;
};
PlaceRates place_rates(const Machine& machine, int64_t world_size);

// Categories of a step's time: ops by their limit, copies, then one category for each lane.
enum class Spending : uint8_t { products, attention, memory, copies, first_lane };
constexpr size_t num_spendings = static_cast<size_t>(Spending::first_lane) + num_lanes;
// Returns the name for people: "matrix products", or the lane's name. `spending` < num_spendings.
std::string_view spending_name(size_t spending);
// Returns the category of a lane.
constexpr size_t lane_spending(size_t lane) { return static_cast<size_t>(Spending::first_lane) + lane; }

class EventTimes {
 public:
  // Times for an unknown machine: each event takes a microsecond, so that a timeline still shows their order.
  EventTimes() = default;
  // Times for `rank`. `threads`: run.threads. `sharing`: number of ranks that share the machine, if it exceeds the size
  // of the mesh.
  EventTimes(const Machine& machine, const StepConfig& config, int64_t threads, const Mesh& mesh, int64_t rank,
             int64_t sharing = 1);

  bool are_known() const { return machine_.has_value(); }
  // Returns the seconds of the event alone, as if nothing had to be waited for, with Software::slowness; 0 for a wait.
  double seconds_of(const Event& event) const;
  // Returns the time, without Software::slowness, and the algorithm of a collective. REQUIRES: are_known(), and the
  // event is a collective.
  CollectiveTime collective(const Event& event) const;

  DriveShares drive_shares() const { return machine_ ? places_of_state_.drive_shares() : DriveShares{}; }
  Software software() const { return machine_ ? machine_->software : Software{}; }
  // Whether a measured CPU has fewer cores than one for each thread and one more for each rank. Collectives of
  // different lanes then run one after another, on the cores of the ops.
  bool lanes_take_turns() const;
  // Share of its speed that an op loses while a collective runs.
  double slow_down() const { return machine_ ? machine_->device.slow_down_beside_traffic : 0; }

 private:
  // Returns the seconds of an op, collective or copy before Software::slowness.
  double seconds_at_full_speed(const Event& event) const;
  double op_seconds(const Event& op) const;

  std::optional<Machine> machine_;
  EnumArray<GroupKind, GroupSpan, num_group_kinds> spans_{};
  TokenRoutes routes_ = {};
  int64_t tensor_ranks_ = 1;
  int64_t rows_ = 0;  // tokens of a micro-batch
  int64_t world_size_ = 1;
  PlaceRates places_of_state_ = {};
  RankShare share_ = {};  // used for measured machines only
  int64_t threads_ = 1;   // per rank; used for measured machines only
  DType compute_ = DType::f32;
  OpKinds kinds_ = {};
};

// Returns the category of an event: a number of Spending, or lane_spending of a collective's lane.
size_t spending_of(const Event& event);

}  // namespace gptrain::machine
