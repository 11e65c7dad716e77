#include "step/device.h"

#include <algorithm>
#include <fmt/format.h>
#include <set>
#include <string>
#include <unistd.h>
#include <vector>

#include "base/control_group.h"
#include "base/error.h"
#include "base/fp8.h"
#include "comm/agree.h"
#include "comm/device_groups.h"
#include "comm/texts.h"
#include "config/faults.h"
#include "ops/cuda_devices.h"
#include "ops/fused_attention_policy.h"

namespace gptrain::inline step {
namespace {

// Returns the number of CUDA devices to use; 0: the run is on the CPU.
int num_devices_to_use(DeviceKind asked, DType compute) {
  const int num_devices = asked == DeviceKind::cpu ? 0 : num_cuda_devices();
  if (asked == DeviceKind::cuda && num_devices == 0) {
    throw Error(ExitCode::machine, "run.device = cuda: {}; cpu and auto run on the CPU", why_no_cuda_device());
  }
  if (compute == DType::f16 && num_devices == 0) {
    throw Error(ExitCode::machine,
                "precision.compute = fp16: {}, and the CPU backend has no fp16 (it has bf16; --dry-run --target NAME "
                "plans for a GPU)",
                why_no_cuda_device());
  }
  return num_devices;
}

// Refuses a model or method that plans for the device know, but whose kernels do not exist or were not tested.
void require_kernels(const RunConfig& config, const Target& target) {
  if (target.kind != Target::Kind::gpu) return;
  const auto refuse = [](std::string_view why) {
    throw Error(ExitCode::machine, "{}; set run.device = \"cpu\", or plan for a GPU by --dry-run --target NAME", why);
  };
  if (config.comm.weights != WeightCodec::as_is)
    refuse("comm.weights: gathers of codes were not tested on the CUDA backend yet");
  if (config.compression().is_on())
    refuse(config.comm.compression.is_on()
               ? "comm.compression: sums of compressed gradients were not tested on the CUDA backend yet"
               : "optimizer.type onebit-adam or zero-one-adam: sums of signs were not tested on the CUDA backend yet");
}

// Returns the control group whose limit is this process's memory; empty: the machine's memory is.
std::string memory_group() {
  const GroupLimits limits = group_limits();
  return limits.memory_bytes < physical_memory_bytes() ? limits.memory_group : "";
}

// Returns the number of ranks on this rank's machine.
int ranks_of_host(const World& world) {
  int count = 0;
  for (int rank = 0; rank < world.size(); ++rank) count += world.host(rank) == world.host(world.rank()) ? 1 : 0;
  return count;
}

std::unique_ptr<Backend> make_backend(const RunSettings& run, DType compute, const World& world, int num_threads) {
  const int num_devices = num_devices_to_use(run.device, compute);
  if (num_devices == 0) return make_cpu_backend(num_threads, run.thread_independent);
  int earlier = 0;  // number of lower ranks on this node
  for (int rank = 0; rank < world.rank(); ++rank) earlier += world.host(rank) == world.host(world.rank()) ? 1 : 0;
  return make_cuda_backend(earlier % num_devices, run.algorithm_cache);
}

std::string why_no_bf16(const Target& target) {
  return target.compute_capability >= 8.0 ? target.name + "'s profile has no rates of 16-bit products (products.half)"
                                          : target.name + " has no bf16: GPUs have it from compute capability 8.0 on";
}

std::string why_no_fp8(const Target& target) {
  return target.compute_capability >= 8.9
             ? target.name + "'s profile has no rates of FP8 products (products.fp8)"
             : target.name + " has no FP8 matrix products: GPUs have them from compute capability 8.9 on";
}

}  // namespace

void require_target(const StepConfig& config, const Target& target, ExitCode code) {
  Faults faults;
  if (config.precision.compute == DType::bf16 && !target.bf16_products) {
    faults.add("precision.compute", config.precision.pure ? "bf16-pure" : "bf16", why_no_bf16(target), "\"fp16\"");
  }
  if (config.precision.compute == DType::f32 && config.precision.weight_gradients == DType::bf16 &&
      !target.bf16_products) {
    faults.add("precision.weight_gradients", "bf16", why_no_bf16(target), "\"fp32\"");
  }
  const bool fp8_linears = is_fp8(config.precision.linears);
  if ((fp8_linears || is_fp8(config.precision.weight_gradients)) && !target.fp8_products) {
    faults.add(fp8_linears ? "precision.linears" : "precision.weight_gradients", "fp8", why_no_fp8(target),
               target.bf16_products ? "\"bf16\"" : "\"fp16\"");
  }
  if (target.kind == Target::Kind::gpu && config.model.head_size > gpu_most_head_size) {
    faults.add("model.head_size", std::to_string(config.model.head_size),
               fmt::format("must be at most {} on a GPU", gpu_most_head_size), std::to_string(gpu_most_head_size));
  }
  if (!faults.empty()) throw Error(code, faults.lines());
}

bool computes_on_cpu(DeviceKind asked) { return asked == DeviceKind::cpu || num_cuda_devices() == 0; }

int threads_of_rank(int64_t asked, int64_t ranks_of_process, int64_t local_ranks) {
  if (asked > 0) return static_cast<int>(asked);
  // The processes of this machine share its cores, or fewer if their control group has a limit.
  const int64_t all = std::min<int64_t>(sysconf(_SC_NPROCESSORS_ONLN), group_limits().cores);
  const int64_t processes = std::max<int64_t>(1, local_ranks / ranks_of_process);
  const int64_t of_process = std::min<int64_t>(usable_cores(), std::max<int64_t>(1, all / processes));
  return static_cast<int>(std::max<int64_t>(1, of_process / ranks_of_process));
}

Target planned_device(const RunConfig& config, int64_t world_size, int64_t ranks_of_process) {
  const int num_devices = num_devices_to_use(config.run.device, config.precision.compute);
  Target target = num_devices == 0 ? this_machine(threads_of_rank(config.run.threads, ranks_of_process, world_size))
                                   : cuda_target(0);
  require_kernels(config, target);
  require_target(config, target, ExitCode::machine);
  if (target.kind != Target::Kind::cpu) {
    target.device_links = has_device_links();
    target.num_threads = threads_of_rank(config.run.threads, ranks_of_process, world_size);
  }
  target.sharing = 1 + (world_size - 1) / std::max(1, num_devices);
  return target;
}

void require_same_models(bool mixed_machines, Communicator* all, const World& world, const std::string& model) {
  if (mixed_machines) return;
  const std::vector<std::string> models = gather_texts(all, model);
  const auto other = std::find_if(models.begin(), models.end(), [&](const std::string& m) { return m != models[0]; });
  if (other == models.end()) return;
  const auto rank = static_cast<int>(other - models.begin());
  throw Error(ExitCode::device, "{}",
              world.rank() > 0 ? std::string()
                               : fmt::format("rank {} ({}) computes on {}, rank 0 ({}) on {}: these round differently, "
                                             "which comm.mixed_machines = true allows",
                                             rank, world.host(rank), *other, world.host(0), models[0]));
}

RankDevice open_device(const RunConfig& config, Communicator* all, const World& world, int num_threads) {
  RankDevice device;
  // A launcher may show a different device as number 0 to every rank, so devices are compared by their identity, and
  // the memory of CPUs by the control group that limits it.
  const std::vector<std::string> identities = agree(all, world, [&] {
    device.backend = make_backend(config.run, config.precision.compute, world, num_threads);
    const Target& target = device.backend->target();
    require_kernels(config, target);
    require_target(config, target, ExitCode::machine);
    return world.host(world.rank()) + " " + (target.kind == Target::Kind::cpu ? memory_group() : target.identity);
  });
  const Target& target = device.backend->target();
  require_same_models(config.comm.mixed_machines, all, world, target.kind == Target::Kind::cpu ? "a CPU" : target.name);
  device.sharing = static_cast<int>(std::count(identities.begin(), identities.end(), identities[world.rank()]));
  device.exclusive = std::set<std::string>(identities.begin(), identities.end()).size() == identities.size();
  device.memory_bytes = target.memory_bytes;
  // Control groups of one machine may together allow more than it has.
  if (target.kind == Target::Kind::cpu)
    device.memory_bytes = std::min(
        device.memory_bytes, planned_part_of_host(physical_memory_bytes()) / ranks_of_host(world) * device.sharing);
  return device;
}

}  // namespace gptrain::step
