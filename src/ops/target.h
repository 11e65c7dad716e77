// The machine that a step runs on or is planned for.
#pragma once

#include <cstdint>
#include <string>

namespace gptrain::inline ops {

// Rates of a named GPU are dense data-sheet values from its profile (machine/profiles.h); rates of the present machine
// are measured or read from the system.
struct Target {
  enum class Kind : uint8_t { cpu, gpu };
  std::string name;      // "this-machine", "a100-80g", ...
  std::string identity;  // distinguishes a device from the others of its node; empty on a CPU
  Kind kind = Kind::cpu;
  int64_t memory_bytes = 0;  // memory that plans may use; for a present device, less its driver's and libraries' share
  int64_t sharing = 1;       // ranks that share memory_bytes equally
  int64_t host_bytes = 0;    // gpu: host memory of its node, shared by all ranks there; 0: not known
  double f32_flops = 0;      // rate of matrix products, FLOP/s; 0: not measured
  double bf16_flops = 0;     // rate of bf16 and f16 products
  double fp8_flops = 0;
  bool fp8_products = false;      // supports them, at any rate
  bool bf16_products = true;      // false for GPUs below compute capability 8.0, on which gptrain does not run
  double compute_capability = 0;  // NVIDIA's: 9.0, ...; 0: not known
  double bytes_per_second = 0;    // memory bandwidth; 0: not measured
  int num_threads = 1;            // CPU: threads of an op; some scratch sizes depend on them
  int ranks_per_node = 0;         // devices connected by the fast links of a node; 0: all ranks are on one node
  bool device_links = true;       // gpu: ranks exchange data from device to device (NCCL), not through the host
  bool of_processes = false;      // ranks are processes (not threads), so collectives need receive buffers of their own

  int64_t bytes_of_rank() const { return memory_bytes / sharing; }
};

// Memory of a device or host reserved for all that no plan counts. On a GPU: the context, kernels of cuBLASLt, cuDNN
// and our own, CUDA graphs; an estimate, and stage D of tools/gpu_check.sh measures the memory that a run uses beyond
// its arenas. On a host: the system, the program, its libraries and cached pages of data files.
constexpr int64_t outside_plans_bytes = 1 << 30;

// RETURNS the bytes of a GPU that plans may use, of those that its driver reports.
constexpr int64_t planned_part_of_gpu(int64_t bytes) {
  return bytes > outside_plans_bytes ? bytes - outside_plans_bytes : 0;
}
// RETURNS the same of a host's memory or a control group, of which a quarter is reserved if it is small.
int64_t planned_part_of_host(int64_t bytes);

// RETURNS the target of this machine: the planned part of its memory; num_threads 0: every core that the process may
// use. Rates are 0.
Target this_machine(int num_threads);

}  // namespace gptrain::ops
