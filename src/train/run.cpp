#include "train/run.h"

#include <algorithm>
#include <atomic>
#include <fmt/format.h>
#include <limits>
#include <malloc.h>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/output.h"
#include "base/process_limits.h"
#include "base/thread.h"
#include "comm/agree.h"
#include "comm/process_world.h"
#include "config/context_method.h"
#include "config/elastic.h"
#include "config/load.h"
#include "fit/choose_step.h"
#include "fit/recompute_plan.h"
#include "fit/shortage.h"
#include "machine/hierarchy_times.h"
#include "step/device.h"
#include "step/plan_step.h"
#include "step/step_profiler.h"
#include "storage/stored_files.h"
#include "train/file_sizes.h"
#include "train/idle_ranks.h"
#include "train/loop.h"
#include "train/refuse_on_all_ranks.h"
#include "train/run_context.h"
#include "train/set_up.h"
#include "train/signals.h"

namespace gptrain::inline train {
namespace {

int32_t stage_of(const StepConfig& config, const World& world, int rank) {
  return make_mesh(config, world.size()).stage_of(rank);
}

// Returns the bytes that memory.activation_budget = "fit" gives this rank's stage: the least that any of its ranks has
// left, as all must do the same work in the same order. Returns none if memory.recompute is not "optimal" or the budget
// is a number. Collective over `all`.
std::optional<int64_t> agreed_activation_bytes(const RunConfig& config, Communicator* all, const World& world,
                                               const Target& target) {
  if (config.memory.recompute != RecomputeKind::optimal || config.memory.activation_budget > 0) return std::nullopt;
  const int32_t stage = stage_of(config, world, world.rank());
  const std::vector<std::string> of_ranks = agree(all, world, [&] {
    return fmt::format("{}", activation_headroom({config, target, world.size()}, stage));
  });
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int rank = 0; rank < world.size(); ++rank) {
    const int64_t activation_bytes = std::stoll(of_ranks[rank]);
    if (stage_of(config, world, rank) == stage) least = std::min(least, activation_bytes);
  }
  return least;
}

// Returns the values of all ranks, in rank order. Collective over `all`.
template <typename T>
std::vector<T> gathered(const T& own, Communicator* all, const World& world) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> values(world.size(), own);
  if (all != nullptr) all->all_gather(&own, values.data(), sizeof(T), DType::u8);
  return values;
}

std::vector<int64_t> nodes_of(const World& world) {
  std::map<std::string, int64_t> numbers;
  std::vector<int64_t> nodes;
  for (int rank = 0; rank < world.size(); ++rank)
    nodes.push_back(numbers.try_emplace(world.host(rank), std::ssize(numbers)).first->second);
  return nodes;
}

// THROWS Error(machine) if a rank does not fit its device, or the ranks of a node do not fit its host. The rank that
// uses the most memory plans the remedies for all, and finds the same ones as a dry run. Collective over `all`.
void refuse_shortage(const RunConfig& config, const Target& share, const MemoryPlan& own, Communicator* all,
                     const World& world) {
  const std::vector<MemoryPlan> plans = gathered(own, all, world);
  const Mesh mesh = make_mesh(config, world.size());
  const WorldMemory memory = world_memory(plans, gathered(share.bytes_of_rank(), all, world), mesh, nodes_of(world));
  agree_on(all, world, [&] {
    if (world.rank() != memory.largest_rank) return;
    const std::string shortage = memory_shortage(config, share, memory);
    if (!shortage.empty()) throw Error(ExitCode::machine, Lines::written(shortage));
  });
  // Another node may have less memory than that rank's node.
  agree_on(all, world, [&] {
    HostMemoryUse use;
    for (int rank = 0; rank < world.size(); ++rank)
      if (world.host(rank) == world.host(world.rank())) use.add(plans[rank].host_memory());
    const std::string shortage = host_shortage(config.memory, config.batch.micro, use, share.host_bytes);
    if (!shortage.empty()) throw Error(ExitCode::machine, Lines::written(shortage));
  });
}

// Returns whether some ranks that share sequences, which are neighbours, are on different nodes.
bool leaves_node(const ParallelConfig& parallel, const World& world) {
  const int64_t ranks = parallel.tensor * parallel.context;
  for (int rank = 0; rank < world.size(); ++rank)
    if (world.host(rank) != world.host(static_cast<int>(rank / ranks * ranks))) return true;
  return false;
}

