#include "checkpoint/which_weights.h"

#include <fmt/format.h>

#include "base/error.h"
#include "parallel/state_columns.h"

namespace gptrain::inline checkpoint {

std::string stored_name(WhichWeights which, std::string_view tensor) {
  return fmt::format("{}/{}", which == WhichWeights::averaged ? ema_column : "weight", tensor);
}

void require_weights(const Contents& contents, WhichWeights which) {
  const std::string prefix = stored_name(which, "");
  const auto first = contents.tensors.lower_bound(prefix);
  if (which == WhichWeights::trained) return;
  const bool is_there = first != contents.tensors.end() && first->first.starts_with(prefix);
  // The column of the average holds zeros until the first update.
  if (is_there && contents.stored.manifest.progress.updates == 0) {
    throw Error(ExitCode::usage, "--ema: {} holds no average of its weights yet, as nothing has updated them",
                contents.checkpoint.string());
  }
  if (is_there) return;
  throw Error(ExitCode::usage, "--ema: {} holds no average of its weights, which a run keeps with optimizer.ema",
              contents.checkpoint.string());
}

}  // namespace gptrain::checkpoint
