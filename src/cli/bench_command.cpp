#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/output.h"
#include "base/output_file.h"
#include "base/progress.h"
#include "base/units.h"
#include "cli/commands.h"
#include "cli/environment.h"
#include "cli/option_checks.h"
#include "comm/agree.h"
#include "comm/bench.h"
#include "comm/bootstrap.h"
#include "comm/process_world.h"
#include "config/load.h"
#include "machine/profiles.h"
#include "parallel/groups.h"
#include "planner/measure_machine.h"
#include "step/device.h"

namespace gptrain::inline cli {
namespace {

namespace fs = std::filesystem;

struct DeviceArguments {
  std::string out;
  double seconds = 60;
};

struct CommArguments {
  int ranks = 0;
  std::string into;
  int group_size = 0;
  std::string config;
  std::vector<std::string> overrides;
  std::string dtype = "f32";
  std::vector<std::string> algorithms;
  std::string interface = "auto";
  double timeout_seconds = Timeout().seconds;
  BenchOptions options;
};

void print_row(const BenchRow& row) {
  print_out("{:<16}{:>10}{:>14.2f}{:>14.2f}{:>14.2f}", row.operation, format_bytes(static_cast<double>(row.bytes)),
            row.seconds * 1e6, row.algorithm_bandwidth / 1e9, row.bus_bandwidth / 1e9);
  if (row.formula_seconds > 0) print_out("{:>14.2f}", row.formula_seconds * 1e6);
  print_out("\n");
  std::fflush(stdout);
}

// Measures one group. All groups of a kind measure at the same time; only rank 0's is printed.
void bench_group(const BenchGroup& group, const CommArguments& arguments, bool shows, const std::string& title) {
  if (shows) {
    print_out("{}, {}; results are checked bit by bit\n", title, arguments.dtype);
    print_out("{:<16}{:>10}{:>14}{:>14}{:>14}{}\n", "operation", "size", "time us", "alg GB/s", "bus GB/s",
              arguments.options.algorithms.empty() ? "" : "    formula us");
  }
  bench_collectives(group, arguments.options, [&](const BenchRow& row) {
    if (shows) print_row(row);
  });
}

// Measures the groups of a config's mesh, one kind after the other, on the device that its ranks would train on.
void bench_mesh(World& world, const CommArguments& arguments, const std::string& how) {
  const RunConfig config = load_config(arguments.config, arguments.overrides, world.size());
  RankGroups groups(config, world);
  const RankDevice device = open_device(config, groups.group(GroupKind::world), world, 1);
  Backend& backend = *device.backend;
  groups.use_memory_of(backend, device.exclusive, arguments.timeout_seconds);
  world.activity().set_phase("bench");
  const bool on_gpu = backend.target().kind == Target::Kind::gpu;
  const std::string where =
      on_gpu ? fmt::format(", {}{}", backend.target().name, groups.has_links() ? " by NCCL" : " through the host") : "";
  // A kind of group that several lanes have is measured on the first of these lanes.
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
    std::vector<int> ranks(size);
    std::iota(ranks.begin(), ranks.end(), first);
    if (auto made = world.make_group(ranks)) group = std::move(made);
  }
  world.activity().set_phase("bench");
  const auto backend = make_cpu_backend(1);
  bench_group({*group, *group, *backend}, arguments, world.rank() == 0,
              fmt::format("{} ({}) in groups of {}", format_counted(world.size(), "rank"), how, size));
}

constexpr double rows_of_links = 48;  // number of rows in a profile of links

std::string source_of_figures() {
  double load[1] = {0};
  const std::string loaded = getloadavg(load, 1) == 1 ? fmt::format(", load {:.1f} at the end", load[0]) : "";
  return fmt::format("measured: gptrain bench{}", loaded);
}

// Measures the links between all ranks and adds them to the machine profile `--into`.
void bench_links(World& world, const CommArguments& arguments, LinkWay way) {
  // Checks the profile file before measuring, and on all ranks.
  std::vector<int> ranks(world.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto group = world.make_group(ranks);
  agree_on(group.get(), world, [&] {
    if (world.size() == 1)
      throw Error(ExitCode::usage, "--into {}: one rank has no links; start at least two", arguments.into);
    if (world.rank() == 0 && !find_machine(arguments.into).is_cpu)
      throw Error(ExitCode::usage, "--into {}: is the profile of a GPU; name the links between GPUs with --cluster",
                  arguments.into);
    if (world.rank() == 0) check_can_write(arguments.into, ExitCode::usage);
  });
  RateTables tables = measure_links(world, arguments.options.seconds * rows_of_links);
  if (world.rank() > 0) return;
  MeasuredMachine machine = find_machine(arguments.into);
  machine.links[way].insert_or_assign(world.size(), std::move(tables));
  AtomicFile file(arguments.into);
  file.write(machine_text(machine, source_of_figures()));
  file.commit();
  print_out("{}: links between {} added\n", arguments.into,
            way == LinkWay::threads
                ? fmt::format("{} threads", world.size())
                : fmt::format("{} processes ({})", world.size(), way == LinkWay::mpi ? "MPI" : "TCP"));
}

std::vector<std::string> algorithm_words() {
  std::vector<std::string> words(sum_algorithm_names.begin(), sum_algorithm_names.end());
  words.emplace_back("all");
  return words;
}

std::vector<SumAlgorithm> algorithms_of(const std::vector<std::string>& words) {
  std::vector<SumAlgorithm> algorithms;
  for (size_t i = 0; i < num_sum_algorithms; ++i) {
    const auto is_meant = [&](const std::string& word) { return word == "all" || word == sum_algorithm_names[i]; };
    if (std::any_of(words.begin(), words.end(), is_meant)) algorithms.push_back(static_cast<SumAlgorithm>(i));
  }
  return algorithms;
}

void bench_comm(CommArguments& arguments) {
  if (!arguments.algorithms.empty() && arguments.dtype != "f32")
    throw Error(ExitCode::usage, "--algorithm: algorithms are timed with f32 only: leave --dtype out");
  arguments.options.algorithms = algorithms_of(arguments.algorithms);
  arguments.options.dtype = arguments.dtype == "bf16" ? DType::bf16 : DType::f32;
  const Launch launch = find_launch();
  load_kernels_at_start(launch.size > 1 ? launch.size : arguments.ranks > 0 ? arguments.ranks : 2);
  if (launch.size > 1) {
    if (arguments.ranks > 0)
      throw Error(ExitCode::usage, "--ranks {} starts threads, but this process is {} already: leave --ranks out",
                  arguments.ranks, describe(launch));
    WorldOptions options;
    options.timeout = {arguments.timeout_seconds, "--timeout"};
    options.interface = arguments.interface;
    const auto world = make_process_world(launch, options);
    if (!arguments.into.empty())
      bench_links(*world, arguments, uses_mpi(launch) ? LinkWay::mpi : LinkWay::tcp);
    else
      bench_world(*world, arguments, uses_mpi(launch) ? "processes, MPI" : "processes, TCP");
    world->end();
    return;
  }
  run_local_ranks(arguments.ranks > 0 ? arguments.ranks : 2, [&](World& world) {
    if (!arguments.into.empty()) return bench_links(world, arguments, LinkWay::threads);
    bench_world(world, arguments, "threads");
  });
}

void bench_device(const DeviceArguments& arguments) {
  const Launch launch = find_launch();
  if (launch.size > 1)
    throw Error(
        ExitCode::usage,
        "gptrain bench device measures a machine from one process, but this process is {}: start it without a launcher",
        describe(launch));
  const fs::path path = arguments.out;
  if (fs::is_directory(path)) throw Error(ExitCode::usage, "--out {}: is a folder, not a file", arguments.out);
  AtomicFile file(path);  // a path that cannot be written fails before the measurement
  const auto all = static_cast<int64_t>(std::ceil(arguments.seconds));
  Progress progress("measuring for some seconds", all);
  const auto show = [&](double seconds) { progress.update(std::min(static_cast<int64_t>(seconds), all - 1)); };
  const MeasuredMachine machine = measure_machine({.seconds = arguments.seconds,
                                                   .on_gpu = num_cuda_devices() > 0,
                                                   .folder = path.has_parent_path() ? path.parent_path() : ".",
                                                   .progress = show});
  progress.finish();
  file.write(machine_text(machine, source_of_figures()));
  file.commit();
  print_out("{}: {}, {:.1f} GFLOP/s in fp32 products, {:.1f} in bf16, {:.1f} GB/s in copies\n", arguments.out,
            machine.is_cpu ? format_counted(machine.cores, "thread") : "a GPU", machine.f32_flops / 1e9,
            machine.half_flops / 1e9, machine.bytes_per_second / 1e9);
}

}  // namespace

void add_bench_command(CLI::App& app) {
  CLI::App* bench = app.add_subcommand("bench", "measure this machine")->require_subcommand(1);
  auto device_arguments = std::make_shared<DeviceArguments>();
  CLI::App* device =
      bench->add_subcommand("device", "measure this machine, and write a profile that predicts its steps");
  device->add_option("--out", device_arguments->out, "file for the profile, which train --dry-run --target reads")
      ->required()
      ->check(some_text())
      ->type_name("FILE");
  device->add_option("--seconds", device_arguments->seconds, "approximate time of the measurement (default: 60)")
      ->check(positive_number())
      ->type_name("S");
  set_examples(device, {"gptrain bench device --out machine.json --seconds 20"});
  device->callback([device_arguments] { bench_device(*device_arguments); });
  auto arguments = std::make_shared<CommArguments>();
  CLI::App* comm = bench->add_subcommand("comm", "measure the speed of collectives, and check their results");
  CLI::Option* config =
      comm->add_option("CONFIG", arguments->config, "measure this config's groups (default: all ranks)");
  comm->add_option("--ranks", arguments->ranks, "ranks as threads of this process, without a launcher (default: 2)")
      ->check(whole_number_from(1))
      ->type_name("N");
  comm->add_option("--group-size", arguments->group_size, "number of neighbouring ranks in a group (default: all)")
      ->check(whole_number_from(1))
      ->type_name("N")
      ->excludes(config);
  comm->add_option("--into", arguments->into, "add the links to this profile of bench device, and print no table")
      ->check(some_text())
      ->type_name("FILE")
      ->excludes(config);
  comm->add_option("--set", arguments->overrides, "set a key of CONFIG (null: its default); repeatable")
      ->type_name("key.path=value")
      ->allow_extra_args(false)
      ->needs(config);
  comm->add_option("--dtype", arguments->dtype, "type of the elements: f32 or bf16")
      ->check(CLI::IsMember({"f32", "bf16"}));
  comm->add_option("--algorithm", arguments->algorithms,
                   "measure these ways to sum instead: A,B (see src/comm/README.md)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::IsMember(algorithm_words()))
      ->type_name("NAME")
      ->excludes(config);
  comm->add_option("--interface", arguments->interface,
                   "interface or address at which a process listens (default: auto)")
      ->check(some_text())
      ->type_name("NAME");
  comm->add_option("--max-bytes", arguments->options.max_bytes,
                   "largest size in bytes; the smallest is 1 KiB (default: 268435456)")
      ->check(whole_number_from(1))
      ->type_name("N");
  comm->add_option("--seconds", arguments->options.seconds, "seconds to measure each row (default: 0.2)")
      ->check(positive_number())
      ->type_name("S");
  comm->add_option("--timeout", arguments->timeout_seconds, "seconds to wait for other ranks (default: 60)")
      ->check(positive_number())
      ->type_name("S");
  set_examples(comm, {"gptrain bench comm --ranks 2 --max-bytes 4096 --seconds 0.01",
                      "gptrain bench comm --ranks 4 --algorithm all --max-bytes 65536 --seconds 0.01"});
  comm->callback([arguments] { bench_comm(*arguments); });
  add_bench_storage_command(*bench);
  set_examples(bench, {"gptrain bench device --out machine.json"});
}

}  // namespace gptrain::cli
