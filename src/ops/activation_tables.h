// The best piecewise constant derivatives of GELU; made by tools/generate/make_activation_tables.py, which says how.
#pragma once
// clang-format off

namespace gptrain::inline ops::activation_tables {

// Borders between the pieces above 0, half of all 2^bits pieces, and the derivative in each. Below 0 the derivative is
// 1 minus that of the mirrored piece.
inline constexpr float gelu_borders_2[] = {0.4536011F};
inline constexpr float gelu_levels_2[] = {0.6749420F, 1.0014812F};
inline constexpr float gelu_borders_3[] = {0.3259492F, 0.7101253F, 2.4155164F};
inline constexpr float gelu_levels_3[] = {0.6277686F, 0.8743837F, 1.0883140F, 1.0001945F};
inline constexpr float gelu_borders_4[] = {0.1549651F, 0.3151261F, 0.4872775F, 0.6831063F, 0.9312665F, 2.0587673F,
    2.7056259F};
inline constexpr float gelu_levels_4[] = {0.5615756F, 0.6837441F, 0.8028447F, 0.9163622F, 1.0207166F, 1.1091732F,
    1.0486270F, 1.0000948F};
inline constexpr float gelu_tanh_borders_2[] = {0.4537843F};
inline constexpr float gelu_tanh_levels_2[] = {0.6749814F, 1.0014816F};
inline constexpr float gelu_tanh_borders_3[] = {0.3262702F, 0.7112272F, 2.4199759F};
inline constexpr float gelu_tanh_levels_3[] = {0.6278794F, 0.8746510F, 1.0885397F, 1.0001883F};
inline constexpr float gelu_tanh_borders_4[] = {0.1551052F, 0.3154460F, 0.4878714F, 0.6841656F, 0.9332290F, 2.0642173F,
    2.7021228F};
inline constexpr float gelu_tanh_levels_4[] = {0.5616296F, 0.6838987F, 0.8030775F, 0.9166351F, 1.0209759F, 1.1093521F,
    1.0490046F, 1.0000908F};

}  // namespace gptrain::ops::activation_tables
