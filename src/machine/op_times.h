// How long ops take on a device.
#pragma once

#include <cstdint>

#include "base/event.h"
#include "machine/profiles.h"

namespace gptrain {

// One kernel that moves so many bytes: as long as `bytes + half_rate_bytes` at the sustained rate, so that what moves
// half_rate_bytes reaches half of it. The launch is not counted.
double memory_seconds(const DeviceProfile& device, double bytes);

// By waves of tiles (ops/product_waves.h), at the sustained rates. 0 where the device has no such products.
double product_seconds(const DeviceProfile& device, const ProductShape& products, double bytes);

// Fused attention: executed FLOPs at the share of the 16-bit rate that the profile gives for its head and executed length,
// so that no sequence takes less time than a shorter one.
double fused_attention_seconds(const DeviceProfile& device, const ProductShape& heads, double executed_flops, double bytes);

// Attention that stores the scores of all pairs, masked ones, too: two products forward and four backward, scaled and
// masked softmax, and dropout as passes of their own.
double unfused_attention_seconds(const DeviceProfile& device, const ProductShape& heads);

// Any op, launches included. `fused_attention`: of the two ways above.
double op_seconds(const DeviceProfile& device, const Event& op, bool fused_attention);

}  // namespace gptrain
