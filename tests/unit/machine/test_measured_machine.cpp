// Tables of measured rates, their file, and step times predicted from them.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "catch.h"
#include "config/load.h"
#include "fit/choose_step.h"
#include "machine/event_times.h"
#include "machine/measured_machine.h"
#include "machine/profiles.h"
#include "ops/ops.h"
#include "planner/simulate_step.h"
#include "step/plan_step.h"

namespace gptrain::test_measured_machine {
namespace {

constexpr const char* source = "measured: by a test";

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Returns a share with `gflops` in all products and `byte_seconds` for other ops.
MeasuredShare share_of(int64_t ranks, int64_t threads, double gflops, double byte_seconds) {
  MeasuredShare share{.ranks = ranks, .threads = threads};
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::string_view name : {LinearForward::name, LinearBackwardInput::name, LinearBackwardWeight::name})
      share.ops.emplace(op_key(name, dtype, {}), RateTable(RateTable::Kind::rate, {{256, 256, 256, gflops * 1e9}}));
    for (const std::string_view name : {AttentionForward::name, AttentionBackward::name})
      share.ops.emplace(op_key(name, dtype, {}), RateTable(RateTable::Kind::rate, {{256, 64, gflops * 1e9}}));
    share.ops.emplace(op_key(NormForward::name, dtype, {}),
                      RateTable(RateTable::Kind::seconds, {{1e3, 1e3 * byte_seconds}, {1e6, 1e6 * byte_seconds}}));
    share.ops.emplace(op_key(ActivationForward::name, dtype, {.activation = ActivationKind::swiglu}),
                      RateTable(RateTable::Kind::seconds, {{1e6, 2e6 * byte_seconds}}));
  }
  return share;
}

// Returns a machine of four cores.
MeasuredMachine machine_of(double gflops = 100) {
  MeasuredMachine machine{.name = "mine",
                          .cores = 4,
                          .memory_bytes = 8e9,
                          .bytes_per_second = 2e10,
                          .f32_flops = 1.1e11,
                          .half_flops = 2.2e11,
                          .host_bytes_per_second = 1e10,
                          .storage_bytes_per_second = 5e8,
                          .slow_down_beside_traffic = 0.5};
  machine.shares = {share_of(1, 4, gflops, 1e-10), share_of(4, 1, gflops / 4, 4e-10)};
  machine.shares[0].in_steps.emplace("bf16 attention_forward", RateTable(RateTable::Kind::ratio, {{1e6, 1}}));
  machine.shares[0].in_steps.emplace("bf16 attention_forward softcap", RateTable(RateTable::Kind::ratio, {{1e6, 1.5}}));
  machine.shares[1].between_ops_seconds = 2e-6;
  machine.shares[1].in_steps.emplace("f32 linear_backward_weight bias",
                                     RateTable(RateTable::Kind::ratio, {{1e6, 1.25}, {1e8, 1}}));
  machine.links[static_cast<size_t>(LinkWay::threads)][2].emplace(
      "all_reduce", RateTable(RateTable::Kind::seconds, {{1024, 1e-5}, {1 << 20, 1e-3}}));
  return machine;
}

class File {
 public:
  explicit File(const std::string& text) { std::ofstream(path()) << text; }
  ~File() { std::filesystem::remove(path()); }
  static std::string path() { return "./measured-profile-of-a-test.json"; }
};

// Returns the message of the exception that the body throws; empty: none.
template <typename Body>
std::string message_of(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::usage);
    return error.what();
  }
  return "";
}

std::string refusal(const std::string& text) {
  const File file(text);
  return message_of([] { find_device(File::path()); });
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

RunConfig config_of(const std::vector<std::string>& overrides, int64_t world_size = 1) {
  return parse_config(R"({"model": {"num_layers": 2, "hidden_size": 128, "num_heads": 2, "vocab_size": 512,
                                    "sequence_length": 64},
                          "data": {"train": [{"path": "none"}]}, "batch": {"global": 4, "micro": 1},
                          "precision": {"compute": "fp32"}, "optimizer": {"lr": 1e-3},
                          "run": {"steps": 10, "out": "none"}})",
                      overrides, "a test", world_size);
}

