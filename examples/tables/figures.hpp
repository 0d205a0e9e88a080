// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <vector>

#include "tables/end_to_end.hpp"
#include "tables/evidence.hpp"

namespace hypic_tables {

/// Whether figures can be drawn there, found out before anything is computed.
/// Errors: engine_error (no such folder, no gnuplot that runs).
void require_figures(std::filesystem::path const& folder);

/// Draws drift.svg, seam.svg, distance.svg and quality.svg, on no background and in colours that show on a light and on
/// a dark one. Errors: engine_error (what gnuplot says, files that cannot be written); then none is replaced.
void draw_figures(evidence const& of, std::vector<end_to_end_row> const& quality, std::filesystem::path const& folder);

}  // namespace hypic_tables
