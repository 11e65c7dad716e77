// Copies of what offloaded units save, to the host and back: for generators.
#pragma once

#include "schedule/schedule.h"

namespace gptrain {

// Adds actions and buffers around the units' passes. A record leaves after its unit's forward pass, and has as many passes of units to
// do so as lie between two offloaded units: then the device's memory is free. It comes back into other memory half as many
// passes ahead of where it is read, as backward takes longer: while one record is in use, the next is on its way.
void add_offloading(Schedule& schedule);

// Of the blocks of a stage, in the order of its chunks, those that are offloaded where `count` are: spread evenly, the
// first one among them. At most all.
std::vector<int32_t> offloaded_units(const Stages& stages, int64_t count);

}  // namespace gptrain