TEST_CASE("rates are interpolated between sizes, and go on beyond them") {
  const RateTable rates(RateTable::Kind::rate, {{400, 4}, {100, 1}});
  CHECK(rates.at({100}) == Approx(1));
  CHECK(rates.at({200}) == Approx(2));  // half-way on a logarithmic scale
  CHECK(rates.at({400}) == Approx(4));
  CHECK(rates.at({4000}) == Approx(4));  // no faster
  CHECK(rates.at({50}) == Approx(0.5));  // half the work in the same time
  const RateTable seconds(RateTable::Kind::seconds, {{100, 1}, {400, 4}});
  CHECK(seconds.at({10}) == Approx(1));
  CHECK(seconds.at({4000}) == Approx(40));
  const RateTable ratios(RateTable::Kind::ratio, {{100, 1.5}, {400, 1.2}});
  CHECK(ratios.at({10}) == Approx(1.5));
  CHECK(ratios.at({200}) == Approx(std::sqrt(1.5 * 1.2)));
  CHECK(ratios.at({4000}) == Approx(1.2));
  const RateTable grid(RateTable::Kind::rate, {{1, 1, 1}, {1, 4, 16}, {4, 1, 4}, {4, 4, 64}});
  CHECK(grid.at({2, 2}) == Approx(8));
  CHECK(grid.at({1, 4}) == Approx(16));
  CHECK(grid.rows() == std::vector<std::vector<double>>{{1, 1, 1}, {1, 4, 16}, {4, 1, 4}, {4, 4, 64}});
}

TEST_CASE("rows that are no table say why") {
  CHECK(RateTable::fault_of({{1, 2}, {3, 4}}, 1).empty());
  CHECK(RateTable::fault_of({}, 1) == "has no rows");
  CHECK(RateTable::fault_of({{1, 2, 3}}, 1) == "has rows of the wrong length");
  CHECK(RateTable::fault_of({{1, 0}}, 1) == "has numbers that are not above 0");
  CHECK(RateTable::fault_of({{1, 2}, {1, 3}}, 1) == "has the same sizes twice");
  CHECK(RateTable::fault_of({{1, 1, 1}, {1, 2, 1}, {2, 1, 1}}, 2) == "must have a row for each combination of sizes");
}

