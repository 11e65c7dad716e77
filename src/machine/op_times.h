// Predicted times of ops on a device that was not measured.
#pragma once

#include <cstdint>

#include "base/event.h"
#include "machine/profiles.h"

namespace gptrain::inline machine {

// Returns the seconds of one kernel that moves `bytes`, launch not counted: (bytes + half_rate_bytes) / sustained rate.
// A kernel that moves half_rate_bytes thus reaches half of the sustained rate.
double memory_seconds(const DeviceProfile& device, double bytes);

// Returns the seconds of a matrix product, launch not counted, by waves of tiles (ops/product_waves.h) at the sustained
// rates; 0 if the device has no products of that dtype.
double product_seconds(const DeviceProfile& device, const ProductShape& products, double bytes);

// Returns the seconds of fused attention, launch not counted: executed FLOPs at the profile's share of the 16-bit rate
// for the head's size and the executed length. A longer sequence never takes less time than a shorter one.
double fused_attention_seconds(const DeviceProfile& device, const ProductShape& heads, double executed_flops,
                               double bytes);

// Returns the seconds of attention that stores the scores of all pairs, masked ones included: two products forward and
// four backward, and separate passes for the masked softmax and dropout. Launches are not counted.
double unfused_attention_seconds(const DeviceProfile& device, const ProductShape& heads);

// Returns the seconds of attention by gptrain's own kernels, launch not counted.
double own_attention_seconds(const DeviceProfile& device, const ProductShape& heads, double executed_flops,
                             double bytes);

// How a trainer computes attention.
enum class AttentionKernels : uint8_t {
  own,      // by gptrain's own kernels if ProductShape::own is true, otherwise by a library
  library,  // always by a library
  unfused   // by separate products, with the scores in memory
};
// Returns the seconds of any op, launches included.
double op_seconds(const DeviceProfile& device, const Event& op, AttentionKernels attention);

}  // namespace gptrain::machine
