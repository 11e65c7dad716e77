#include "fit/nominal_times.h"

#include <algorithm>
#include <array>

#include "base/fp8.h"
#include "ops/product_waves.h"

namespace gptrain::inline fit {
namespace {

struct NominalRates {
  double f32, half, fp8;  // FLOP/s of matrix products, by dtype
  double bytes;           // bytes/s of device memory
  double sent;            // bytes/s sent to other ranks
  double launches;        // ops started per second
  double copied;          // bytes/s between device and host, each way
  double multiprocessors;
};
constexpr NominalRates cpu_rates = {1e11, 2e11, 2e11, 2e10, 5e9, 1e7, 2e10, 1};
// Rates of GPU generations from NVIDIA's data sheets, and measured rates of PCIe 3, 4 and 5 with 16 lanes: V100, RTX
// 2080 Ti, A100, RTX 3090, RTX 4090, H100, B200, RTX 5090.
struct Generation {
  double least;  // compute capability
  NominalRates rates;
};
constexpr std::array generations{Generation{0, {1.5e13, 1.2e14, 1.2e14, 8e11, 1e11, 5e5, 1.2e10, 80}},
                                 Generation{7.5, {1.3e13, 5.4e13, 5.4e13, 6e11, 1e10, 5e5, 1.2e10, 68}},
                                 Generation{8.0, {1.95e13, 3e14, 5e14, 1.8e12, 1.5e11, 5e5, 2.5e10, 108}},
                                 Generation{8.6, {3.5e13, 7.1e13, 7.1e13, 9e11, 2e10, 5e5, 2.5e10, 82}},
                                 Generation{8.9, {8.2e13, 1.65e14, 3.3e14, 1e12, 2e10, 5e5, 2.5e10, 128}},
                                 Generation{9.0, {6.7e13, 9e14, 1.8e15, 3.2e12, 3e11, 5e5, 5e10, 132}},
                                 Generation{10.0, {7.5e13, 2.2e15, 4.5e15, 7.5e12, 6e11, 5e5, 5e10, 148}},
                                 Generation{12.0, {1.05e14, 2.1e14, 4.2e14, 1.7e12, 4e10, 5e5, 5e10, 170}}};
constexpr double share_of_rates = 0.6;  // ops reach this part of the rates
constexpr double fill_depth = 128;      // as in configs/devices, assumed
constexpr double half_rate_bytes = 1e6;
constexpr double drive_bytes = 3e9;  // bytes/s of an NVMe drive, each way
constexpr double host_bytes = 1e11;  // bytes/s of a host's memory

const NominalRates& rates_of(const Target& target) {
  if (target.kind == Target::Kind::cpu) return cpu_rates;
  size_t found = 0;
  // The thousandth allows for rounding: 8.9 is not a binary fraction.
  for (size_t i = 0; i < generations.size(); ++i)
    if (generations[i].least <= target.compute_capability + 1e-3) found = i;
  return generations[found].rates;
}

double full_rate_seconds(const Event& event, const Target& target) {
  const NominalRates& rates = rates_of(target);
  if (event.kind == Event::Kind::collective)
    return 1 / rates.launches + static_cast<double>(event.sent_bytes) / rates.sent;
  if (event.kind != Event::Kind::op) return 0;
  const DType dtype = event.products.dtype;
  const double products = dtype == DType::f32 ? rates.f32 : is_fp8(dtype) ? rates.fp8 : rates.half;
  const auto bytes = static_cast<double>(event.bytes_moved);
  if (target.kind == Target::Kind::gpu && event.queue == Event::Queue::update) return bytes / host_bytes;
  if (target.kind == Target::Kind::gpu && event.products.kind == ProductShape::Kind::plain)
    return 1 / rates.launches +
           wave_seconds({products, rates.multiprocessors, fill_depth, rates.bytes, half_rate_bytes}, event.products,
                        bytes);
  return 1 / rates.launches + std::max(static_cast<double>(event.executed_flops) / products, bytes / rates.bytes);
}

}  // namespace

double nominal_pass_seconds(const EventBlock& events, const Target& target) {
  double seconds = 0;
  for (const Event& event : events) seconds += full_rate_seconds(event, target);
  return seconds / share_of_rates;
}

PassSeconds nominal_pass_seconds(const StepPlan& plan, const Target& target) {
  PassSeconds seconds;
  for (const LoggedAction& action : plan.log.actions) {
    if (action.micro_batch == 1 && action.kind <= ActionKind::backward)
      seconds[{action.kind, action.unit}] = nominal_pass_seconds(plan.log.blocks[action.block], target);
  }
  return seconds;
}

double nominal_disk_seconds(const EventBlock& events) {
  double read = 0, written = 0;
  for (const Event& event : events) {
    if (event.queue == Event::Queue::disk_read) read += static_cast<double>(event.bytes_moved);
    if (event.queue == Event::Queue::disk_write) written += static_cast<double>(event.bytes_moved);
  }
  return std::max(read, written) / drive_bytes;
}

double nominal_copy_seconds(int64_t bytes, const Target& target) {
  return static_cast<double>(bytes) / rates_of(target).copied;
}

}  // namespace gptrain::fit
