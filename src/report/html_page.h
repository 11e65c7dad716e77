// The frame of all HTML reports: one file each, in light and dark, without scripts or network.
#pragma once

#include <string>
#include <string_view>

namespace gptrain::inline report {

// Returns the whole document. `title` is plain text; `css` and `body` are inserted as they are. They can use the colors
// --page, --card, --text, --muted, --border and --color-0 to --color-7, a list `.summary`, and `.plots` for figures of
// svg_plot.h.
std::string html_page(const std::string& title, std::string_view css, const std::string& body);

}  // namespace gptrain::report
