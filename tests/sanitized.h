// Whether a test runs under AddressSanitizer. Its own objects may have been compiled without (see ../meson.build).
#pragma once

extern "C" void __asan_init() __attribute__((weak));

namespace gptrain {

inline bool under_address_sanitizer() { return __asan_init != nullptr; }

}  // namespace gptrain
