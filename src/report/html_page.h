// What the pages of reports have in common: one file each, in light and dark, without scripts or network.
#pragma once

#include <string>
#include <string_view>

namespace gptrain {

// The whole document. `title` is text; `css` and `body` are the page's own, for which there are the colors --page,
// --card, --text, --muted, --border and --color-0 to 2, a list `.summary`, and `.plots` for figures of svg_plot.h.
std::string html_page(const std::string& title, std::string_view css, const std::string& body);

}  // namespace gptrain
