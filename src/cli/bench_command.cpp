#include <algorithm>
#include <fmt/format.h>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/output.h"
#include "base/units.h"
#include "cli/commands.h"
#include "cli/numbers.h"
#include "comm/bench.h"
#include "comm/bootstrap.h"
#include "comm/process_world.h"
#include "config/load.h"
#include "parallel/groups.h"
#include "train/device.h"

namespace gptrain {
namespace {

struct CommArguments {
  int ranks = 0;
  int group_size = 0;
  std::string config;
  std::vector<std::string> overrides;
  std::string dtype = "f32";
  double timeout_seconds = Timeout().seconds;
  BenchOptions options;
};

void print_row(const BenchRow& row) {
  print_out("{:<16}{:>10}{:>14.2f}{:>14.2f}{:>14.2f}\n", row.operation, format_bytes(static_cast<double>(row.bytes)),
            row.seconds * 1e6, row.algorithm_bandwidth / 1e9, row.bus_bandwidth / 1e9);
  std::fflush(stdout);
}

// All groups of a kind measure at the same time; that of rank 0 is shown.
void bench_group(const BenchGroup& group, const CommArguments& arguments, bool shows, const std::string& title) {
  if (shows) {
    print_out("{}, {}; results are checked bit by bit\n", title, arguments.dtype);
    print_out("{:<16}{:>10}{:>14}{:>14}{:>14}\n", "operation", "size", "time us", "alg GB/s", "bus GB/s");
  }
  bench_collectives(group, arguments.options, [&](const BenchRow& row) {
    if (shows) print_row(row);
  });
}

// The groups of a config's mesh, one kind after the other, on the device that its ranks would train on.
void bench_mesh(World& world, const CommArguments& arguments, const std::string& how) {
  const RunConfig config = load_config(arguments.config, arguments.overrides, world.size());
  RankGroups groups(config, world);
  const RankDevice device = take_device(config, groups.group(GroupKind::world), world, 1);
  Backend& backend = *device.backend;
  groups.use_memory_of(backend, device.apart, arguments.timeout_seconds);
  world.activity().set_phase("bench");
  const bool on_gpu = backend.target().kind == Target::Kind::gpu;
  const std::string where =
      on_gpu ? fmt::format(", {}{}", backend.target().name, groups.has_links() ? " by NCCL" : " through the host") : "";
  // A kind that several lanes have is measured on the first.
  const std::vector<LaneGroup> all = lane_groups(config);
  for (size_t i = 0; i < num_group_kinds; ++i) {
    const auto kind = static_cast<GroupKind>(i);
    const auto first = std::find_if(all.begin(), all.end(),
                                    [&](const LaneGroup& group) { return group.group == kind && group.reduces; });
    if (first == all.end() || groups.num_ranks(kind) == 1) continue;
    bench_group({*groups.host_group(first->lane, kind), *groups.group(first->lane, kind), backend}, arguments,
                world.rank() == 0,
                fmt::format("{} ({}{}), {} groups of {}", format_counted(world.size(), "rank"), how, where,
                            group_names[i], groups.num_ranks(kind)));
  }
}

void bench_world(World& world, const CommArguments& arguments, const std::string& how) {
  if (!arguments.config.empty()) return bench_mesh(world, arguments, how);
  const int size = arguments.group_size > 0 ? arguments.group_size : world.size();
  if (world.size() % size != 0)
    throw Error(ExitCode::usage, "--group-size {}: must divide the number of ranks, {}", size, world.size());
  std::unique_ptr<Communicator> group;
  for (int first = 0; first < world.size(); first += size) {
    std::vector<int> ranks(static_cast<size_t>(size));
    std::iota(ranks.begin(), ranks.end(), first);
    if (auto made = world.make_group(ranks)) group = std::move(made);
  }
  world.activity().set_phase("bench");
  const auto backend = make_cpu_backend(1);
  bench_group({*group, *group, *backend}, arguments, world.rank() == 0,
              fmt::format("{} ({}) in groups of {}", format_counted(world.size(), "rank"), how, size));
}

void bench_comm(CommArguments& arguments) {
  arguments.options.dtype = arguments.dtype == "bf16" ? DType::bf16 : DType::f32;
  const Launch launch = find_launch();
  if (launch.size > 1) {
    if (arguments.ranks > 0)
      throw Error(ExitCode::usage, "--ranks {} starts threads, but this is {} already: leave it out", arguments.ranks,
                  describe(launch));
    WorldOptions options;
    options.timeout = {arguments.timeout_seconds, "--timeout"};
    const auto world = make_process_world(launch, options);
    bench_world(*world, arguments, uses_mpi(launch) ? "processes, MPI" : "processes, TCP");
    return;
  }
  run_local_ranks(arguments.ranks > 0 ? arguments.ranks : 2,
                  [&](World& world) { bench_world(world, arguments, "threads"); });
}

}  // namespace

void add_bench_command(CLI::App& app) {
  CLI::App* bench = app.add_subcommand("bench", "measure this machine")->require_subcommand(1);
  auto arguments = std::make_shared<CommArguments>();
  CLI::App* comm = bench->add_subcommand("comm", "speed of the collectives, whose results are checked");
  CLI::Option* config =
      comm->add_option("CONFIG", arguments->config, "run config whose mesh's groups are measured (all ranks as one)");
  comm->add_option("--ranks", arguments->ranks, "ranks as threads of this process (2), where no launcher starts them")
      ->check(whole_number_from(1))
      ->type_name("N");
  comm->add_option("--group-size", arguments->group_size, "groups of this many neighbouring ranks (all)")
      ->check(whole_number_from(1))
      ->type_name("N")
      ->excludes(config);
  comm->add_option("--set", arguments->overrides, "override a value of the config (null: its default); may be repeated")
      ->type_name("key.path=value")
      ->allow_extra_args(false)
      ->needs(config);
  comm->add_option("--dtype", arguments->dtype, "f32 or bf16")->check(CLI::IsMember({"f32", "bf16"}));
  comm->add_option("--max-bytes", arguments->options.max_bytes, "largest size, from 1 KiB on (268435456)")
      ->check(whole_number_from(1))
      ->type_name("N");
  comm->add_option("--seconds", arguments->options.seconds, "to measure each row for (0.2)")
      ->check(positive_number())
      ->type_name("S");
  comm->add_option("--timeout", arguments->timeout_seconds, "to wait for peers, and for a silent one (60)")
      ->check(positive_number())
      ->type_name("S");
  comm->callback([arguments] { bench_comm(*arguments); });
}

}  // namespace gptrain
