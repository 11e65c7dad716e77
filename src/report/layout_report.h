// The result of a search for layouts as text and JSON.
#pragma once

#include <string>

#include "planner/layout_search.h"

namespace gptrain::inline report {

// Returns text for people: the best layouts, each by its difference from the first, then why other layouts lost.
std::string layout_search_text(const LayoutSearch& search);
// Returns one JSON object for scripts; keys have units. `config`: JSON text of the best config; empty if nothing fits.
std::string layout_search_json(const LayoutSearch& search, const std::string& config);

// Returns the layout in short: "tensor 8, pipeline 64 1f1b, data 6, ...". Keys without an effect are left out.
std::string layout_text(const RunLayout& layout);
// Returns the values of `other` that differ from `layout`: "micro 2, zero 1".
std::string layout_difference(const RunLayout& layout, const RunLayout& other);
// Returns "4.3 GiB", or ">4.3 GiB" for a lower bound.
std::string peak_text(const LayoutResult& result);
// Returns the device-hours of the run, failures included.
std::string device_hours_text(const LayoutResult& result);
// Returns by how much the best of the class loses against the best layout in the search's objective, and where the time
// is lost: "12.92 s (+3.9%): bubble +40 ms".
std::string loss_text(const LayoutSearch& search, const LostClass& lost);

}  // namespace gptrain::report
