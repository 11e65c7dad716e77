// What a search for layouts has found, in words and as JSON.
#pragma once

#include <string>

#include "planner/layout_search.h"

namespace gptrain {

// For people: the best layouts and what each differs in from the first, then why the others lost.
std::string layout_search_text(const LayoutSearch& search);
// For scripts: one JSON object, keys with units. `config`: the winning config, JSON text; empty where nothing fits.
std::string layout_search_json(const LayoutSearch& search, const std::string& config);

// "tensor 8, pipeline 64 1f1b, data 6, ...": what is not the default of its key.
std::string layout_text(const RunLayout& layout);
// What `other` has otherwise than `layout`: "batch.micro 2, parallel.zero 1".
std::string layout_difference(const RunLayout& layout, const RunLayout& other);
// "4.3 GiB"; ">4.3 GiB" of a lower bound.
std::string peak_text(const LayoutResult& result);
// Of the run, failures included.
std::string device_hours_text(const LayoutResult& result);
// "12.92 s (+3.9%): bubble +40 ms". By how much the best of the class loses against the best of all in what was looked for, and what costs the more time.
std::string loss_text(const LayoutSearch& search, const LostClass& lost);

}  // namespace gptrain
