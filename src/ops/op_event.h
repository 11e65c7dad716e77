// Events and warnings with which backends report the ops and copies that they run.
#pragma once

#include <cstdint>
#include <fmt/format.h>
#include <string>
#include <string_view>

#include "base/event.h"
#include "base/units.h"
#include "ops/footprint.h"

namespace gptrain::inline ops {

template <typename Op>
Event op_event(const Op& op, const Footprint& cost) {
  return {.name = Op::name,
          .shape = shape_text(op),
          .model_flops = cost.model_flops,
          .executed_flops = cost.executed_flops,
          .bytes_moved = cost.bytes_moved,
          .products = cost.products};
}

// RETURNS a warning that gptrain's own GPU kernels compute an attention op instead of the library. `refusal`: the
// reason.
template <typename Op>
std::string own_kernels_warning(const Op& op, std::string_view refusal) {
  return fmt::format("{} {}: {}; own kernels compute it", Op::name, shape_text(op), refusal);
}

// Names of copies in events.
constexpr std::string_view upload_name = "upload";                  // host to device
constexpr std::string_view download_name = "download";              // device to host
constexpr std::string_view copy_among_ops_name = "copy_among_ops";  // SideQueue::copy_among_ops

constexpr std::string_view disk_read_name = "disk_read";
constexpr std::string_view disk_write_name = "disk_write";

inline Event copy_event(std::string_view name, int64_t bytes, bool beside_ops = false) {
  return {.kind = Event::Kind::copy,
          .beside_ops = beside_ops,
          .name = name,
          .shape = format_bytes(static_cast<double>(bytes)),
          .bytes_moved = bytes};
}

// RETURNS the event of bytes that move between a GPU's memory and its host's beside the ops, for updates on the host.
inline Event host_event(bool writes, int64_t bytes) {
  Event event = copy_event(writes ? download_name : upload_name, bytes, true);
  event.queue = Event::Queue::update;
  return event;
}

// RETURNS the event of bytes that move between memory and working files beside the ops.
inline Event disk_event(bool writes, int64_t bytes) {
  Event event = copy_event(writes ? disk_write_name : disk_read_name, bytes, true);
  event.queue = writes ? Event::Queue::disk_write : Event::Queue::disk_read;
  return event;
}

}  // namespace gptrain::ops
