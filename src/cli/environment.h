// The environment that libraries read before they first work.
#pragma once

#include <cstdint>

namespace gptrain {

// OpenMP's threads spin between parallel regions, by default for milliseconds; where other work shares the cores that
// slows a step up to fiftyfold. Unless the user has chosen (OMP_WAIT_POLICY, GOMP_SPINCOUNT), starts this program over,
// once, with a short spin. Returns if there is nothing to do or the program cannot be started over.
void shorten_openmp_spinning(char** argv);

// Raises the soft limit of open files to the hard one: each rank over TCP takes several sockets for each other one.
void raise_file_limit();

// As many hardware queues of a GPU as CUDA allows, unless the user has chosen (CUDA_DEVICE_MAX_CONNECTIONS). Before any
// call of CUDA, in a program of one thread.
void give_streams_queues();

// Where ranks exchange between their devices: kernels are loaded when a device is taken, unless the user has chosen
// (CUDA_MODULE_LOADING), and not when they first run. Loading one may wait for the device, where another group's kernel
// may be running that waits for a peer, which waits for this rank. Before any call of CUDA, in a program of one thread.
void load_kernels_at_start(int64_t ranks);

}  // namespace gptrain
