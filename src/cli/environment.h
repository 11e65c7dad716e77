// The environment that libraries read when they are loaded, before main runs.
#pragma once

namespace gptrain {

// OpenMP's threads spin between parallel regions, by default for milliseconds; where other work shares the cores that
// slows a step up to fiftyfold. Unless the user has chosen (OMP_WAIT_POLICY, GOMP_SPINCOUNT), starts this program over,
// once, with a short spin. Returns if there is nothing to do or the program cannot be started over.
void shorten_openmp_spinning(char** argv);

}  // namespace gptrain
