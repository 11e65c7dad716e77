// The machine that a step runs on or is planned for.
#pragma once

#include <cstdint>
#include <string>

namespace gptrain {

// Rates of a GPU that is planned for are data-sheet values (dense), from its profile (machine/profiles.h); those of the
// machine at hand are measured or read from the system.
struct Target {
  enum class Kind : uint8_t { cpu, gpu };
  std::string name;      // "this-machine", "a100-80g", ...
  std::string identity;  // what tells a device from the others of its node; empty on a CPU
  Kind kind = Kind::cpu;
  int64_t memory_bytes = 0;     // that plans may take; of a device at hand without what its driver and libraries need
  int64_t sharing = 1;          // ranks that share them alike
  int64_t host_bytes = 0;       // gpu: memory of the machine that it is in, which all ranks there share; 0: not known
  double f32_flops = 0;         // matrix rate, FLOP/s; 0: not measured
  double bf16_flops = 0;        // f16, too
  double fp8_flops = 0;
  bool fp8_products = false;    // has them, at whatever rate
  bool bf16_products = true;    // GPUs below compute capability 8.0, which gptrain does not run on, have none
  double compute_capability = 0;  // of NVIDIA's GPUs: 9.0, ...; 0: not known
  double bytes_per_second = 0;  // memory bandwidth; 0: not measured
  int num_threads = 1;          // of the CPU, that an op uses there: some scratch sizes depend on them
  int ranks_per_node = 0;       // devices that the fast links of a node join; 0: all ranks are on one node
  bool device_links = true;     // gpu: ranks exchange from device to device (NCCL), not through the host
  bool of_processes = false;    // ranks are processes, whose groups receive in memory of their own what they reduce

  int64_t bytes_of_rank() const { return memory_bytes / sharing; }
};

// This machine: memory from the system, of which 1 GiB, at most a quarter, is left to it and to what no plan has;
// `num_threads` (0: every core the process may use). Rates are left at 0.
Target this_machine(int num_threads);

}  // namespace gptrain
