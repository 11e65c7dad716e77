// The version of this build, as checkpoints and `gptrain --version` name it.
#pragma once

namespace gptrain::inline base {

extern const char* const version;

}  // namespace gptrain::base
