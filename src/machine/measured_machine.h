// Measurements of one machine: times of ops by size for the ranks that share it, and times of their collectives.
// `gptrain bench` writes them as a device profile (src/report/README.md), which `--target` reads.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/enum_array.h"
#include "base/event.h"
#include "base/kinds.h"
#include "comm/operation.h"
#include "config/run_config.h"
#include "machine/profile_reader.h"
#include "machine/rate_table.h"

namespace gptrain::inline machine {

// How ranks of one machine communicate.
enum class LinkWay : uint8_t { threads, tcp, mpi };
constexpr std::array<std::string_view, 3> link_way_names = {"threads", "tcp", "mpi"};
constexpr size_t num_link_ways = link_way_names.size();

// Tables by name: the op_key of an op, or the name of a collective.
using RateTables = std::map<std::string, RateTable, std::less<>>;

// Measured speed of one rank while `ranks` ranks share the machine and work at the same time.
struct MeasuredShare {
  int64_t ranks = 1;
  int64_t threads = 1;  // per rank
  double stretch = 1;   // time of a whole step over the sum of its ops' times in fast runs (`ops`); at least 1
  double between_ops_seconds = 0;  // pause between two ops of a step
  RateTables ops = {};
  // Ratios by FLOPs and in_step_key: time of a matrix product or attention within a step over its time when repeated
  // alone. In a step other ops have replaced the cache's contents, gradients are accumulated, and biases have
  // gradients.
  RateTables in_steps = {};
};

// Measured speed of working files (storage/working_files.h).
struct MeasuredDisk {
  double read_bytes_per_second = 0, write_bytes_per_second = 0;  // each alone; 0: not measured
  double both_bytes_per_second = 0;  // read plus written while as much is read as written; 0: not measured
  int64_t transfer_bytes = 0;
  int64_t depth = 0;  // transfers under way
};

struct MeasuredMachine {
  std::string name;
  bool is_cpu = true;
  double compute_capability = 0;  // 0 for a CPU
  int64_t cores = 1;              // threads that run at the same time, over all ranks; 1 for a GPU
  double memory_bytes = 0;
  double bytes_per_second = 0;             // bytes read plus bytes written by a copy within memory
  double f32_flops = 0, half_flops = 0;    // FLOP/s of the fastest matrix product; 0: the device has none
  double host_bytes_per_second = 0;        // between the host's memory and the device's
  double storage_bytes_per_second = 0;     // written to the folder of the profile
  MeasuredDisk disk = {};                  // drives of memory.disk_path
  double slow_down_beside_traffic = 0;     // see DeviceProfile
  std::vector<MeasuredShare> shares = {};  // by rising `ranks`; the first has one rank
  // Seconds of collectives by bytes (see BenchRow), for each LinkWay, by number of ranks in the group.
  EnumArray<LinkWay, std::map<int64_t, RateTables>, num_link_ways> links = {};
};

// Kinds of a model's ops: ops of one name but another kind have tables of their own.
struct OpKinds {
  ActivationKind activation = ActivationKind::gelu_tanh;
  NormKind norm = NormKind::layernorm;
  bool norms_query_key = false;
  bool caps_scores = false;  // model.attention_softcap
  bool caps_logits = false;  // model.logit_softcap
};
OpKinds op_kinds(const ModelConfig& model);
// Returns the key of an op's table: "bf16 linear_forward", "f32 activation_forward swiglu", "f32 norm_backward
// rmsnorm", "bf16 query_key_forward norm", "bf16 cross_entropy softcap". `compute` is the step's dtype; f16 counts as
// bf16.
std::string op_key(std::string_view name, DType compute, const OpKinds& kinds = {});
// Returns the key in MeasuredShare::in_steps: "bf16 linear_forward", "f32 linear_backward_weight bias", "f32
// attention_forward softcap". REQUIRES: the op has matrix products.
std::string in_step_key(const Event& op, const OpKinds& kinds);
// Returns the number of sizes in each row of the table with that key, or 0 if no op has it. Matrix products: 3 (m, n,
// k), then FLOP/s. Attention: 2 (tokens of a sequence, size of a head), then executed FLOP/s. Other ops: 1 (bytes, as
// their footprint counts them), then seconds.
size_t sizes_of_op(std::string_view key);
// Returns the kind of a table whose rows have that many sizes: rates for 2 or 3, seconds for 1.
RateTable::Kind table_kind(size_t num_sizes);

// The measured share whose threads are nearest to a rank's, and the corrections for that rank.
struct RankShare {
  const MeasuredShare* share = nullptr;  // owned by the MeasuredMachine; null: the machine was not measured
  double factor = 1;  // multiplies the tables' times: stretch, fewer threads than measured, threads that take turns
  double f32_flops = 0, half_flops = 0;  // upper limits of a product's FLOP/s on the share's threads; 0: not known
};
// Returns the share for one of `ranks` ranks, of `threads` threads each, that share the machine. REQUIRES: the machine
// has shares, and outlives the result.
RankShare share_of_rank(const MeasuredMachine& machine, int64_t ranks, int64_t threads);

// Key beside the collectives' tables: seconds that handing a collective to a lane adds. The table has one row, for 1
// byte.
constexpr std::string_view hand_over_key = "hand_over";

// Returns the seconds of an op, or nothing if the op was not measured. REQUIRES: share.share is not null.
std::optional<double> measured_op_seconds(const RankShare& share, const Event& op, DType compute, const OpKinds& kinds);
// Returns the highest FLOP/s in the tables of products and attention of the dtype, scaled to all cores; 0 if none has
// it.
double best_product_rate(const MeasuredMachine& machine, DType dtype);
// Returns the sizes at which the table of an op with matrix products is read.
std::vector<double> product_sizes(const ProductShape& products);

// Returns the seconds of a collective of a group of `ranks` ranks, while all `world` ranks of the machine communicate
// in such groups; 0 if the collective was not measured. Without a measured group of that size the next larger counts,
// else the largest. REQUIRES: the machine has links of that way.
double measured_collective_seconds(const MeasuredMachine& machine, LinkWay way, int64_t ranks, int64_t world,
                                   Operation operation, double bytes);

// Returns the profile's text, in which `source` ("measured: ...") stands beside each figure.
std::string machine_text(const MeasuredMachine& machine, std::string_view source);
// Returns true if machine_text wrote the profile; others are figures of a datasheet.
bool is_measured_machine(const ProfileReader& reader);
// Returns the machine of a profile that machine_text wrote. Adds faults to the reader: call reader.finish() before
// using the result.
MeasuredMachine read_machine(ProfileReader& reader);

}  // namespace gptrain::machine
