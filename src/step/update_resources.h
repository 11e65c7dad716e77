// The backend and the working files of updates whose optimizer state is on disk or on the host of a GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "step/training_step.h"
#include "storage/working_files.h"

namespace gptrain::inline step {

class UpdateResources {
 public:
  // Creates nothing if all of the design's state is in the memory of the ops. Borrows `ops`, the device's backend
  // without a log (RunContext::device). `threads`: threads of the rank; 0: those of the backend. THROWS as the
  // constructor of WorkingFiles, also if clones of them would have no room.
  UpdateResources(const StepDesign& design, Backend& ops, int64_t rank, int threads = 0);

  // Returns the backend and the files of the updates, which this object owns, and the GPU; null for those that do not
  // exist.
  UpdateDevice device() const {
    return {.backend = backend_.get(), .files = files_.get(), .gpu = gpu_, .cores = cores_};
  }
  const WorkingFiles* files() const { return files_.get(); }  // null: none

 private:
  std::unique_ptr<Backend> backend_;
  Backend* gpu_ = nullptr;  // null: the ops run on a CPU
  std::vector<int> cores_;  // cores of memory.update_threads
  std::unique_ptr<WorkingFiles> files_;
};

}  // namespace gptrain::step
