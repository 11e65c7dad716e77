// Whether a test runs under AddressSanitizer. The test's own objects may be without (plain_build in ../meson.build).
#pragma once

extern "C" void __asan_init() __attribute__((weak));

namespace gptrain {

inline bool under_address_sanitizer() { return __asan_init != nullptr; }

}  // namespace gptrain
