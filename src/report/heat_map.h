// Loads of experts as pictures in a page: for each layer a row for each expert, over time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gptrain::inline report {

// Tokens of each expert over the mean of all, by expert, after a step.
struct ExpertLoads {
  int64_t step = 0;
  std::vector<double> loads;
};

// Loads of the experts of one layer, in ascending steps. All steps have as many experts.
struct LayerLoads {
  int64_t layer = 0;
  std::vector<ExpertLoads> steps;
};

// Returns figures for HtmlPage::add_section, one for each layer and a scale, with heat_map_css() in the style sheet:
// the expert with number 0 is the first row. Draws at most 128 steps, evenly spaced.
std::string render_heat_maps(const std::vector<LayerLoads>& layers);
std::string_view heat_map_css();

// Returns a bitmap file (BMP, one byte a cell) of loads: a row for each expert, a column for each step. The color is
// blue below the mean and red above it, on a logarithmic scale that ends at a quarter and at four times the mean.
std::string heat_map_bitmap(const std::vector<ExpertLoads>& steps);

}  // namespace gptrain::report
