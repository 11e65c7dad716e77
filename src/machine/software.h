// How a trainer runs a planned step: gptrain, or a trainer whose steps are published. Profiles are in configs/software.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/enum_array.h"
#include "machine/profile_reader.h"
#include "parallel/groups.h"

namespace gptrain::inline machine {

constexpr std::string_view own_software = "gptrain";

struct Software {
  std::string name = std::string(own_software);
  std::string release = {};     // the version with which the published steps were measured
  bool fused_attention = true;  // false: scores of all pairs are stored, see unfused_attention_seconds
  bool own_attention = true;    // gptrain's own kernels run where the library of fused attention does not serve an op
  // By lane: whether ops run beside the lane's collectives. If not, the rank waits for each collective, and for each
  // transfer that it sends.
  EnumArray<LaneKind, bool, num_lanes> overlaps = all_lanes(true);
  bool overlaps_sequence = true;  // the same for the tensor lane with parallel.sequence
  // With sequence parallelism all rows are gathered before the product; gptrain multiplies each piece as it arrives.
  bool gathers_before_products = false;
  bool sums_gradients_last = false;  // sums gradients after all passes; gptrain sums a unit's once they are complete
  // A token goes once to a node with several of its experts (exchange_by_nodes_seconds); gptrain sends a row for each.
  bool sends_tokens_once = false;
  double hidden_exchange = 0;  // share of the exchanges of tokens that other micro-batches' passes hide
  double nic_share = 1;        // share of gptrain's rate between nodes that its collectives reach
  double slowness = 1;         // time of a step over the time that the rest of this profile gives

  bool is_own() const { return name == own_software; }

  static constexpr EnumArray<LaneKind, bool, num_lanes> all_lanes(bool value) {
    EnumArray<LaneKind, bool, num_lanes> lanes{};
    lanes.fill(value);
    return lanes;
  }
};

// Generations of GPUs with published steps, and their least compute capability.
struct Generation {
  std::string_view name, device;
  double compute_capability;
};
constexpr std::array<Generation, 2> published_generations = {{{"ampere", "A100", 8.0}, {"hopper", "H100", 9.0}}};

// Returns the profile with that name (case-insensitive), or else in the file with that path. Its `slowness` is that of
// the devices' generation, or of the other one if the profile has one only. THROWS Error(usage) if there is neither, or
// with all faults of the file.
Software find_software(std::string_view name, double compute_capability);
const std::vector<BuiltInProfile>& built_in_software();  // configs/software, compiled into the program
std::vector<std::string> software_names();               // the built-in profiles', with gptrain's own

// Returns the name of a trainer with published steps of similar layouts on such devices: for ZeRO 3 one that shards
// weights, else one with tensor and pipeline parallelism. Devices older than the generations count as the oldest.
std::string_view published_software(double compute_capability, int64_t zero);

}  // namespace gptrain::machine
