#include "comm/call.h"

#include <fmt/format.h>

namespace gptrain {

std::string describe(const Call& call) {
  static constexpr const char* names[] = {"all_reduce", "reduce_scatter", "all_gather", "all_to_all",
                                          "broadcast",  "barrier",        "send",       "receive"};
  static constexpr const char* reductions[] = {"sum", "max", "min"};
  std::string where;
  if (call.operation <= Operation::reduce_scatter) where = fmt::format(", {}", reductions[static_cast<int>(call.op)]);
  if (call.operation == Operation::broadcast) where = fmt::format(", root {}", call.peer);
  if (call.operation == Operation::send) where = fmt::format(" to rank {}", call.peer);
  if (call.operation == Operation::receive) where = fmt::format(" from rank {}", call.peer);
  const auto what =
      call.operation == Operation::barrier ? "" : fmt::format("{} x {}", call.count, dtype_name(call.dtype));
  return fmt::format("{}({}{})", names[static_cast<int>(call.operation)], what, where);
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
  if (call.operation <= Operation::reduce_scatter && (call.dtype == DType::u8 || call.dtype == DType::u16))
    throw Error(ExitCode::device, "{}: no reductions of this type", describe(call));
}

Error disagreement(const char* what, int rank_a, const Call& a, int rank_b, const Call& b) {
  return Error(ExitCode::device, "the ranks of a group disagree on the {}: rank {} calls {}, rank {} calls {}", what,
               rank_a, describe(a), rank_b, describe(b));
}

}  // namespace gptrain
