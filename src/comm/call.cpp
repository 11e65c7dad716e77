#include "comm/call.h"

#include <fmt/format.h>

namespace gptrain::inline comm {

std::string describe(const Call& call) {
  static constexpr const char* reductions[] = {"sum", "max", "min"};
  std::string where;
  if (is_reduction(call.operation)) where = fmt::format(", {}", reductions[static_cast<int>(call.op)]);
  if (call.operation == Operation::broadcast) where = fmt::format(", root {}", call.peer);
  if (call.operation == Operation::send) where = fmt::format(" to rank {}", call.peer);
  if (call.operation == Operation::receive) where = fmt::format(" from rank {}", call.peer);
  const auto what =
      call.operation == Operation::barrier ? "" : fmt::format("{} x {}", call.count, dtype_name(call.dtype));
  return fmt::format("{}({}{})", operation_name(call.operation), what, where);
}

const char* difference(const Call& a, const Call& b) {
  if (a.operation != b.operation) return "operation";
  if (a.count != b.count) return "count";
  if (a.dtype != b.dtype) return "type";
  if (a.op != b.op) return "reduction";
  if (a.peer != b.peer) return "root";
  return nullptr;
}

const char* transfer_difference(const Call& send, const Call& receive) {
  if (send.operation != Operation::send || receive.operation != Operation::receive) return "operation";
  if (send.count != receive.count) return "count";
  if (send.dtype != receive.dtype) return "type";
  return nullptr;
}

void check_call(const Call& call, int size) {
  if (call.count < 0 || call.peer < 0 || call.peer >= size)
    throw Error(ExitCode::device, "{}: count or rank out of range in a group of {}", describe(call), size);
  if (is_reduction(call.operation) && (call.dtype == DType::u8 || call.dtype == DType::u16))
    throw Error(ExitCode::device, "{}: no reductions of this type", describe(call));
}

void check_parts(std::span<const PeerPart> sent, std::span<const PeerPart> received, DType dtype, int rank, int size) {
  const auto fail = [&](std::string_view what) {
    throw Error(ExitCode::device, "all_to_all_v of {} in a group of {}: {}", dtype_name(dtype), size, what);
  };
  const auto num_ranks = static_cast<size_t>(size);
  if (sent.size() != num_ranks || received.size() != num_ranks) fail("not one part for each rank");
  for (const std::span<const PeerPart> parts : {sent, received}) {
    for (const PeerPart& part : parts)
      if (part.first < 0 || part.count < 0) fail("a part with a negative start or count");
  }
  const auto own = static_cast<size_t>(rank);
  if (sent[own].count != received[own].count) fail("a rank's part for itself has two lengths");
}

Error disagreement(const char* what, int rank_a, const Call& a, int rank_b, const Call& b) {
  return Error(ExitCode::device, "the ranks of a group disagree on the {}: rank {} calls {}, rank {} calls {}", what,
               rank_a, describe(a), rank_b, describe(b));
}

}  // namespace gptrain::comm