// Returns the number of neighbouring ranks on each node; 0 if all are on one node, -1 if nodes have unlike ranks.
int64_t ranks_per_node(const World& world) {
  const std::vector<int64_t> nodes = nodes_of(world);
  const int64_t last = *std::max_element(nodes.begin(), nodes.end());
  if (last == 0) return 0;
  const int64_t each = std::ssize(nodes) / (last + 1);
  for (int64_t rank = 0; rank < std::ssize(nodes); ++rank)
    if (nodes[static_cast<size_t>(rank)] != rank / each) return -1;
  return each;
}

// Sets MemoryConfig::clones_files: all ranks clone their working files, or none does. THROWS Error(checkpoint) if a
// file system cannot and memory.disk_clones asks for it. Collective over `all`.
void choose_disk_clones(MemoryConfig& memory, const CheckpointConfig& saving, Communicator* all, const World& world) {
  if (!memory.uses_disk() || !saving.keeps_snapshot() || memory.disk_clones == DiskClones::never) return;
  const bool is_asked = memory.disk_clones == DiskClones::always;
  const std::vector<std::string> obstacles = agree(all, world, [&] {
    std::string obstacle = clone_obstacle(memory.disk_folders());
    if (is_asked && !obstacle.empty())
      throw Error(ExitCode::checkpoint, "{} (\"auto\" copies the state to memory instead)", obstacle);
    return obstacle;
  });
  const auto found = std::find_if(obstacles.begin(), obstacles.end(), [](const auto& text) { return !text.empty(); });
  memory.clones_files = found == obstacles.end();
  if (world.rank() == 0 && !memory.clones_files)
    print_out("checkpoints copy the state on disk to memory: {}\n", *found);
}

// Gives free memory of the heap back to the system, now and whenever a large piece is freed: a plan does not count it,
// and a run whose state is on disk plans little beside.
void return_freed_memory() {
  constexpr int large_piece_bytes = 128 << 10;
  // The first call sets up the heap if the program allocates by a sanitizer's; two threads must not do so at once.
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  mallopt(M_MMAP_THRESHOLD, large_piece_bytes);
  malloc_trim(0);
}

// Runs one rank from the creation of its groups to the end.
ExitCode run_rank(RunConfig config, const TrainOptions& options, const StopSignals& signals, World& world) {
  world.activity().set_phase("set-up");
  choose_context_method(config, leaves_node(config.parallel, world));
  choose_hierarchy_by_time(config, world.size(), ranks_per_node(world), nullptr, computes_on_cpu(config.run.device));
  RankGroups groups(config, world);
  const int local_ranks = ranks_on_this_host(world);
  const int threads = threads_of_rank(config.run.threads, options.ranks, local_ranks);
  Communicator* const all = groups.group(GroupKind::world);
  choose_disk_clones(config.memory, config.checkpoint, all, world);
  agree_on(all, world, [&] { require_threads(threads - 1); });
  const RankDevice device = open_device(config, all, world, threads);
  groups.use_memory_of(*device.backend, device.exclusive, config.comm.timeout_seconds);
  StepPlan plan;
  Target share = device.backend->target();
  share.device_links = groups.has_links();
  share.ranks_per_node = static_cast<int>(std::max<int64_t>(ranks_per_node(world), 0));
  share.of_processes = world.of_processes();
  share.num_threads = threads;
  share.sharing = device.sharing;
  share.memory_bytes = device.memory_bytes;
  // NCCL has taken its buffers by now, which no plan counts. Kernels and graphs come later: half of
  // outside_plans_bytes.
  if (groups.has_links()) {
    const int64_t held = groups.exchanged_bytes()[MemoryPlace::device];
    share.memory_bytes = std::min(share.memory_bytes, device.backend->free_bytes() + held - outside_plans_bytes / 2);
  }
  const std::optional<int64_t> activation_bytes = agreed_activation_bytes(config, all, world, share);
  agree_on(all, world, [&] {
    const int32_t stage = stage_of(config, world, world.rank());
    const StepChoices choices = choose_step({config, share, world.size()}, stage, activation_bytes);
    plan = plan_step({config, share, world.size()}, choices, world.rank());
    require_file_sizes({config, share, world.size()}, options, plan.design, world.rank());
  });
  refuse_shortage(config, share, plan.memory().arenas, all, world);
  std::shared_ptr<const StepDesign> design = std::exchange(plan, {}).design;
  if (config.memory.uses_disk()) return_freed_memory();
  std::optional<StepProfiler> profiler;
  if (options.profile_step) profiler.emplace(*device.backend, groups);
  Backend& backend = profiler ? profiler->backend() : *device.backend;
  const RunContext context{.config = config,
                           .backend = backend,
                           .device = *device.backend,
                           .groups = groups,
                           .world = world,
                           .threads = threads,
                           .profiler = profiler ? &*profiler : nullptr};
  return run_training_loop(context, options, signals, std::move(design));
}

