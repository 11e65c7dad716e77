// What is otherwise in a run that goes on from a checkpoint than in the run that saved it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "config/run_config.h"
#include "data/dataset.h"

namespace gptrain {

// Changes for which the command line must ask (--accept-changes).
struct AcceptedChanges {
  bool data = false;      // the run goes on with other tokens than the checkpoint's sources hold
  bool schedule = false;  // the learning rate rises more than twofold after its decay
};

// Each key that has changed, with both values, and the rate before and after; one line each. Error(usage): the rate
// jumps, and that is not accepted.
std::vector<std::string> config_changes(const RunConfig& saved, const RunConfig& asked, const Manifest& manifest,
                                        AcceptedChanges accepted);

struct ResumedData {
  Dataset train;
  RunRecord record;                  // record of the run from here on, with the changes of `saved` and `asked`
  std::vector<std::string> changes;  // changes of the sources, one line each
};
// The training data as a checkpoint's run goes on with them. A changed mixture begins a phase at the checkpoint, and
// each source goes on at the ordinal that it has reached. Error(data): a source holds other tokens than the
// checkpoint's, and that is not accepted. Other errors as of open_training_data.
ResumedData resume_data(const RunConfig& saved, const RunConfig& asked, const Manifest& manifest,
                        AcceptedChanges accepted);

}  // namespace gptrain
