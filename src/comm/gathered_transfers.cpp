#include "comm/gathered_transfers.h"

namespace gptrain::inline comm {

void GatheredTransfers::group_start() {
  if (gathering_) throw Error(ExitCode::device, "group_start inside a group of transfers");
  gathering_ = true;
}

void GatheredTransfers::group_end() {
  if (!gathering_) throw Error(ExitCode::device, "group_end without group_start");
  gathering_ = false;
  run_transfers();
}

void GatheredTransfers::check_collective(const Call& call) const {
  check_call(call, size());
  if (gathering_) throw Error(ExitCode::device, "{} inside a group of transfers", describe(call));
}

void GatheredTransfers::transfer(const Call& call, const void* in, void* out) {
  check_call(call, size());
  add_transfer(call, in, out);
  if (!gathering_) run_transfers();
}

}  // namespace gptrain::comm
