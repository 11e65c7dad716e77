// AMX on an x86-64 CPU without it.
#pragma once

namespace gptrain::ops_test {

// Installs a SIGILL handler that executes the instructions named in kernels/amx_tiles.h, which this CPU lacks, on
// per-thread tiles. It reads the machine code, so that registers, addresses and the order of loads and stores are those
// of a CPU with AMX. Other illegal instructions end the program as before.
void emulate_amx();

}  // namespace gptrain::ops_test
