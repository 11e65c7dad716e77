// What was measured of a machine at hand: how long ops take by their sizes for the ranks that share it, and collectives
// between these. `gptrain bench` writes it as a device profile of this form (src/report/README.md), and `--target` reads
// it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/event.h"
#include "base/kinds.h"
#include "comm/operation.h"
#include "config/run_config.h"
#include "machine/profile_reader.h"
#include "machine/rate_table.h"

namespace gptrain {

// How ranks of one machine exchange.
enum class LinkWay : uint8_t { threads, tcp, mpi };
constexpr std::array<std::string_view, 3> link_way_names = {"threads", "tcp", "mpi"};
// Between processes: what was measured of the two, TCP before MPI.
constexpr size_t num_link_ways = link_way_names.size();

// By name: of an op, with the dtype and what else tells its kinds apart (see op_key), or of a collective.
using RateTables = std::map<std::string, RateTable, std::less<>>;

// What one of `ranks` ranks has that share the machine and work at the same time.
struct MeasuredShare {
  int64_t ranks = 1;
  int64_t threads = 1;  // of each rank
  double stretch = 1;   // how much longer steps took than the quick runs of their ops, which the tables have
  double between_ops_seconds = 0;  // from one op of a step to the next
  RateTables ops = {};
  // Of ops with products: how much longer they take in a step than alone and again and again, by their FLOPs. In a step
  // other ops have had the caches, gradients are added up, and biases have theirs.
  RateTables in_steps = {};
};

struct MeasuredMachine {
  std::string name;
  bool is_cpu = true;
  double compute_capability = 0;  // of a GPU
  int64_t cores = 1;  // threads that all ranks have together without taking turns; of a GPU 1
  double memory_bytes = 0;
  double bytes_per_second = 0;                    // of copying memory, read and written together
  double f32_flops = 0, half_flops = 0;           // the best rates of products; 0: the device has none
  double host_bytes_per_second = 0;               // between the host's memory and the device's
  double storage_bytes_per_second = 0;            // written to the folder of the profile
  double slow_down_beside_traffic = 0;            // as DeviceProfile has it
  std::vector<MeasuredShare> shares = {};         // by `ranks`, rising; the first is of one rank alone
  // By number of ranks and collective: seconds by the bytes of its data, counted as BenchRow does.
  std::array<std::map<int64_t, RateTables>, num_link_ways> links = {};
};

// What tells ops of one name apart.
struct OpKinds {
  ActivationKind activation = ActivationKind::gelu_tanh;
  NormKind norm = NormKind::layernorm;
  bool norms_query_key = false;
};
OpKinds op_kinds(const ModelConfig& model);
// "bf16 linear_forward", "f32 activation_forward swiglu", "f32 norm_backward rmsnorm", "bf16 query_key_forward norm".
// `compute`: of the step; f16 counts as bf16.
std::string op_key(std::string_view name, DType compute, const OpKinds& kinds = {});
// "bf16 linear_forward", "f32 linear_backward_weight bias": the key of in_steps of an op with products.
std::string in_step_key(const Event& op);
// How many sizes the table of such a key has: 3 of products (m, n, k, and FLOP/s), 2 of attention (tokens of a sequence,
// size of a head, and FLOP/s as executed), 1 of other ops (bytes as of footprints, and seconds). 0: there is no such op.
size_t sizes_of_op(std::string_view key);
RateTable::Kind table_kind(size_t num_sizes);

// The share of a rank with so many threads where `ranks` ranks are on the machine.
struct RankShare {
  const MeasuredShare* share = nullptr;
  double factor = 1;  // that times are longer by, where threads take turns, or are fewer than were measured
  double f32_flops = 0, half_flops = 0;  // the best rates on its threads, which no product exceeds; 0: not known
};
RankShare share_of_rank(const MeasuredMachine& machine, int64_t ranks, int64_t threads);

// Beside the tables of collectives: how much longer one takes that is handed to a lane. It has one row, of one byte.
constexpr std::string_view hand_over_key = "hand_over";

// None: it was not measured.
std::optional<double> measured_op_seconds(const RankShare& share, const Event& op, DType compute,
                                          const OpKinds& kinds);
// FLOP/s of products of the dtype, attention's among them, on all cores: the best that the tables of the shares give.
double best_product_rate(const MeasuredMachine& machine, DType dtype);
// The sizes of an op with products by which its table is asked.
std::vector<double> product_sizes(const ProductShape& products);

// Of a group of `ranks`, where all `world` ranks of the machine communicate in such groups. The way has been measured.
double measured_collective_seconds(const MeasuredMachine& machine, LinkWay way, int64_t ranks, int64_t world,
                                   Operation operation, double bytes);

// The profile's text, each figure with `source` ("measured: ..."), and back. Faults are the reader's, whose `finish`
// throws them.
std::string machine_text(const MeasuredMachine& machine, std::string_view source);
bool is_measured_machine(const ProfileReader& reader);
MeasuredMachine read_machine(ProfileReader& reader);

}  // namespace gptrain
