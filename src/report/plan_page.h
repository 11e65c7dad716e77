// Searches and studies of `gptrain plan` as self-contained HTML pages.
#pragma once

#include <string>

#include "planner/layout_search.h"
#include "planner/study.h"

namespace gptrain::inline report {

// Returns a page with the best layouts, a bar for the parts of each step, and why other layouts lost. `config`: text of
// the best config; empty if nothing fits.
std::string search_page(const std::string& title, const LayoutSearch& search, const std::string& config);

// Returns a page with a heat map of a sweep of two keys, bars of methods, or plots; and a table of all points.
std::string study_page(const std::string& title, const Study& study);

}  // namespace gptrain::report
