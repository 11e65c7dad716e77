#include "report/heat_map.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>

#include "base/base64.h"

namespace gptrain::inline report {
namespace {

constexpr size_t most_columns = 128;
constexpr int num_steps_of_scale = 16;  // on each side of the mean
constexpr int num_map_colors = 2 * num_steps_of_scale + 1;
constexpr double octaves = 2;  // on each side of the mean

using Rgb = std::array<double, 3>;
constexpr Rgb fewest_color = {33, 102, 172}, mean_color = {247, 247, 247}, most_color = {178, 24, 43};

int color_of(double load) {
  const double share = std::log2(std::max(load, 1e-9)) / octaves;
  return static_cast<int>(std::lround((std::clamp(share, -1.0, 1.0) + 1) * num_steps_of_scale));
}

void append_number(std::string& out, uint32_t number, int bytes) {
  for (int byte = 0; byte < bytes; ++byte) out += static_cast<char>(number >> (8 * byte));
}

// Appends the headers of a bitmap of 8 bits a pixel, and its colors, which are in the order blue, green, red, 0.
void append_headers(std::string& out, uint32_t width, uint32_t height, uint32_t row_bytes) {
  constexpr uint32_t header_bytes = 14, info_bytes = 40, start = header_bytes + info_bytes + 4 * num_map_colors;
  out += "BM";
  append_number(out, start + row_bytes * height, 4);
  append_number(out, 0, 4);
  append_number(out, start, 4);
  append_number(out, info_bytes, 4);
  append_number(out, width, 4);
  append_number(out, height, 4);
  append_number(out, 1, 2);                   // planes
  append_number(out, 8, 2);                   // bits of a pixel
  append_number(out, 0, 4);                   // not compressed
  append_number(out, row_bytes * height, 4);  // bytes of the pixels
  append_number(out, 0, 4);                   // pixels of a metre, both ways
  append_number(out, 0, 4);
  append_number(out, num_map_colors, 4);
  append_number(out, 0, 4);  // all colors matter
  for (int color = 0; color < num_map_colors; ++color) {
    const int from_mean = color - num_steps_of_scale;
    const Rgb& end = from_mean < 0 ? fewest_color : most_color;
    const double share = std::abs(from_mean) / static_cast<double>(num_steps_of_scale);
    for (const size_t channel : {2, 1, 0})
      append_number(out, static_cast<uint32_t>(std::lround(mean_color[channel] * (1 - share) + end[channel] * share)),
                    1);
    append_number(out, 0, 1);
  }
}

std::vector<ExpertLoads> evenly_chosen(const std::vector<ExpertLoads>& steps) {
  if (steps.size() <= most_columns) return steps;
  std::vector<ExpertLoads> chosen;
  for (size_t i = 0; i < most_columns; ++i) chosen.push_back(steps[i * (steps.size() - 1) / (most_columns - 1)]);
  return chosen;
}

std::string image(const std::string& css_class, const std::vector<ExpertLoads>& steps, const std::string& text) {
  return fmt::format("<img class=\"{}\" alt=\"{}\" title=\"{}\" src=\"data:image/bmp;base64,{}\"/>", css_class, text,
                     text, to_base64(heat_map_bitmap(steps)));
}

// Returns the extremes of the last step that is drawn.
std::string text_of(const LayerLoads& layer) {
  const ExpertLoads& last = layer.steps.back();
  const auto [least, largest] = std::minmax_element(last.loads.begin(), last.loads.end());
  return fmt::format("block {}, steps {} to {}; at the last one expert {} has {:.2f} times the mean, expert {} {:.2f}",
                     layer.layer, layer.steps.front().step, last.step, largest - last.loads.begin(), *largest,
                     least - last.loads.begin(), *least);
}

std::string scale() {
  std::vector<ExpertLoads> steps;
  for (int color = 0; color < num_map_colors; ++color)
    steps.push_back({color, {std::exp2(octaves * (color - num_steps_of_scale) / num_steps_of_scale)}});
  return "<p class=\"scale\">a quarter of the mean load or less " + image("scale", steps, "scale of colors") +
         " four times or more</p>\n";
}

}  // namespace

std::string heat_map_bitmap(const std::vector<ExpertLoads>& steps) {
  const size_t width = steps.size(), height = steps.empty() ? 0 : steps.front().loads.size();
  const size_t row_bytes = (width + 3) / 4 * 4;
  std::string out;
  append_headers(out, static_cast<uint32_t>(width), static_cast<uint32_t>(height), static_cast<uint32_t>(row_bytes));
  // The file has the last row first.
  for (size_t expert = height; expert-- > 0;) {
    for (const ExpertLoads& step : steps) out += static_cast<char>(color_of(step.loads[expert]));
    out.append(row_bytes - width, '\0');
  }
  return out;
}

std::string render_heat_maps(const std::vector<LayerLoads>& layers) {
  std::string out = scale() + "<div class=\"loads\">\n";
  for (const LayerLoads& layer : layers) {
    if (layer.steps.empty()) continue;
    out += fmt::format("<figure>{}<figcaption>block {}</figcaption></figure>\n",
                       image("loads", evenly_chosen(layer.steps), text_of(layer)), layer.layer);
  }
  return out + "</div>\n";
}

std::string_view heat_map_css() {
  return R"css(
div.loads { display: grid; grid-template-columns: repeat(auto-fill, minmax(220px, 1fr)); gap: 8px; }
div.loads figure { margin: 0; }
div.loads figcaption { font-size: 12px; color: var(--muted); }
img.loads { width: 100%; height: 110px; image-rendering: pixelated; border: 1px solid var(--border); }
img.scale { width: 130px; height: 10px; image-rendering: pixelated; }
p.scale { font-size: 12px; color: var(--muted); }
)css";
}

}  // namespace gptrain::report