// Returns the settings that all ranks must share: the config, and the options of the command that change the work.
// Machines may have other names for their interfaces.
std::string config_fact(RunConfig config, const TrainOptions& options) {
  config.comm.interface = CommConfig().interface;
  std::string lines = list_config(config);
  if (options.resume) lines += fmt::format("--resume {}\n", *options.resume);
  if (options.init_from) lines += fmt::format("--init-from {}\n", *options.init_from);
  if (options.steps) lines += fmt::format("--steps {}\n", *options.steps);
  if (options.accepted.data) lines += "--accept-changes data\n";
  if (options.accepted.schedule) lines += "--accept-changes schedule\n";
  if (options.profile_step) lines += fmt::format("--profile-step {}\n", *options.profile_step);
  return lines;
}

ExitCode train_as_process(const RunConfig& config, const TrainOptions& options, const StopSignals& signals,
                          const Launch& launch) {
  try {
    WorldOptions world_options;
    world_options.facts.push_back({config_fact_name, config_fact(config, options)});
    world_options.same_instruction_set = !config.comm.mixed_machines;
    world_options.timeout.seconds = config.comm.timeout_seconds;
    world_options.timeout.stop_wanted = [&signals] { return signals.requested(); };
    world_options.interface = config.comm.interface;
    world_options.ranks = static_cast<int>(training_ranks(config, launch.size));
    const auto world = make_process_world(launch, world_options);
    const IdleRanks idle(*world, launch.size);
    if (idle.is_one()) return idle.wait(signals);
    return idle.tell([&] {
      const ExitCode code = run_rank(config, options, signals, *world);
      world->end();
      return code;
    });
  } catch (const Error& error) {
    if (*error.what() == '\0') wait_for_rank_0_message();
    throw;
  }
}

void warn_of_unused_tasks(const Launch& launch, int64_t started) {
  if (launch.tasks_of_job > started) {
    print_err("warning: this job has {} tasks ({}), but {}: start it with {}, or with --ranks\n", launch.tasks_of_job,
              launch.tasks_variable,
              started == 1 ? "this run has one rank" : fmt::format("this run has {} ranks", started),
              launch.tasks_variable.starts_with("SLURM") ? "srun" : "mpirun");
  } else if (launch.nodes_of_job > 1) {
    print_err(
        "warning: this job has {} nodes ({}), but the run uses one of them: start it with srun, mpirun or another "
        "launcher to use all\n",
        launch.nodes_of_job, launch.nodes_variable);
  }
}

}  // namespace

ExitCode train(const RunConfig& config, const TrainOptions& options, const Launch& launch) {
  // Created first, so that a request to stop during the set-up counts too.
  const StopSignals signals;
  const int64_t started = std::max<int64_t>(launch.size, options.ranks);
  const std::string elastic = elastic_line(config, started);
  if (launch.rank == 0 && !elastic.empty()) print_out("{}\n", elastic);
  warn_of_unused_tasks(launch, started);
  if (launch.size > 1) return train_as_process(config, options, signals, launch);
  TrainOptions of_threads = options;
  of_threads.ranks = training_ranks(config, options.ranks);
  const auto ranks = static_cast<int>(of_threads.ranks);
  require_open_files(ranks);
  if (ranks == 1) return run_rank(config, of_threads, signals, *make_local_world(1).front());
  std::atomic<ExitCode> code = ExitCode::finished;
  run_local_ranks(ranks, [&](World& world) {
    const ExitCode own = run_rank(config, of_threads, signals, world);
    if (world.rank() == 0) code = own;
  });
  return code;
}

}  // namespace gptrain::train
