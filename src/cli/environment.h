// The environment that libraries read before they first work.
#pragma once

namespace gptrain {

// OpenMP's threads spin between parallel regions, by default for milliseconds; where other work shares the cores that
// slows a step up to fiftyfold. Unless the user has chosen (OMP_WAIT_POLICY, GOMP_SPINCOUNT), starts this program over,
// once, with a short spin. Returns if there is nothing to do or the program cannot be started over.
void shorten_openmp_spinning(char** argv);

// As many hardware queues of a GPU as CUDA allows, unless the user has chosen (CUDA_DEVICE_MAX_CONNECTIONS). Before any
// call of CUDA, in a program of one thread.
void give_streams_queues();

}  // namespace gptrain