TEST_CASE("a measured machine reads back as it was written") {
  MeasuredMachine machine = machine_of();
  machine.disk = {.read_bytes_per_second = 3e9,
                  .write_bytes_per_second = 2e9,
                  .both_bytes_per_second = 4e9,
                  .transfer_bytes = 1 << 20,
                  .depth = 16};
  const File file(machine_text(machine, source));
  const MeasuredMachine read = find_machine(File::path());
  CHECK(machine_text(read, source) == machine_text(machine, source));
  const PlaceRates rates = place_rates(machine_named({File::path(), "", ""}, false), 2);
  CHECK(rates.disk_both == 2e9);
  CHECK(rates.drive_shares().read == Approx(2. / 3));
  CHECK(rates.disk_seconds(1e9, 3e9) == Approx(1 + 2));  // 1 GB each at once, then 2 GB are written alone
  machine.disk.both_bytes_per_second = 0;
  const File in_turns(machine_text(machine, source));
  CHECK(place_rates(machine_named({File::path(), "", ""}, false), 2).disk_seconds(3e9, 3e9) == Approx(2 + 3));
  CHECK(read.cores == 4);
  CHECK(read.slow_down_beside_traffic == 0.5);
  REQUIRE(read.shares.size() == 2);
  CHECK(read.shares[1].threads == 1);
  CHECK(read.shares[0].ops.at("f32 linear_forward").at({256, 256, 256}) == Approx(1e11));
  CHECK(read.shares[1].between_ops_seconds == Approx(2e-6));
  CHECK(read.shares[1].in_steps.at("f32 linear_backward_weight bias").at({1e6}) == Approx(1.25));
  CHECK(read.links[0].at(2).at("all_reduce").at({1024}) == Approx(1e-5));

  const DeviceProfile device = find_device(File::path());
  const ClusterProfile cluster = cluster_of(device);
  const Target target = target_of(device, cluster);
  CHECK(target.kind == Target::Kind::cpu);
  CHECK(target.name == "mine");
  CHECK(target.memory_bytes == 8'000'000'000);
  CHECK(target.f32_flops == Approx(1.1e11));
  CHECK(target.ranks_per_node == 0);
  const Target of_rank = target_of(device, cluster, 0, 2);
  CHECK(of_rank.f32_flops == Approx(1.1e11 / 2));
  CHECK(of_rank.sharing == 2);
  CHECK(of_rank.num_threads == 2);
  CHECK(message_of([&] { cluster_of(device, "dgx-h100"); }) ==
        "--cluster dgx-h100: leave this out: mine is one machine, and its profile has the speed of its links");
}

TEST_CASE("a measured profile's faults are told together, each with its key") {
  const std::string text = machine_text(machine_of(), source);
  CHECK(refusal(text).empty());
  std::string bad = replaced(text, "\"kind\": \"cpu\"", "\"kind\": \"abacus\"");
  bad = replaced(bad, "\"cores\": [4,", "\"cores\": [4.5,");
  bad = replaced(bad, "\"slow_down_beside_traffic\": [0.5,", "\"slow_down_beside_traffic\": [1.5,");
  bad = replaced(bad, "\"f32 linear_forward\": [[[256.0,256.0,256.0,", "\"f32 linear_forward\": [[[256.0,256.0,");
  bad = replaced(bad, "\"f32 attention_forward\": [[[256.0,64.0,100000000000.0]]", "\"f32 attention_forward\": [7");
  bad = replaced(bad, "\"bf16 linear_forward\"", "\"bf16 linear_foreward\"");
  bad = replaced(bad, "    \"4\": {", "    \"four\": {");
  bad = replaced(bad, "\"bf16 attention_forward\": [[[1000000.0,1.0",
                 "\"bf16 attention_forward bias\": [[[1000000.0,1.0");
  bad = replaced(bad, "all_reduce", "all_reducing");
  bad = replaced(bad, "\"stretch\": [1.0,", "\"stretch\": [0.5,");
  const std::string faults = refusal(bad);
  for (const char* fault :
       {"kind: must be cpu or gpu", "cores: must be a whole number", "slow_down_beside_traffic: must be at most 1",
        "shares.1.stretch: must be at least 1", "shares.1.ops.f32 linear_forward: has rows of the wrong length",
        "shares.1.ops.f32 attention_forward: must be [[[size, ..., value], ...], \"where it is from\"]",
        "shares.1.ops.bf16 linear_foreward: unknown key", "shares.four: must be a number of ranks",
        "links.threads.2: names no collective", "links.threads.2.all_reducing: unknown key"}) {
    INFO(fault << "\n" << faults);
    CHECK(has(faults, fault));
  }
  CHECK(has(refusal("{\"shares\": {}}"), "shares: is empty"));
  CHECK(has(
      refusal("{\"shares\": {\"1\": {\"threads\": [1, \"measured\"], \"stretch\": [1, \"measured\"], \"ops\": {}}}}"),
      "shares.1.ops: names no op"));
  const File file(std::string(built_in_devices().front().text));
  CHECK(has(message_of([] { find_machine(File::path()); }), "not written by gptrain bench device"));
  CHECK(message_of([] { find_machine("./none.json"); }) == "./none.json: cannot be read (give the path of a profile)");
}

TEST_CASE("ops of one name are told apart by what their time depends on") {
  CHECK(op_key("linear_forward", DType::f16) == "bf16 linear_forward");
  CHECK(op_key("norm_forward", DType::f32, {.norm = NormKind::rmsnorm}) == "f32 norm_forward rmsnorm");
  CHECK(op_key("query_key_backward", DType::f32, {.norms_query_key = true}) == "f32 query_key_backward norm");
  CHECK(op_key("squared_norm", DType::f32, {.norm = NormKind::rmsnorm}) == "f32 squared_norm");
  CHECK(op_key("cross_entropy", DType::f32, {.caps_logits = true}) == "f32 cross_entropy softcap");
  CHECK(op_key("attention_forward", DType::f32, {.caps_scores = true, .caps_logits = true}) == "f32 attention_forward");
  CHECK(sizes_of_op("f32 linear_forward") == 3);
  CHECK(sizes_of_op("bf16 attention_backward") == 2);
  CHECK(sizes_of_op("f32 norm_backward layernorm") == 1);
  CHECK(sizes_of_op("f32 query_key_forward rotary") == 1);
  CHECK(sizes_of_op("f32 cross_entropy_statistics softcap") == 1);
  for (const char* key : {"f32 norm_backward", "f32 norm_backward swiglu", "f32 adamw layernorm", "f64 adamw", "adamw",
                          "f32 activation_forward", "f32 attention_forward softcap", "f32 linear_forward layernorm",
                          "f32 query_key_forward true"}) {
    INFO(key);
    CHECK(sizes_of_op(key) == 0);
  }
}

TEST_CASE("ops with products take longer in a step than alone") {
  const MeasuredMachine machine = machine_of();
  constexpr int64_t matrix = 4 * 256 * 256;
  Event op{.name = LinearBackwardWeight::name,
           .executed_flops = 1'000'000,
           .bytes_moved = 4 * matrix,  // two operands; the gradient is read and written
           .products = {.kind = ProductShape::Kind::plain, .m = 256, .n = 256, .k = 256}};
  const RankShare share = share_of_rank(machine, 4, 1);
  const double alone = *measured_op_seconds(share, op, DType::f32, {});
  CHECK(in_step_key(op, {}) == "f32 linear_backward_weight");
  op.bytes_moved += 2 * 4 * 256;
  CHECK(*measured_op_seconds(share, op, DType::f32, {}) == Approx(1.25 * alone));
  CHECK(in_step_key(op, {}) == "f32 linear_backward_weight bias");
  op.executed_flops = 1'000'000'000;
  CHECK(*measured_op_seconds(share, op, DType::f32, {}) == Approx(1000 * alone));
}

TEST_CASE("attention with a softcap has ratios of its own") {
  const File file(machine_text(machine_of(), source));
  const MeasuredMachine machine = *find_device(File::path()).measured;
  const Event op{.name = AttentionForward::name,
                 .executed_flops = 1'000'000,
                 .products = {.kind = ProductShape::Kind::attention_forward,
                              .dtype = DType::bf16,
                              .count = 1,
                              .m = 256,
                              .n = 256,
                              .k = 64}};
  const auto seconds = [&](const OpKinds& kinds) {
    return *measured_op_seconds(share_of_rank(machine, 1, 4), op, DType::bf16, kinds);
  };
  CHECK(seconds({.caps_scores = true}) == Approx(1.5 * seconds({.caps_logits = true})));
}

TEST_CASE("the matrix rate is no less than the best that the tables give on all cores") {
  MeasuredMachine machine = machine_of();
  CHECK(best_product_rate(machine, DType::bf16) == Approx(1e11));
  machine.f32_flops = machine.half_flops = 1e9;  // measured while other work had the cores
  const auto rate = [&] {
    const File file(machine_text(machine, source));
    return find_device(File::path()).f32.flops_per_second;
  };
  CHECK(rate() == Approx(1e11));
  machine.shares[1].ops.insert_or_assign("f32 linear_forward",
                                         RateTable(RateTable::Kind::rate, {{256, 256, 256, 4e10}}));
  CHECK(rate() == Approx(1.6e11));  // four ranks of one thread each
  machine.half_flops = 0;
  const File file(machine_text(machine, source));
  CHECK(find_device(File::path()).half.flops_per_second == 0);
}

TEST_CASE("no product is quicker than the matrix rate") {
  MeasuredMachine machine = machine_of();
  machine.shares[0].in_steps.emplace("f32 linear_forward", RateTable(RateTable::Kind::ratio, {{1e6, 0.5}}));
  Event op{.name = LinearForward::name, .executed_flops = 1'100'000'000};
  op.products = {.kind = ProductShape::Kind::plain, .dtype = DType::f32, .m = 256, .n = 256, .k = 256};
  const auto seconds = [&](int64_t threads) {
    return *measured_op_seconds(share_of_rank(machine, 1, threads), op, DType::f32, {});
  };
  CHECK(seconds(4) == Approx(1e-2));  // at 1.1e11 FLOP/s, not at twice the 1e11 of the table
  CHECK(seconds(1) == Approx(4.4e-2));
  machine.f32_flops = 1e12;
  CHECK(seconds(4) == Approx(5.5e-3));
}

TEST_CASE("attention of a part of a tile takes as long as of the tile") {
  const MeasuredMachine machine = machine_of();
  const auto seconds = [&](int64_t tokens) {
    Event op{.name = AttentionForward::name, .executed_flops = 1'000'000'000};
    op.products = {.kind = ProductShape::Kind::attention_forward,
                   .dtype = DType::f32,
                   .count = 1,
                   .m = tokens,
                   .n = tokens,
                   .k = 64};
    return *measured_op_seconds(share_of_rank(machine, 1, 4), op, DType::f32, {});
  };
  CHECK(seconds(1) == Approx(seconds(64)));
  CHECK(seconds(65) == Approx(seconds(128)));
  CHECK(seconds(300) == Approx(1e-2));
}

TEST_CASE("ranks share what was measured of the machine") {
  const MeasuredMachine machine = machine_of();
  const auto factor = [&](int64_t ranks, int64_t threads) { return share_of_rank(machine, ranks, threads).factor; };
  CHECK(share_of_rank(machine, 1, 4).share->ranks == 1);
  CHECK(share_of_rank(machine, 4, 1).share->ranks == 4);
  CHECK(factor(1, 4) == 1);
  CHECK(factor(4, 1) == 1);
  CHECK(factor(8, 1) == 2);  // two share a core
  CHECK(factor(2, 4) == 2);
  CHECK(factor(1, 3) == Approx(4.0 / 3));  // fewer threads than measured
  MeasuredMachine busy = machine;
  busy.shares[0].stretch = 1.5;
  CHECK(share_of_rank(busy, 1, 4).factor == 1.5);
  CHECK(share_of_rank(busy, 4, 1).factor == 1);
}

TEST_CASE("collectives beyond what was measured") {
  const MeasuredMachine machine = machine_of();
  const auto seconds = [&](int64_t ranks, int64_t world, Operation operation = Operation::all_reduce) {
    return measured_collective_seconds(machine, LinkWay::threads, ranks, world, operation, 1 << 20);
  };
  CHECK(seconds(1, 4) == 0);
  CHECK(seconds(2, 2) == Approx(1e-3));
  CHECK(seconds(2, 4) == Approx(1e-3));  // two groups, and a core for each rank
  CHECK(seconds(2, 8) == Approx(2e-3));
  CHECK(seconds(4, 4) == Approx(2e-3));
  CHECK(seconds(2, 2, Operation::barrier) == Approx(1e-3));
  MeasuredMachine handing = machine;
  handing.links[0][2].emplace(hand_over_key, RateTable(RateTable::Kind::seconds, {{1, 5e-5}}));
  CHECK(measured_collective_seconds(handing, LinkWay::threads, 2, 2, Operation::all_reduce, 1 << 20) ==
        Approx(1.05e-3));
}

double predicted_seconds(const MeasuredMachine& measured, const std::vector<std::string>& overrides = {},
                         int64_t world_size = 1) {
  const RunConfig config = config_of(overrides, world_size);
  const File file(machine_text(measured, source));
  const DeviceProfile device = find_device(File::path());
  const Machine machine{device, cluster_of(device)};
  const Target target = target_of(device, machine.cluster, config.run.threads, world_size);
  const StepPlan plan = plan_rank({config, target, world_size});
  const EventTimes times(machine, config, config.run.threads, make_mesh(config, world_size), 0);
  return simulate_step({{&plan.log, times}}).pipeline.seconds;
}

TEST_CASE("predictions change with the profile") {
  const double usual = predicted_seconds(machine_of());
  const double quick = predicted_seconds(machine_of(200));
  CHECK(quick < 0.8 * usual);
  CHECK(quick > 0.4 * usual);
  // One thread of four has a quarter of the rate; a rank of four has one such thread.
  CHECK(predicted_seconds(machine_of(), {"run.threads=1"}) == Approx(4 * usual).epsilon(0.2));
  CHECK(predicted_seconds(machine_of(), {"batch.global=16"}, 4) > 3 * usual);
  MeasuredMachine slow_links = machine_of();
  slow_links.links[0][2].insert_or_assign("all_reduce",
                                          RateTable(RateTable::Kind::seconds, {{1024, 1e-2}, {1 << 20, 1}}));
  CHECK(predicted_seconds(slow_links, {}, 2) > predicted_seconds(machine_of(), {}, 2) + 0.5);
}

TEST_CASE("lanes take turns where they have no cores of their own") {
  MeasuredMachine machine = machine_of();
  machine.links[0][2].insert_or_assign("all_reduce",
                                       RateTable(RateTable::Kind::seconds, {{1024, 1e-2}, {1 << 20, 1e-1}}));
  machine.cores = 8;  // four compute, and each rank has one for its lanes
  const std::vector<std::string> overrides = {"parallel.tensor=2", "parallel.zero=0", "run.threads=1"};
  const double alone = predicted_seconds(machine, overrides, 4);
  machine.cores = 7;
  CHECK(predicted_seconds(machine, overrides, 4) > 1.05 * alone);
}

TEST_CASE("ranks without measured links are refused") {
  const File file(machine_text(machine_of(), source));
  const DeviceProfile device = find_device(File::path());
  Machine machine{device, cluster_of(device)};
  CHECK(message_of([&] { require_links(machine, 4); }).empty());
  machine.way = way_of_processes(machine.cluster);
  CHECK(machine.way == LinkWay::tcp);
  CHECK(message_of([&] { require_links(machine, 1); }).empty());
  CHECK(message_of([&] { require_links(machine, 4); }) ==
        "mine: has no measured links between processes: to add them, run gptrain bench comm --into FILE with the "
        "launcher of the run");
  MeasuredMachine gpu = machine_of();
  gpu.is_cpu = false;
  gpu.links = {};
  machine.cluster.measured = std::make_shared<const MeasuredMachine>(gpu);
  CHECK(message_of([&] { require_links(machine, 4); }) ==
        "mine: has no measured links between GPUs: name their cluster with --cluster");
}

}  // namespace
}  // namespace gptrain::test_measured_machine
