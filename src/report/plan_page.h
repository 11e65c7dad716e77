// A plan as a page: one self-contained HTML file.
#pragma once

#include <string>

#include "planner/layout_search.h"
#include "planner/study.h"

namespace gptrain {

// The best layouts as bars of what their steps are spent on, and why the others lost. `config`: the winning one's text.
std::string search_page(const std::string& title, const LayoutSearch& search, const std::string& config);

// A sweep of two keys as a heat map, anything else as plots; and the table of all points.
std::string study_page(const std::string& title, const Study& study);

}  // namespace gptrain
